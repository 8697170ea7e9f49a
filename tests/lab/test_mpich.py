"""Launches by MPICH's mpirun, Hydra, over real hosts, with an MPI program that MPICH connects."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import signal
import sys
from pathlib import Path

import pytest

from hvdtrain.process import end_group

MPIRUN = shutil.which("mpirun.mpich")
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(MPIRUN is None, reason="needs MPICH: tests/lab/install"),
]

LAUNCH = runpy.run_path(str(Path(__file__).with_name("test_launch.py")))
HOSTILE, FAILURES, RANK, READY = (LAUNCH[name] for name in ("HOSTILE", "FAILURES", "RANK", "READY"))
TIMEOUT_S = 120
HOSTS = "h1:1,h2:2"
ALLREDUCE = """
from mpi4py import MPI
world = MPI.COMM_WORLD
print(world.rank, world.size, world.allreduce(world.rank + 1), MPI.Get_library_version().split()[0])
"""


@pytest.fixture(scope="module")
def mpich(lab, tmp_path_factory):
    """This environment without its own MPI, and the variables with which MPICH's is found in its place."""
    prefix = tmp_path_factory.mktemp("mpich")
    for name in ("env/bin", "mpi", "lib"):
        (prefix / name).mkdir(parents=True)
    for name in ("bin/python", "lib", "lib64", "include", "share", "etc", "pyvenv.cfg"):
        if Path(sys.prefix, name).exists():
            (prefix / "env" / name).symlink_to(Path(sys.prefix, name))
    (prefix / "mpi" / "mpirun").symlink_to(MPIRUN)
    (prefix / "mpi" / "hydra_pmi_proxy").symlink_to(shutil.which("hydra_pmi_proxy"))
    # mpi4py's wheel asks for MPICH's library by the name that MPICH gives it; Debian has another one
    libraries = sorted(Path("/usr/lib").glob("*/libmpich.so.12"))
    (prefix / "lib" / "libmpi.so.12").symlink_to(libraries[0])
    return prefix, {
        "PATH": os.pathsep.join([str(prefix / "mpi"), lab.env["PATH"]]),
        "MPI4PY_MPIABI": "mpich",
        "LD_LIBRARY_PATH": str(prefix / "lib"),
    }


@pytest.fixture
def words(mpich):
    """The words that start a launch over two hosts, with unequal slots."""
    python = str(mpich[0] / "env" / "bin" / "python")

    def run(*options):
        own = [python, "-P", "-m", "hvdtrain.cli.main", "run", "-H", HOSTS, "--launcher", "mpirun"]
        return [*own, "--env", "MPI4PY_MPIABI", *options, "--", python]

    return run


@pytest.fixture
def launch(lab, mpich, words):
    """Runs a launch to its end."""

    def run(*options, program):
        argv = [*words(*options), *program]
        return lab.exec("h1", argv, env=mpich[1], timeout=TIMEOUT_S)

    return run


def assert_nothing_left(lab):
    assert {host: lab.left_over(host) for host in ("h1", "h2")} == {"h1": [], "h2": []}


def test_ranks_and_their_places(launch, lab):
    done = launch("--no-tag", program=["-P", "-m", "hvdtrain.cli.main", "whoami", "--json"])
    assert done.returncode == 0, done.stderr
    told = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: one["rank"])
    names = ("rank", "size", "local_rank", "local_size", "node_rank", "num_nodes", "host", "launcher")
    assert [[one[name] for name in names] for one in told] == [
        [0, 3, 0, 1, 0, 2, "h1", "pmi"],
        [1, 3, 0, 2, 1, 2, "h2", "pmi"],
        [2, 3, 1, 2, 1, 2, "h2", "pmi"],
    ]
    assert_nothing_left(lab)


def test_mpich_connects_the_ranks(launch, lab, mpich, tmp_path):
    """MPICH before 4.2 may hang when that is done, in MPI_Finalize; then the time limit ends it."""
    (tmp_path / "p.py").write_text(ALLREDUCE)
    done = launch("--no-tag", "--timeout", "20", program=[str(tmp_path / "p.py")])
    assert sorted(done.stdout.splitlines()) == [f"{rank} 3 6 MPICH" for rank in range(3)], done.stderr
    assert done.returncode in (0, 4), done.stderr
    assert ("may hang in MPI_Finalize" in done.stderr) == may_hang(lab, mpich)
    assert_nothing_left(lab)


