"""Slurm jobs that are preempted, and with ``submit --requeue`` go on until they are done."""

from __future__ import annotations

import json
import re
import runpy
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(find_spec("horovod") is None, reason="needs Horovod: make build-horovod"),
]

SLOW = runpy.run_path(str(Path(__file__).with_name("test_restarts.py")))
TIMEOUT_S = 120
# Kills a rank in its step 6 once, or whenever it reads one sample, as files say.
KILLER = """
import itertools, os, pathlib
read, reads = Slow.__getitem__, itertools.count()

def kill(self, index):
    if next(reads) == 60:
        try:
            pathlib.Path("kill once").unlink()
            os.kill(os.getpid(), 9)
        except FileNotFoundError:
            pass
    if index == 150 and pathlib.Path("kill always").exists():
        os.kill(os.getpid(), 9)
    return read(self, index)

Slow.__getitem__ = kill
"""


@pytest.fixture
def folder(tmp_path):
    """Holds a job of some seconds; ``{epochs}`` of 20 steps, each 0.2 s and more on one rank."""
    (tmp_path / "slow.py").write_text(SLOW["DATA"] + KILLER)

    def write(epochs):
        (tmp_path / "job.yaml").write_text(SLOW["JOB"].format(batch="global: 20", epochs=epochs))

    return write


@pytest.fixture(scope="module")
def undisturbed(lab, tmp_path_factory):
    """The last weights of a run that nothing happens to, by ranks and epochs."""
    known = {}

    def weights(size, epochs):
        if (size, epochs) not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            (folder / "slow.py").write_text(SLOW["DATA"].replace("time.sleep", "float"))
            (folder / "job.yaml").write_text(SLOW["JOB"].format(batch="global: 20", epochs=epochs))
            words = ["train", "-np", str(size), "--slots", str(size), "job.yaml"]
            argv = [lab.python, "-P", "-m", "hvdtrain.cli.main", *words]
            done = lab.exec("h1", argv, cwd=folder, timeout=TIMEOUT_S)
            assert done.returncode == 0, done.stderr
            known[size, epochs] = last_weights(folder / "runs" / "it", epochs)
        return known[size, epochs]

    return weights


def last_weights(run, epochs):
    return (run / "checkpoints" / f"step-{20 * epochs}" / "model.safetensors").read_bytes()


@pytest.fixture
def call(slurm, tmp_path):
    """Runs words on the login node; ends the jobs at the end."""

    def run(*words, timeout=60):
        env = {**slurm.slurm_env, "XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
        return slurm.exec("head", words, env=env, cwd=tmp_path, timeout=timeout)

    yield run
    slurm.exec("head", ["scancel", "--user=root"], env=slurm.slurm_env)


@pytest.fixture
def hvdtrain(call, slurm):
    """Runs the command on the login node."""
    return lambda *words, **options: call(slurm.python, "-P", "-m", "hvdtrain.cli.main", *words, **options)


def submit(hvdtrain, *words):
    done = hvdtrain("submit", "--requeue", *words, "job.yaml")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1]


def await_text(path, pattern, patience_s=60):
    deadline = time.monotonic() + patience_s
    while not path.exists() or not re.search(pattern, path.read_text()):
        assert time.monotonic() < deadline, path.read_text() if path.exists() else "no log"
        time.sleep(0.2)


def await_end(hvdtrain, job, timeout_s=TIMEOUT_S):
    """How the job ended: state and code."""
    hvdtrain("logs", "-f", job, timeout=timeout_s)
    (told,) = json.loads(hvdtrain("jobs", "--json", job).stdout)["jobs"]
    return told["state"], told["code"]


def status_of(run):
    return json.loads((run / "status.json").read_text())


STEP = r"step \d+/\d+"


def test_signals_from_slurm_to_the_ranks(hvdtrain, call, folder, undisturbed, tmp_path):
    """Two ranks; all that the user says is --requeue, and which signals this site sends."""
    folder(epochs=4)
    signals = "preemption.signals=[SIGTERM, SIGUSR1]"
    job = submit(hvdtrain, "--nodes=2", "--time=30", "--set", signals)
    log = tmp_path / f"slurm-{job}.out"
    await_text(log, STEP)
    call("scancel", "--signal=TERM", job)
    await_text(log, rf"(?s)\(SIGTERM\).*going on from step-.*{STEP}")
    call("scancel", "--signal=USR1", job)
    assert await_end(hvdtrain, job) == ("COMPLETED", 0), log.read_text()
    told = log.read_text()
    for name in ("SIGTERM", "SIGUSR1"):
        assert len(set(re.findall(rf"preempted after step \d+ \({name}\)", told))) == 1
    assert len(re.findall(r"going on from step-\d+", told)) == 2
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"it-{job}"]
    assert status_of(tmp_path / "runs" / f"it-{job}")["state"] == "done"
    assert last_weights(tmp_path / "runs" / f"it-{job}", 4) == undisturbed(2, 4)


