"""Bad input: one clear line, exit 2, nothing left behind; and failures that end all ranks."""

import json
import os
import signal
import subprocess
import time

import psutil
import pytest

# As in conftest.py, for programs that a test sends signals to.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LIMIT_S = 180

GOOD = "model: {name: digits_cnn, args: {width: 8}}\ndata: digits\nbatch: {global: 64}\nepochs: 1\n"
FACTORY = "model: 'parts:NAME'\ndata: digits\nbatch: {global: 64}\nepochs: 1\n"
PARTS = """
import os, torch
def nothing(): return None
def breaks(): raise RuntimeError("no net today")
def needs(width): return torch.nn.Linear(width, 2)
def wrong_shape(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 7))
def rank(): return int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"])
class Fails(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 10)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 5 and rank() == 1 and os.environ.get("PLANT") == "kill rank 1":
            os.kill(os.getpid(), 9)
        if self.calls == 5 and rank() == 1:
            raise ValueError("planted on rank 1")
        if self.calls == 5 and rank() == 0 and os.environ.get("PLANT") == "kill":
            os.kill(os.getpid(), 9)
        return self.inner(x.flatten(1))
"""


@pytest.fixture
def job(tmp_path):
    def write(text):
        (tmp_path / "job.yaml").write_text(text)
        (tmp_path / "parts.py").write_text(PARTS)
        return "job.yaml"

    return write


@pytest.mark.parametrize(
    ("text", "words", "parts"),
    [
        (GOOD, ["-np", "0"], ["'-np'", "0"]),
        (GOOD, ["-np", "x"], ["'-np'", "'x'"]),
        (GOOD, ["-np", "99"], ["99", "slots", "--slots 99"]),
        (GOOD, ["-np", "2", "--slots", "1"], ["-np 2", "1 slots"]),
        (GOOD, ["-np", "3", "--slots", "3"], ["64 does not divide by 3 ranks", "63 or 66", "uneven=split"]),
        (GOOD, ["-np", "65", "--slots", "65"], ["64 samples for 65 ranks"]),
        (GOOD, ["-np", "2", "--set", "backend=single"], ["single trains on one rank"]),
        (GOOD, ["--run-dir", "/proc/run"], ["/proc/run", "cannot be written"]),
        (GOOD, ["--run-dir", ""], ["'--run-dir'", "the path is empty"]),
        (GOOD, ["--run-dir", "/"], ["/: run directory holds files that are no run's", "choose a new or an"]),
        (GOOD, ["--run-dir", ".", "--overwrite"], ["holds files that are no run's: job.yaml, parts.py"]),
        (GOOD, ["--resume", "--overwrite"], ["--resume and --overwrite cannot be combined"]),
        (
            GOOD,
            ["--set", "resume=auto", "--run-dir", "r", "--overwrite"],
            ["--resume and --overwrite cannot be combined; omit --overwrite"],
        ),
        (GOOD, ["--set", "tuning.timeline=none/t.json"], ["tuning.timeline: none/t.json", "no folder none"]),
        (
            GOOD,
            ["--set", "tuning.timeline=/proc/t.json"],
            ["tuning.timeline: /proc/t.json cannot be written"],
        ),
        (GOOD, ["--set", "batch.global=99999999999"], ["batch.global: must be at most 4294967296"]),
        (
            GOOD,
            ["--set", "model=:build"],
            ["--set model=:build: model.name: must be a model's name", ":build"],
        ),
        (GOOD, ["--launcher", "ssh"], ["'ssh'", "mpirun"]),
        (GOOD.replace("digits\n", "{source: folder, path: none}\n", 1), [], ["none"]),
        (GOOD.replace("digits\n", "{source: 'nowhere.at:all'}\n", 1), [], ["nowhere"]),
        (GOOD.replace("digits_cnn", "resnet19"), [], ["'resnet19'", "did you mean"]),
        (
            FACTORY.replace("parts:NAME", "partz:x"),
            [],
            ["no module 'partz'; looked in ", "put it beside the job"],
        ),
        (FACTORY.replace("NAME", "nothin"), [], ["parts", "'nothin'", "nothing"]),
        (FACTORY.replace("NAME", "nothing"), [], ["NoneType", "torch.nn.Module"]),
        (FACTORY.replace("NAME", "needs"), [], ["width"]),
        (FACTORY.replace("NAME", "wrong_shape"), [], ["(1, 7)", "(1, 10)"]),
    ],
)
def test_one_line_exit_2_nothing_left(hvdtrain, job, tmp_path, text, words, parts):
    path = job(text)
    ended = hvdtrain("train", path, *words)
    assert ended.code == 2, ended.err
    for part in parts:
        assert part in ended.error
    assert {entry.name for entry in tmp_path.iterdir()} - {"__pycache__"} == {"job.yaml", "parts.py"}


