"""Bad input: one clear line, exit 2, nothing left behind; and failures that end all ranks."""

import json
import os
import time

import psutil
import pytest

GOOD = "model: {name: digits_cnn, args: {width: 8}}\ndata: digits\nbatch: {global: 64}\nepochs: 1\n"
FACTORY = "model: 'parts:NAME'\ndata: digits\nbatch: {global: 64}\nepochs: 1\n"
PARTS = """
import os, torch
def nothing(): return None
def needs(width): return torch.nn.Linear(width, 2)
def wrong_shape(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 7))
def rank(): return int(os.environ["OMPI_COMM_WORLD_RANK"])
class Fails(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 10)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
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
        (GOOD, ["--launcher", "ssh"], ["'ssh'", "mpirun"]),
        (GOOD.replace("digits\n", "{source: folder, path: none}\n", 1), [], ["none"]),
        (GOOD.replace("digits\n", "{source: 'nowhere.at:all'}\n", 1), [], ["nowhere"]),
        (GOOD.replace("digits_cnn", "resnet19"), [], ["'resnet19'", "did you mean"]),
        (FACTORY.replace("parts:NAME", "partz:x"), [], ["partz"]),
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


def test_a_run_directory_with_another_run_is_kept(hvdtrain, job, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "metrics.jsonl").write_text("precious\n")
    ended = hvdtrain("train", job(GOOD), "--run-dir", "kept")
    assert ended.code == 2
    assert "already holds a run" in ended.error
    assert (tmp_path / "kept" / "metrics.jsonl").read_text() == "precious\n"


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


def test_a_run_that_diverges_ends_with_a_result_that_is_null(hvdtrain, job, tmp_path):
    words = ["--set", "optimizer.name=sgd", "--set", "optimizer.lr=1e30", "--run-dir", "run"]
    ended = hvdtrain("train", job(GOOD), *words)
    assert ended.code == 0, ended.err
    assert "loss nan" in ended.out
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["result"]["loss"]) == ("done", None)


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