def test_crashes_and_a_preemption_of_one_job(hvdtrain, call, folder, undisturbed, tmp_path):
    """Each allocation has all restarts; a crash is no preemption, and counts as none."""
    folder(epochs=4)
    fault = tmp_path / "kill once"
    fault.touch()
    words = ["--nodes=2", "--time=30", "--max-restarts=2", "--max-requeues=1", "--signal=USR2@60"]
    job = submit(hvdtrain, *words)
    log = tmp_path / f"slurm-{job}.out"
    await_text(log, rf"(?s)1 restart left.*{STEP}")
    call("scancel", "--signal=USR2", "--batch", job)
    await_text(log, r"\(SIGUSR2\)")
    fault.touch()
    assert await_end(hvdtrain, job) == ("COMPLETED", 0), log.read_text()
    told = log.read_text()
    assert len(re.findall(r"starting again .*; 1 restart left", told)) == 2
    assert len(set(re.findall(r"preempted after step \d+ \(SIGUSR2\)", told))) == 1
    assert "Restarts=1 " in call("scontrol", "show", "job", job).stdout
    assert last_weights(tmp_path / "runs" / f"it-{job}", 4) == undisturbed(2, 4)


def test_a_crash_that_comes_back_is_not_requeued(hvdtrain, call, folder, tmp_path):
    folder(epochs=1)
    (tmp_path / "kill always").touch()
    job = submit(hvdtrain, "--time=30", "--max-restarts=5")
    assert await_end(hvdtrain, job) == ("FAILED", 137), (tmp_path / f"slurm-{job}.out").read_text()
    told = (tmp_path / f"slurm-{job}.out").read_text()
    assert re.search(r"no restart: it failed at step \d+ twice, with no checkpoint made in between", told)
    # It dies near step 10: the save of that step may be cut short in the first life, and stand in the second.
    assert told.count("starting again") in (1, 2)
    assert "Restarts=0 " in call("scontrol", "show", "job", job).stdout


def test_elements_of_an_array_have_runs_of_their_own(hvdtrain, call, folder, tmp_path):
    folder(epochs=1)
    job = submit(hvdtrain, "--array=0-1", "--time=30")
    log = tmp_path / f"slurm-{job}_1.out"
    await_text(log, STEP)
    call("scancel", "--signal=USR1", "--batch", f"{job}_1")
    hvdtrain("logs", "-f", job, timeout=TIMEOUT_S)
    told = json.loads(hvdtrain("jobs", "--json", job).stdout)["jobs"]
    assert [one["state"] for one in told] == ["COMPLETED", "COMPLETED"], log.read_text()
    assert "going on from step-" in log.read_text()
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == [f"it-{job}_0", f"it-{job}_1"]
    assert {status_of(tmp_path / "runs" / name)["state"] for name in names} == {"done"}


def test_requeued_from_outside(hvdtrain, call, folder, undisturbed, tmp_path):
    folder(epochs=4)
    job = submit(hvdtrain, "--nodes=2", "--time=30")
    log = tmp_path / f"slurm-{job}.out"
    await_text(log, STEP)
    assert call("scontrol", "requeue", job).returncode == 0
    assert await_end(hvdtrain, job) == ("COMPLETED", 0), log.read_text()
    assert re.search(r"going on from step-\d+", log.read_text())
    assert "Restarts=1 " in call("scontrol", "show", "job", job).stdout
    assert last_weights(tmp_path / "runs" / f"it-{job}", 4) == undisturbed(2, 4)


def test_time_limit(hvdtrain, folder, undisturbed, tmp_path):
    """A minute less the margin is too short. Slurm sends its signal up to 31 s early, after the clock."""
    folder(epochs=8)
    sleeper = hvdtrain("submit", "--time=1", "--", "sleep", "300").stdout.split()[1]  # beside it
    job = submit(hvdtrain, "--time=1", "--set", "preemption.margin_s=31", "--signal=USR1@1")
    log = tmp_path / f"slurm-{job}.out"
    assert await_end(hvdtrain, job, 300) == ("COMPLETED", 0), log.read_text()
    assert log.read_text().count("(the allocation is about to end)") == 1
    assert "going on from step-" in log.read_text()
    assert last_weights(tmp_path / "runs" / f"it-{job}", 8) == undisturbed(1, 8)
    state, code = await_end(hvdtrain, sleeper)
    assert state in ("TIMEOUT", "FAILED")
    assert code


def test_no_more_than_the_user_allows(hvdtrain, call, folder, tmp_path):
    folder(epochs=100)
    job = submit(hvdtrain, "--time=30", "--max-requeues=1", "--launcher=mpirun")
    log = tmp_path / f"slurm-{job}.out"
    await_text(log, STEP)
    call("scancel", "--signal=TERM", "--batch", job)
    await_text(log, rf"(?s)going on from step-.*{STEP}")
    call("scancel", "--signal=USR1", "--batch", job)
    assert await_end(hvdtrain, job) == ("FAILED", 75), log.read_text()
    assert "preempted again; --max-requeues 1 allows no further requeue" in log.read_text()
    assert status_of(tmp_path / "runs" / f"it-{job}")["state"] == "preempted"


def test_a_cancelled_job_stays_cancelled(hvdtrain, call, folder, tmp_path):
    """The ranks save, and end as they do when they are preempted."""
    folder(epochs=100)
    job = submit(hvdtrain, "--time=30")
    log = tmp_path / f"slurm-{job}.out"
    await_text(log, STEP)
    assert hvdtrain("cancel", job).returncode == 0
    state, _ = await_end(hvdtrain, job)
    assert state == "CANCELLED", log.read_text()
    time.sleep(2)
    (told,) = json.loads(hvdtrain("jobs", "--json", job).stdout)["jobs"]
    assert told["state"] == "CANCELLED"
