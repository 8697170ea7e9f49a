"""The agent around one rank, as a launcher starts it: real processes, frames read back."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

from hvdtrain.launch.frames import FrameReader, Message
from hvdtrain.launch.local import rank_variables
from hvdtrain.launch.outlet import TAIL_LINES
from hvdtrain.launch.plan import AGENT as AGENT_FILE

LIMIT_S = 60
AGENT = [sys.executable, "-I", "-S", AGENT_FILE]


@dataclass
class Agent:
    """A running agent and what it sent so far."""

    process: subprocess.Popen
    messages: list
    foreign: list

    def read(self, until=None):
        """Reads frames until ``until(content)`` or the end."""
        reader = FrameReader()
        while data := os.read(self.process.stderr.fileno(), 1 << 16):
            for item in reader.feed(data):
                (self.messages if isinstance(item, Message) else self.foreign).append(item)
            if until and any(until(message.content) for message in self.messages):
                return self
        self.process.wait(LIMIT_S)
        return self

    def lines(self, stream="stdout"):
        return [m.content[stream] for m in self.messages if stream in m.content]

    @property
    def end(self):
        (end,) = [message.content["end"] for message in self.messages if "end" in message.content]
        assert end == self.messages[-1].content["end"]
        return end


@pytest.fixture
def start():
    """Starts an agent as rank 1 of 2; whatever it leaves is killed."""
    started = []

    def agent(*words, env=None, options=()):
        process = subprocess.Popen(
            [*AGENT, *options, "--", *words],
            env={**os.environ, **rank_variables(1, 2, 0), **(env or {})},
            stderr=subprocess.PIPE,
        )
        started.append((process, psutil.Process(process.pid)))
        return Agent(process, [], [])

    yield agent
    for process, tree in started:
        family = [*tree.children(recursive=True), tree] if process.poll() is None else []
        for member in family:
            member.kill()
        process.communicate(timeout=LIMIT_S)


def await_end(pid):
    """Waits until a process that is no child of ours ended; one that nobody reaps stays as a zombie."""
    deadline = time.monotonic() + LIMIT_S
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"process {pid} lives on"
            time.sleep(0.02)


def python(code):
    return (sys.executable, "-u", "-c", code)


@pytest.mark.parametrize("code", [0, 7, 75])
def test_exit_codes(start, code):
    agent = start("sh", "-c", f"exit {code}").read()
    assert agent.process.returncode == code
    assert agent.end["code"] == code
    assert agent.end["host"] == os.uname().nodename
    assert not agent.end["asked"]
    assert {message.rank for message in agent.messages} == {1}


def test_killed_by_signal(start):
    agent = start("sh", "-c", "kill -9 $$").read()
    assert (agent.end["code"], agent.process.returncode) == (-9, 137)


def test_death_is_told_before_the_rest(start):
    """A child of the program holds the pipes: the launcher may end this agent while it waits for them."""
    agent = start("sh", "-c", "sleep 60 & kill -9 $$").read()
    kinds = [next(iter(message.content)) for message in agent.messages]
    assert kinds == ["start", "died", "end"]
    died = agent.messages[1].content["died"]
    assert died == {"code": -9, "host": os.uname().nodename, "time_s": agent.end["time"]}


@pytest.mark.parametrize("code", ["exit 0", "kill -TERM $PPID; sleep 60"])
def test_death_is_no_news_of_a_success_or_an_end_that_was_asked_for(start, code):
    agent = start("sh", "-c", code).read()
    assert not [message for message in agent.messages if "died" in message.content]


def test_lines_log_and_tail(start, tmp_path):
    code = (
        "import sys\n"
        "print('out'); print('err', file=sys.stderr); print('中文')\n"
        "print('10%\\r20%\\r100%'); print('dos', end='\\r\\n'); print(); print('unfinished', end='')\n"
        f"sys.stderr.write('\\n'.join(map(str, range({TAIL_LINES + 50}))) + '\\n'); sys.exit(3)"
    )
    agent = start(*python(code), options=("--log-dir", str(tmp_path / "logs"))).read()
    assert agent.lines() == ["out", "中文", "100%", "dos", "", "unfinished"]
    assert agent.end["tail"] == [str(n) for n in range(50, TAIL_LINES + 50)]
    logged = (tmp_path / "logs" / "rank-1.log").read_text().splitlines()
    assert sorted(logged) == sorted(agent.lines() + agent.lines("stderr"))


def test_progress_is_shown_before_its_line_ends(start):
    """A bar as tqdm draws it; its last state is not followed by an empty line."""
    code = (
        "import sys, time\nfor n in range(3): sys.stderr.write(f'\\r{n}/3'); sys.stderr.flush()\n"
        "time.sleep(2.5)\nsys.stderr.write('\\n'); print('on'); time.sleep(60)"
    )
    agent = start(*python(code))
    agent.read(until=lambda content: content.get("stderr") == "2/3")
    assert agent.lines() == []
    agent.read(until=lambda content: content.get("stdout") == "on")
    agent.process.terminate()
    assert agent.read().lines("stderr") == ["2/3"]


def test_successful_rank_sends_no_tail(start):
    assert "tail" not in start("sh", "-c", "echo warning >&2").read().end


def test_long_lines_and_garbage(start):
    code = (
        "import os; os.write(1, b'x' * 300000 + b'\\n' + bytes(range(256)) * 20); os.write(1, b'y' * 3000000)"
    )
    agent = start(*python(code)).read()
    lines = agent.lines()
    assert lines[0] == "x" * 300000
    assert "".join(lines).count("y") == 20 + 3000000
    assert agent.end["code"] == 0


def test_events_are_no_lines(start, tmp_path):
    code = "for text in ('{\"step\": 3}', 'not json', '[1]'): print('\\x1ehvdtrain', text)\nprint('a')"
    agent = start(*python(code), options=("--log-dir", str(tmp_path))).read()
    assert [m.content["event"] for m in agent.messages if "event" in m.content] == [{"step": 3}]
    assert agent.lines() == ["\x1ehvdtrain not json", "\x1ehvdtrain [1]", "a"]
    assert "step" not in (tmp_path / "rank-1.log").read_text()


@pytest.mark.parametrize(("mode", "code"), [(None, 127), (0o644, 126)])
def test_program_that_cannot_be_started(start, tmp_path, mode, code):
    program = tmp_path / "prog"
    if mode:
        program.touch(mode=mode)
    agent = start(str(program)).read()
    assert agent.end["code"] == agent.process.returncode == code
    assert f"cannot start '{program}'" in agent.end["tail"][-1]
    assert agent.end["last_words"] == []
    assert agent.lines("stderr") == []  # told with the verdict, of one rank


def test_log_that_cannot_be_written(start, tmp_path):
    (tmp_path / "file").touch()
    agent = start("true", options=("--log-dir", str(tmp_path / "file"))).read()
    assert agent.process.returncode == 2
    assert "rank-1.log cannot be written: " in agent.messages[0].content["refusal"]


def test_contradicting_environment(start):
    agent = start("true", env={"LOCAL_RANK": "5"}).read()
    assert agent.process.returncode == 2
    assert "LOCAL_RANK=5" in agent.foreign[0]


TRAP = (
    "import signal, sys, time\nfor n in (15, 2, 10, 12):\n signal.signal(n, lambda n, _: print('got', n))\n"
)


def test_signals_are_handed_on(start):
    agent = start(*python(TRAP + "print('ready')\nfor _ in range(600): time.sleep(0.1)"))
    agent.read(until=lambda content: content.get("stdout") == "ready")
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        agent.process.send_signal(number)
        agent.read(until=lambda content, number=number: content.get("stdout") == f"got {int(number)}")
    agent.process.send_signal(signal.SIGTERM)  # the second one kills
    agent.read()
    assert (agent.end["code"], agent.end["asked"]) == (-9, True)


def test_sigurg_asks_softly_also_under_mpirun(start):
    """mpirun's SIGTERM means SIGKILL at once, so its soft request comes as another signal."""
    mpirun = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")}
    mpirun |= {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}
    code = "import signal, sys, time\nsignal.signal(15, lambda n, _: (time.sleep(0.5), sys.exit(75)))\n"
    agent = start(*python(code + "print('ready')\ntime.sleep(60)"), env=mpirun)
    agent.read(until=lambda content: content.get("stdout") == "ready")
    agent.process.send_signal(signal.SIGURG)
    agent.read()
    assert (agent.end["code"], agent.end["asked"]) == (75, True)


