"""Jobs in a real Slurm: submitted, followed, listed, chained, cancelled, out of time, run again."""

from __future__ import annotations

import json
import runpy
import shutil
import time
from pathlib import Path

import pytest

from hvdtrain import jobfile

pytestmark = pytest.mark.lab

TIMEOUT_S = 120
HOSTILE = runpy.run_path(str(Path(__file__).with_name("test_launch.py")))["HOSTILE"]
SLURM = Path(__file__).parents[2] / "slurm"
SHORT = ["--set", "epochs=1", "--set", "output.tensorboard=false"]
WORLD = """
import json, os, sys
from hvdtrain.topology.environ import find_world
world = find_world(os.environ)
"""


@pytest.fixture
def hvdtrain(slurm, tmp_path):
    """Runs the command on the login node, with configuration and notes of its own."""

    def call(*words, timeout=TIMEOUT_S):
        env = {
            **slurm.slurm_env,
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        argv = [slurm.python, "-P", "-m", "hvdtrain.cli.main", *words]
        return slurm.exec("head", argv, env=env, cwd=tmp_path, timeout=timeout)

    yield call
    slurm.exec("head", ["scancel", "--user=root"], env=slurm.slurm_env)


def submitted(done):
    """The id in what `submit` printed."""
    assert done.returncode == 0, done.stderr
    word, number = done.stdout.splitlines()[0].split()
    assert word == "job"
    return number


def states(hvdtrain, job):
    done = hvdtrain("jobs", "--json", job)
    assert done.returncode == 0, done.stderr
    return {one["job"]: (one["state"], one["code"]) for one in json.loads(done.stdout)["jobs"]}


def await_state(hvdtrain, job, *wanted):
    deadline = time.monotonic() + 60
    while (state := states(hvdtrain, job)[job][0]) not in wanted:
        assert time.monotonic() < deadline, state
        time.sleep(0.5)
    return state


def test_job_runs_on_all_nodes_and_its_log_is_followed(slurm, hvdtrain, tmp_path):
    (tmp_path / "p.py").write_text(WORLD + "print('I am', world.rank, world.size, os.uname().nodename)")
    words = ["--nodes=2", "--ranks-per-node=2", "--wait", "--", slurm.python, "p.py"]
    done = hvdtrain("submit", *words)
    assert done.returncode == 0, done.stderr
    lines = [line.split("I am ")[1] for line in done.stdout.splitlines() if "I am" in line]
    assert sorted(lines) == ["0 4 h1", "1 4 h1", "2 4 h2", "3 4 h2"]
    job = submitted(done)
    assert (tmp_path / f"slurm-{job}.out").exists()
    assert hvdtrain("logs", job).stdout.count("I am") == 4
    assert states(hvdtrain, job) == {job: ("COMPLETED", 0)}


def test_everything_arrives_intact_and_runs_nothing(slurm, hvdtrain, tmp_path):
    folder = tmp_path / "a b;$HOME 'q' \"d\" 中"
    folder.mkdir()
    program = folder / "it's.py"
    program.write_text("import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['VALUE']]))")
    value, name = "a,b;$HOME\n'\"中", "na me;$(touch pwned)\n'\"\\中"
    words = ["--name", name, "--env", f"VALUE={value}", "--log", str(folder / "out %j.log"), "--wait"]
    done = hvdtrain("submit", *words, "--", slurm.python, str(program), *HOSTILE)
    assert done.returncode == 0, done.stdout + done.stderr
    job = submitted(done)
    log = (folder / f"out {job}.log").read_text()
    assert [json.loads(line) for line in log.splitlines() if line.startswith("[[")] == [[HOSTILE, value]]
    (listed,) = json.loads(hvdtrain("jobs", "--json", job).stdout)["jobs"]
    assert listed["name"] == name
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    "name", ["a b", "q\"u'o", "back\\slash", "#hash # x", "$HOME;`id`", "100%", "ünï 中", "a=b,c", "-x", "~"]
)
def test_names_that_a_directive_holds(slurm, hvdtrain, tmp_path, name):
    job = submitted(hvdtrain("submit", "--name", name, "--sbatch", "hold", "--", "true"))
    (listed,) = json.loads(hvdtrain("jobs", "--json", job).stdout)["jobs"]
    assert (listed["name"], listed["state"]) == (name, "PENDING")


def test_exit_codes_are_taken_over(slurm, hvdtrain):
    assert hvdtrain("submit", "--wait", "--", "sh", "-c", "exit 75").returncode == 75
    failed = hvdtrain("submit", "--wait", "--json", "--", "sh", "-c", "kill -9 $$")
    assert failed.returncode == 137
    assert json.loads(failed.stdout)["exit_code"] == 137
    assert "killed by signal 9" in failed.stderr


