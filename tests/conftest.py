"""What all tests share: the command line as users call it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Open MPI refuses root by default; containers and CI machines run as root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Generous: the limit only ends a test that hangs.
LIMIT_S = 180


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


def run_command(argv: list[str], cwd: Path, env: dict[str, str] | None = None) -> Ended:
    """Runs a command in a clean environment; everything it started is killed if it hangs."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "SLURM_"))}
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env={**base, **AS_ROOT, **(env or {})},
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
        argv = [sys.executable, "-P", "-m", "hvdtrain.cli.main", *map(str, args)]
        return run_command(argv, tmp_path, env)

    return run


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    """Where this environment's programs stand: mpirun, torchrun, horovodrun, hvdtrain."""
    return Path(sys.executable).parent