def may_hang(lab, mpich):
    version = lab.exec("h1", ["mpirun", "--version"], env=mpich[1]).stdout
    return "--with-device=ch4:ucx" in version and bool(re.search(r"Version:\s+(3|4\.[01])\.", version))


def test_mpich_that_may_hang_says_so(words, lab, mpich):
    done = lab.exec("h1", [*words("--dry-run"), "p.py"], env=mpich[1], timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert ("may hang in MPI_Finalize" in done.stderr) == may_hang(lab, mpich)


def test_another_mpi_in_the_program_is_refused(launch):
    """Each rank would be a world of its own; only Slurm has types to choose from."""
    own = ["--env", "MPI4PY_MPIABI=openmpi", "--env", "LD_LIBRARY_PATH="]
    done = launch(*own, program=["-P", "-m", "hvdtrain.cli.main", "whoami"])
    assert done.returncode == 2
    assert "3 ranks were started but the MPI of this Python sees 1; take launcher and MPI from" in done.stderr


def test_arguments_and_variables_arrive_intact(launch, tmp_path):
    program = tmp_path / "it's.py"
    program.write_text(
        "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['A'], os.environ['Z']]))"
    )
    value = "a b;$HOME\n'\"中"
    done = launch("--no-tag", "--env", f"A={value}", "--env", f"Z={value}", program=[str(program), *HOSTILE])
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[HOSTILE, value, value]] * 3
    assert not os.path.exists("/tmp/pwned")


@pytest.mark.parametrize("case", FAILURES)
def test_one_rank_fails_and_all_end(launch, lab, tmp_path, case):
    action, how, exit_code = FAILURES[case]
    code = f"{RANK}if world.rank == 2:\n time.sleep(1)\n {action}\ntime.sleep(300)"
    (tmp_path / "p.py").write_text(code)
    done = launch(program=[str(tmp_path / "p.py")])
    assert done.returncode == exit_code, done.stderr
    assert f"hvdtrain: rank 2 on host h2 failed: {how}\n" in done.stderr
    assert_nothing_left(lab)


@pytest.fixture
def job(lab, mpich, words, tmp_path):
    """Starts a launch in the background and waits until all its ranks said a word; ends what is left."""
    started = []

    def begin(code, word=b"ready"):
        (tmp_path / "p.py").write_text(RANK + code)
        process = lab.start("h1", [*words(), str(tmp_path / "p.py")], env=mpich[1])
        started.append(process)
        await_lines(process.stdout, word, 3)
        return process

    yield begin
    for process in started:
        end_group(process.pid)
        process.communicate()


def interrupt(lab, number):
    (pid,) = [pid for pid, command in lab.processes("h1") if "hvdtrain.cli.main run" in command]
    os.kill(pid, number)


def test_signals_reach_the_ranks_and_ctrl_c_gives_them_time(job, lab):
    code = "def save(*_):\n time.sleep(1)\n print('saved', flush=True)\n os._exit(75)\n"
    code += "signal.signal(signal.SIGTERM, save)\n"
    code += "signal.signal(signal.SIGUSR1, lambda *_: print('usr1', flush=True))\n"
    process = job(code + "print('set', flush=True)\nwhile True: time.sleep(0.1)", b"set")
    interrupt(lab, signal.SIGUSR2)  # Hydra would die of it
    await_lines(process.stderr, b"hands SIGUSR2 on to nobody", 1)
    interrupt(lab, signal.SIGUSR1)
    await_lines(process.stdout, b"usr1", 3)
    interrupt(lab, signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 75, err
    assert out.count(b"saved") == 3
    assert_nothing_left(lab)


def await_lines(stream, word, count):
    """Reads until so many lines held the word."""
    while count:
        line = stream.readline()
        assert line, f"{word!r} does not come"
        count -= word in line


def test_ctrl_c_twice_kills_on_all_hosts(job, lab):
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(300)"
    process = job(code, b"deaf")
    interrupt(lab, signal.SIGINT)
    await_lines(process.stderr, b"asking the ranks to end", 1)
    interrupt(lab, signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, err
    assert_nothing_left(lab)


def test_host_that_is_cut_off(job, lab):
    process = job(f"{READY}time.sleep(300)")
    lab.cut("h2")
    try:
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        lab.heal("h2")
    assert process.returncode == 1, err
    assert_nothing_left(lab)