def test_descriptors_of_the_launcher_reach_the_program():
    """MPICH's and Intel MPI's processes talk to their launcher through the one that PMI_FD names."""
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    code = "import os; os.write(int(os.environ['PMI_FD']), b'cmd=init')"
    try:
        subprocess.run(
            [*AGENT, "--", sys.executable, "-c", code],
            env={**os.environ, **rank_variables(1, 2, 0), "PMI_FD": str(theirs)},
            pass_fds=[theirs],
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
        )
        assert os.read(ours, 100) == b"cmd=init"
    finally:
        os.close(ours)
        os.close(theirs)


def test_child_dies_with_its_agent(start):
    agent = start(*python("import os, time\nprint(os.getpid())\ntime.sleep(60)"))
    agent.read(until=lambda content: "stdout" in content)
    agent.process.kill()
    await_end(int(agent.lines()[0]))


def test_grandchildren_do_not_outlive_the_child(start):
    agent = start("sh", "-c", "sleep 61 & echo $!").read()
    assert agent.end["code"] == 0
    await_end(int(agent.lines()[0]))


LEAVES = "setsid sh -c 'sleep 62 & echo $$ $!; wait' & sleep 0.3; exit {code}"


@pytest.mark.parametrize("code", [0, 1])
def test_processes_in_sessions_of_their_own_do_not_outlive_the_child(start, code):
    agent = start("sh", "-c", LEAVES.format(code=code)).read()
    assert agent.end["code"] == code
    pids = agent.lines()[0].split()
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, map(int, pids)))