def test_an_error_with_json_is_one_document(hvdtrain):
    ended = hvdtrain("train", "none.yaml", "--json")
    assert ended.code == 2
    assert ended.document["exit_code"] == 2
    assert "no such job file" in ended.document["error"]


def test_an_empty_word_is_no_job_file(hvdtrain, tmp_path):
    ended = hvdtrain("train", "")
    assert ended.code == 2
    assert "the path is empty" in ended.error
    assert list(tmp_path.iterdir()) == []


def content(path):
    return {str(entry.relative_to(path)): entry.is_file() and entry.read_bytes() for entry in path.rglob("*")}


def test_a_run_is_kept_until_the_next_one_has_begun(hvdtrain, job, tmp_path):
    path, words = job(GOOD), ["--set", "output.tensorboard=false", "--run-dir", "kept"]
    assert hvdtrain("train", path, *words).code == 0
    before = content(tmp_path / "kept")
    ended = hvdtrain("train", path, *words)  # refused at once: nothing is started
    assert ended.code == 2
    assert "already holds a run of job 'job' (done)" in ended.error
    assert "--overwrite" in ended.error
    for text, code in [(GOOD.replace("digits_cnn", "resnet19"), 2), (FACTORY.replace("NAME", "breaks"), 1)]:
        ended = hvdtrain("train", job(text), *words, "--overwrite")
        assert ended.code == code, ended.err
        assert "kept holds the run that it held before" in ended.err
        assert content(tmp_path / "kept") == before
    assert hvdtrain("train", job(GOOD), *words, "--overwrite", "--set", "seed=1").code == 0
    assert content(tmp_path / "kept").keys() == before.keys()
    assert content(tmp_path / "kept")["job.yaml"] != before["job.yaml"]


def test_a_missing_horovod_names_its_build(hvdtrain, tmp_path):
    # A folder named horovod without the built library comes first on the path.
    (tmp_path / "hidden" / "horovod").mkdir(parents=True)
    (tmp_path / "hidden" / "horovod" / "__init__.py").write_text("")
    env = {"PYTHONPATH": str(tmp_path / "hidden")}
    ended = hvdtrain("train", "-np", "2", "--set", "backend=horovod", env=env)
    assert ended.code == 2
    assert "hvdtrain build-horovod" in ended.error
    # Without a wish for an engine the job trains, and says with which.
    ended = hvdtrain("train", "--json", "--set", "epochs=1", env=env)
    assert ended.document["backend"] == "single"
    assert "note: Horovod is not built here" in ended.err