def test_ranks_get_what_setup_lines_export(slurm, hvdtrain):
    code = "echo got $FOLDER of $SLURM_PROCID"
    done = hvdtrain("submit", "--setup", "export FOLDER='a b'", "--wait", "--", "sh", "-c", code)
    assert done.returncode == 0, done.stderr
    assert "got a b of 0\n" in done.stdout


def test_module_that_cannot_be_loaded_ends_the_job(slurm, hvdtrain):
    done = hvdtrain("submit", "--module", "no/such", "--wait", "--", "echo", "trained")
    assert done.returncode == 2
    assert "trained" not in done.stdout


def test_array(slurm, hvdtrain, tmp_path):
    code = "echo element $SLURM_ARRAY_TASK_ID; exit $((SLURM_ARRAY_TASK_ID == 2))"
    done = hvdtrain("submit", "--array=0-2%2", "--wait", "--", "sh", "-c", code)
    assert done.returncode == 1
    job = done.stdout.splitlines()[0].split()[1]
    assert states(hvdtrain, job) == {
        f"{job}_0": ("COMPLETED", 0),
        f"{job}_1": ("COMPLETED", 0),
        f"{job}_2": ("FAILED", 1),
    }
    logs = hvdtrain("logs", job).stdout
    assert all(f"element {element}" in logs for element in range(3))
    assert "element 1" in hvdtrain("logs", f"{job}_1").stdout


def test_dependency(slurm, hvdtrain, tmp_path):
    first = submitted(hvdtrain("submit", "--", "sh", "-c", "sleep 2; echo first >> order"))
    words = ["--dependency", f"afterok:{first}", "--wait", "--", "sh", "-c", "echo second >> order"]
    second = hvdtrain("submit", *words)
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "order").read_text() == "first\nsecond\n"


def test_cancel(slurm, hvdtrain):
    job = submitted(hvdtrain("submit", "--nodes=2", "--", "sleep", "300"))
    await_state(hvdtrain, job, "RUNNING")
    done = hvdtrain("cancel", job)
    assert (done.returncode, done.stdout) == (0, f"cancelled: {job}\n")
    assert await_state(hvdtrain, job, "CANCELLED") == "CANCELLED"
    followed = hvdtrain("logs", "-f", job)
    assert followed.returncode == states(hvdtrain, job)[job][1] != 0
    assert {host: slurm.left_over(host) for host in ("h1", "h2")} == {"h1": [], "h2": []}


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_signal_before_the_end_reaches_the_ranks(slurm, hvdtrain, tmp_path, launcher):
    """Slurm sends it up to a minute early, so a limit of one minute sends it at once."""
    (tmp_path / "p.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('saved', flush=True), os._exit(75)))\n"
        "while True: time.sleep(0.1)"
    )
    words = ["--launcher", launcher, "--nodes=2", "--time=1", "--signal=USR1@50", "--wait"]
    done = hvdtrain("submit", *words, "--", slurm.python, "p.py")
    assert done.returncode == 75, done.stdout + done.stderr
    assert "saved" in done.stdout