def test_processes_in_sessions_of_their_own_end_on_request_too(start):
    agent = start("sh", "-c", "trap 'exit 75' TERM; " + LEAVES.replace("0.3", "60 & wait").format(code=0))
    agent.read(until=lambda content: "stdout" in content)
    agent.process.terminate()
    agent.read()
    assert (agent.end["code"], agent.end["asked"]) == (75, True)
    assert not any(map(psutil.pid_exists, map(int, agent.lines()[0].split())))


def test_adopted_processes_are_no_zombies_while_the_rank_runs(start):
    agent = start("sh", "-c", "sh -c 'sleep 0.3 & echo $!'; sleep 1; echo on; sleep 60")
    agent.read(until=lambda content: content.get("stdout") == "on")
    assert not psutil.pid_exists(int(agent.lines()[0]))


def test_supervisor_that_is_gone(start):
    agent = start(*python("import os, time\nprint(os.getpid())\nwhile True: print('x'); time.sleep(0.01)"))
    agent.read(until=lambda content: "stdout" in content)
    agent.process.stderr.close()
    await_end(int(agent.lines()[0]))
    assert agent.process.wait(LIMIT_S) == 1
    agent.process.stderr = None


RAISE = "raise RuntimeError('no\\nsecond line')"
TOLD = ["Traceback (most recent call last):", "RuntimeError: no", "second line"]
CAUGHT = "import sys, time, traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()\n"


def unindented(lines):
    return [line for line in lines if not line.startswith(" ")]


def test_uncaught_exception_is_the_last_words(start):
    agent = start(*python(f"import sys\nprint('W: old', file=sys.stderr)\n{RAISE}")).read()
    assert agent.end["code"] == 1
    assert unindented(agent.end["last_words"]) == TOLD
    assert agent.lines("stderr") == ["W: old"]


def test_program_that_hangs_after_an_uncaught_exception_is_ended(start):
    """As in MPI_Finalize, which Python calls after the traceback."""
    hangs = "import atexit, sys, time\natexit.register(time.sleep, 600)\n"
    hangs += "atexit.register(print, 'W: shutdown', file=sys.stderr)\n"
    agent = start(*python(hangs + RAISE)).read()
    assert agent.end["code"] == agent.process.returncode == 1
    assert not agent.end["asked"]
    assert unindented(agent.end["last_words"]) == TOLD
    assert agent.lines("stderr") == ["W: shutdown"]


SURVIVED = {
    "caught": CAUGHT,
    "lost child": "import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', '1/0'])\n",
    "told by hand": "import sys, time\ntry: 1/0\nexcept Exception: sys.excepthook(*sys.exc_info())\n",
}


@pytest.mark.parametrize("case", SURVIVED)
def test_traceback_that_the_program_survives_is_shown_while_it_runs(start, case):
    agent = start(*python(SURVIVED[case] + "time.sleep(600)"))
    agent.read(until=lambda content: content.get("stderr") == "ZeroDivisionError: division by zero")
    agent.process.terminate()
    assert agent.read().end["last_words"] == []
    assert unindented(agent.lines("stderr")) == [TOLD[0], "ZeroDivisionError: division by zero"]


