"""What all tests share: the command line as users call it, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

# Open MPI refuses root by default; containers and CI machines run as root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Generous: the limit only ends a test that hangs.
LIMIT_S = 180
HVDTRAIN = [sys.executable, "-P", "-m", "hvdtrain.cli.main"]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one error line."""
        lines = [line for line in self.err.splitlines() if line.startswith("hvdtrain: error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


def clean_environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """This one without what a launcher may have left in it."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "SLURM_"))}
    return {**base, **AS_ROOT, **(more or {})}


class Running:
    """``hvdtrain ARGS`` that goes on while the test does, in a folder, with its output in ``log``."""

    def __init__(self, folder: Path, args: tuple[str, ...], env: dict[str, str]) -> None:
        self._log = folder / "log"
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [*HVDTRAIN, *args], cwd=folder, env=clean_environment(env), stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        """What it and earlier ones in this folder said."""
        return self._log.read_text()

    def wait(self, timeout_s: float = 120) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def family(self) -> list[psutil.Process]:
        """It and all that it started."""
        with contextlib.suppress(psutil.Error):
            command = psutil.Process(self.process.pid)
            return [command, *command.children(recursive=True)]
        return []

    def ranks(self) -> list[psutil.Process]:
        """The training processes, in the order of their ranks."""
        found = {}
        for child in self.family():
            with contextlib.suppress(psutil.Error, KeyError):  # one may have ended, or not yet begun
                # Launcher and agents have the same words in their own command lines.
                if child.cmdline()[1:] == ["-P", "-m", "hvdtrain.train.rank"]:
                    found[int(child.environ()["OMPI_COMM_WORLD_RANK"])] = child
        return [found[rank] for rank in sorted(found)]

    def end(self) -> None:
        """Kills what is left of it."""
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()


def run_command(argv: list[str], cwd: Path, env: dict[str, str] | None = None) -> Ended:
    """Runs a command in a clean environment; everything it started is killed if it hangs."""
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=clean_environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except BaseException:
        os.killpg(process.pid, 9)
        process.communicate()
        raise
    return Ended(process.returncode, out, err)


@pytest.fixture
def run_program(tmp_path):
    """Runs a program in an empty folder: ``run_program([words], env)``."""

    def run(argv: list[str], env: dict[str, str] | None = None) -> Ended:
        return run_command(argv, tmp_path, env)

    return run


@pytest.fixture
def hvdtrain(tmp_path):
    """Runs ``hvdtrain ARGS`` in an empty folder."""

    def run(*args: str | Path, env: dict[str, str] | None = None) -> Ended:
        return run_command([*HVDTRAIN, *map(str, args)], tmp_path, env)

    return run


@pytest.fixture
def start(tmp_path):
    """Starts ``hvdtrain ARGS`` in the test's folder and goes on; what is left at the end is killed."""
    started: list[Running] = []

    def call(*args: str | Path, **env: str) -> Running:
        started.append(Running(tmp_path, tuple(map(str, args)), env))
        return started[-1]

    yield call
    for running in started:
        running.end()


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    """Where this environment's programs stand: mpirun, torchrun, horovodrun, hvdtrain."""
    return Path(sys.executable).parent