def test_preempted_job_is_run_again(slurm, hvdtrain, tmp_path):
    code = "echo run ${SLURM_RESTART_COUNT:-0}; exit $((SLURM_RESTART_COUNT ? 0 : 75))"
    done = hvdtrain("submit", "--requeue", "--wait", "--", "sh", "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run 0" in done.stdout
    assert "run 1" in done.stdout


def test_gpus(slurm, hvdtrain):
    code = "echo sees $CUDA_VISIBLE_DEVICES"
    done = hvdtrain("submit", "--gpus-per-node=2", "--wait", "--", "sh", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sees 0,1") == 2


def test_cpus_are_given_to_srun_again(slurm, hvdtrain):
    words = ["--cpus-per-rank=2", "--ranks-per-node=2", "--wait"]
    done = hvdtrain("submit", *words, "--", "sh", "-c", "echo has $SLURM_CPUS_PER_TASK")
    assert done.stdout.count("has 2") == 2, done.stdout + done.stderr


def test_site_defaults_and_what_sbatch_refuses(slurm, hvdtrain, tmp_path):
    (tmp_path / "config" / "hvdtrain").mkdir(parents=True)
    site = tmp_path / "config" / "hvdtrain" / "site.yaml"
    site.write_text("partition: nowhere\nsetup: [export FROM_SITE=1]\n")
    done = hvdtrain("submit", "--", "true")
    assert done.returncode == 1
    assert "sbatch refused the job" in done.stderr
    assert "partition" in done.stderr
    done = hvdtrain("submit", "--partition=lab", "--wait", "--", "sh", "-c", "echo ok")
    assert done.returncode == 0, done.stderr
    site.write_text("partitoin: lab\n")
    done = hvdtrain("submit", "--", "true")
    assert done.returncode == 2
    assert "did you mean partition?" in done.stderr


def test_job_file_is_trained(slurm, hvdtrain, tmp_path):
    shutil.copy(Path(jobfile.__file__).parent / "digits.yaml", tmp_path / "my job.yaml")
    words = ["--nodes=2", "--wait", *SHORT, "--run-dir", str(tmp_path / "run"), "my job.yaml"]
    done = hvdtrain("submit", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy" in done.stdout
    status = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert (status["size"], [rank["host"] for rank in status["ranks"]]) == (2, ["h1", "h2"])


def test_list_of_all_own_jobs(slurm, hvdtrain):
    job = submitted(hvdtrain("submit", "--name", "two\nlines", "--sbatch", "hold", "--", "true"))
    table = hvdtrain("jobs")
    assert table.returncode == 0, table.stderr
    heading, *rows = table.stdout.splitlines()
    assert heading.split() == ["JOB", "STATE", "CODE", "ELAPSED", "NODES", "NAME"]
    (row,) = [row.split() for row in rows if row.split()[0] == job]
    assert row == [job, "PENDING", "0:00", "1", "two\\nlines"]


def test_job_that_nobody_knows(slurm, hvdtrain):
    assert states(hvdtrain, "99999") == {"99999": ("UNKNOWN", None)}
    assert hvdtrain("logs", "99999").returncode == 1
    assert hvdtrain("cancel", "x").returncode == 2


def sample(slurm, tmp_path, *words, env=None):
    """Runs a sample with small numbers in a folder of its own."""
    return slurm.exec("head", words, env={**slurm.slurm_env, **(env or {})}, cwd=tmp_path, timeout=TIMEOUT_S)


def test_sample_gpu_training_trains(slurm, tmp_path):
    small = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=2", "--time=5"]
    words = ["sbatch", "--wait", *small, str(SLURM / "gpu-training.sh")]
    done = sample(slurm, tmp_path, *words, *SHORT)
    out = next(tmp_path.glob("slurm-*.out")).read_text()
    assert done.returncode == 0, out
    assert "accuracy" in out
    assert len(list(tmp_path.glob("runs/gpu-training-*"))) == 1


def test_sample_array_sweep_trains_each_rate(slurm, tmp_path):
    small = ["--array=0-1%1", "--ntasks-per-node=1", "--time=5"]
    words = ["sbatch", "--wait", *small, str(SLURM / "array-sweep.sh")]
    done = sample(slurm, tmp_path, *words, *SHORT)
    out = "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert done.returncode == 0, out
    assert sorted(path.name for path in tmp_path.glob("runs/sweep-*/*")) == ["lr-0.02", "lr-0.05"]


def test_sample_train_then_evaluate(slurm, tmp_path):
    env = {
        "SUBMIT_OPTIONS": "--nodes=2 --time=5",
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    (tmp_path / "train.py").write_text("open('trained', 'a').write('x')")
    (tmp_path / "evaluate.py").write_text("print('evaluated', open('trained').read())")
    program = [
        str(SLURM / "train-then-evaluate.sh"),
        f"{slurm.python} train.py",
        f"{slurm.python} evaluate.py",
    ]
    done = sample(slurm, tmp_path, *program, env=env)
    assert done.returncode == 0, done.stderr
    second = done.stdout.split()[-1]
    followed = [slurm.python, "-m", "hvdtrain.cli.main", "logs", "-f", second]
    done = sample(slurm, tmp_path, *followed, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("evaluated xx") == 2


def test_sample_preemptible_goes_on_after_a_signal(slurm, tmp_path):
    (tmp_path / "p.py").write_text(
        "import os, signal, time\n"
        "if os.path.exists('saved'): print('goes on', flush=True); os._exit(0)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (open('saved', 'w').close(), os._exit(75)))\n"
        "print('begins', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    argv = ["sbatch", "--parsable", "--time=5", str(SLURM / "preemptible.sh"), slurm.python, "p.py"]
    job = sample(slurm, tmp_path, *argv).stdout.strip()
    log = tmp_path / f"slurm-{job}.out"
    await_text(log, "begins", 2)
    sample(slurm, tmp_path, "scancel", "--signal=USR1", "--batch", job)
    await_text(log, "goes on", 2)


def await_text(path, text, count):
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_text().count(text) < count:
        assert time.monotonic() < deadline, path.read_text() if path.exists() else "no log"
        time.sleep(0.2)