def test_traceback_that_something_follows_was_survived(start):
    agent = start(*python(f"{CAUGHT}print('on', file=sys.stderr); sys.exit(7)")).read()
    shown = unindented(agent.lines("stderr"))
    assert shown == [TOLD[0], "ZeroDivisionError: division by zero", "on"]
    assert (agent.end["code"], agent.end["last_words"]) == (7, [])


def test_traceback_that_a_program_prints_and_ends_with_is_its_last_words(start):
    agent = start(*python(f"{CAUGHT}sys.exit(3)")).read()
    assert agent.lines("stderr") == []
    assert agent.end["last_words"][-1] == "ZeroDivisionError: division by zero"


def test_traceback_before_a_success_is_shown(start):
    agent = start(*python(CAUGHT)).read()
    assert unindented(agent.lines("stderr")) == [TOLD[0], "ZeroDivisionError: division by zero"]


def test_program_with_a_hook_of_its_own_in_a_file_is_left_alone(start, tmp_path):
    """stderr that leads elsewhere holds nothing of ours."""
    path = tmp_path / "err"
    agent = start("sh", "-c", f"exec {sys.executable} -c '1/0' 2> {path}").read()
    assert agent.end["code"] == 1
    assert path.read_text().endswith("ZeroDivisionError: division by zero\n")
    assert "\x1e" not in path.read_text()


def test_program_as_json():
    words = [sys.executable, "-c", "import sys; print(sys.argv[1:])", ":", "a b", ""]
    process = subprocess.run(
        [*AGENT, "--program", json.dumps(words)],
        env={**os.environ, **rank_variables(1, 2, 0)},
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    messages = [item.content for item in FrameReader().feed(process.stderr)]
    assert {"stdout": "[':', 'a b', '']"} in messages


def test_start_is_told_first(start):
    agent = start("true").read()
    assert agent.messages[0].content == {"start": {"host": os.uname().nodename, "size": 2, "device": ""}}


def test_beat(start):
    agent = start("sleep", "4", options=("--beat", "1")).read()
    assert {"beat": 1} in [message.content for message in agent.messages]


def test_rank_is_bound_to_its_share_of_the_cores(start):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    half = len(cores) // 2
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    assert start(*python(code), options=("--bind", "core")).read().lines() == [str(cores[half : 2 * half])]
    agent = start(*python(code), options=("--bind", f"core:{len(cores)}")).read()
    assert "refusal" in agent.messages[0].content
    assert agent.process.returncode == 2


def test_rank_without_a_gpu_is_refused(start):
    agent = start("true", options=("--gpus", "all"), env={"CUDA_VISIBLE_DEVICES": "NoDevFiles"}).read()
    assert agent.process.returncode == 2
    refusal = agent.messages[0].content["refusal"]
    assert refusal.startswith("rank 1 sees no GPU (CUDA_VISIBLE_DEVICES='NoDevFiles')")


def test_users_own_sitecustomize_and_paths_are_kept(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    code = "import os, sys\nprint(os.environ.get('PYTHONPATH'), any('startup' in path for path in sys.path))"
    agent = start(*python(code), env={"PYTHONPATH": str(tmp_path)}).read()
    assert agent.lines() == ["mine", f"{tmp_path} False"]
    bare = start(*python(code), env={"PYTHONPATH": ""}).read()
    assert bare.lines() == ["None False"]


def test_agent_imports_little():
    code = "import sys, hvdtrain.launch.rank_agent; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"torch", "numpy", "pydantic", "yaml", "click", "rich", "jinja2", "mpi4py", "argparse", "logging"}
    assert not heavy & set(loaded)
    own = {name for name in loaded if name.startswith("hvdtrain.")}
    assert own <= {
        *("hvdtrain.errors", "hvdtrain.process", "hvdtrain.version", "hvdtrain.launch", "hvdtrain.topology"),
        *("hvdtrain.launch.frames", "hvdtrain.launch.signals", "hvdtrain.launch.rank_agent"),
        *("hvdtrain.launch.outlet", "hvdtrain.launch.last_words"),
        *("hvdtrain.topology.environ", "hvdtrain.topology.devices", "hvdtrain.topology.launchers"),
    }