def alive_in(folder):
    """Processes that still work in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.pid != os.getpid():
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_an_exception_on_one_rank_ends_all_and_is_shown_once_and_first(hvdtrain, job, tmp_path, backend):
    path = job(FACTORY.replace("NAME", "Fails"))
    ended = hvdtrain("train", path, "-np", "2", "--json", "--set", f"backend={backend}")
    assert ended.code == 1
    assert ended.err.count("ValueError: planted on rank 1") == 1
    report = ended.err[ended.err.index("rank 1 on host") :]
    assert report.splitlines()[1].startswith("Traceback")
    assert ended.err.count("Traceback") == 1
    assert ended.document["exit_code"] == 1
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    deadline = time.monotonic() + 10
    while alive_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive_in(tmp_path) == []


def test_a_killed_rank_is_named_with_its_signal(hvdtrain, job, tmp_path):
    ended = hvdtrain("train", job(FACTORY.replace("NAME", "Fails")), "-np", "1", env={"PLANT": "kill"})
    assert ended.code == 137
    assert "rank 0" in ended.err
    assert "signal 9" in ended.err


def test_an_error_under_a_foreign_launcher_is_told_once(bin_dir, run_program, tmp_path):
    argv = [str(bin_dir / "mpirun"), "-np", "2", str(bin_dir / "hvdtrain"), "train", "none.yaml"]
    ended = run_program(argv)
    assert ended.code == 2
    assert ended.err.count("no such job file") == 1


def test_a_run_that_diverges_fails_with_its_step_and_what_to_do(hvdtrain, job, tmp_path):
    words = ["--set", "optimizer.name=sgd", "--set", "optimizer.lr=1e30", "--run-dir", "run"]
    ended = hvdtrain("train", job(GOOD), *words)
    assert ended.code == 1, ended.err
    assert "step 2: the loss is no finite number on rank 0; lower the learning rate" in ended.error
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)


def test_a_joined_launch_leaves_nothing_after_bad_input(bin_dir, run_program, job, tmp_path):
    mpirun = [str(bin_dir / "mpirun"), "-np", "2", "--bind-to", "none", str(bin_dir / "hvdtrain"), "train"]
    for text, words, part in [
        (GOOD, ["--set", "batch.global=3"], "3 does not divide by 2 ranks"),
        (GOOD.replace("digits_cnn", "resnet19"), [], "'resnet19'"),
        (GOOD, ["--dry-run"], "--dry-run inside a launch by openmpi"),
        (GOOD, ["-np", "3"], "-np 3 inside a launch of 2 ranks"),
    ]:
        words = [job(text), *words]
        ended = run_program([*mpirun, *words])
        assert ended.code == 2, ended.err
        assert ended.err.count(part) == 1
        assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_failure_of_rank_0_in_a_joined_launch_is_recorded(bin_dir, run_program, job, tmp_path):
    path = job(FACTORY.replace("NAME", "Fails").replace("parts", "here"))
    (tmp_path / "here.py").write_text(PARTS.replace("rank() == 1", "rank() == 0"))
    mpirun = [
        str(bin_dir / "mpirun"),
        "-np",
        "2",
        "--bind-to",
        "none",
        str(bin_dir / "hvdtrain"),
        "train",
        path,
    ]
    ended = run_program(mpirun)
    assert ended.code == 1
    assert "ValueError: planted" in ended.err
    status = json.loads((tmp_path / "runs" / "job" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert "planted" in status["error"]


def joined(bin_dir, launcher, *words):
    """The command line of two ranks that join a launch by somebody else."""
    start = {
        "mpirun": ["-np", "2", "--bind-to", "none"],
        "torchrun": ["--no-python", "--nproc_per_node", "2"],
    }
    program = [str(bin_dir / "hvdtrain"), "train", *words, "--run-dir", "run"]
    return [str(bin_dir / launcher), *start[launcher], *program]


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_failure_of_another_rank_in_a_joined_launch_is_recorded_and_logged(
    bin_dir, run_program, job, tmp_path, launcher
):
    ended = run_program(joined(bin_dir, launcher, job(FACTORY.replace("NAME", "Fails"))))
    assert ended.code == 1
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert status["error"] == "planted on rank 1"
    logs = {path.name: path.read_text() for path in (tmp_path / "run" / "logs").iterdir()}
    assert logs.keys() == {"rank-0.log", "rank-1.log"}
    assert logs["rank-1.log"].count("ValueError: planted on rank 1") == 1


def test_a_kill_of_another_rank_in_a_joined_launch_is_recorded(bin_dir, run_program, job, tmp_path):
    argv = joined(bin_dir, "mpirun", job(FACTORY.replace("NAME", "Fails")))
    assert run_program(argv, {"PLANT": "kill rank 1"}).code == 137
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"


@pytest.mark.parametrize(("launcher", "name"), [(None, "SIGTERM"), (None, "SIGHUP"), ("mpirun", "SIGTERM")])
def test_a_signal_ends_the_run_and_is_recorded(bin_dir, job, tmp_path, launcher, name):
    words = [job(GOOD), "--set", "epochs=100000", "--set", "output.metrics_every_steps=1"]
    own = [str(bin_dir / "hvdtrain"), "train", *words, "-np", "2", "--slots", "2", "--run-dir", "run"]
    argv = joined(bin_dir, launcher, *words) if launcher else own
    with open(tmp_path / "told", "w") as told:
        process = subprocess.Popen(
            argv, cwd=tmp_path, env={**os.environ, **AS_ROOT}, stdout=told, stderr=told
        )
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.read_text())
        process.send_signal(signal.Signals[name])
        code = process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert code != 0
    wait_until(lambda: not alive_in(tmp_path))
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    # SIGTERM asks a run to save and end; where there is no time for that it failed, but never goes on.
    assert status["state"] in ("failed", "preempted")
    assert "SIG" in status.get("error", "") + status.get("reason", "")


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    "words", [["schema"], ["plan", "-H", "a:2", "--json"], ["train", "--dry-run", "--json"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_standard_output_is_one_line(bin_dir, tmp_path, words, unbuffered):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [str(bin_dir / "hvdtrain"), *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
        )
    assert ended.returncode == 1
    assert ended.stderr == "hvdtrain: error: standard output cannot be written: No space left on device\n"
