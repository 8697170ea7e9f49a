"""Proof that a Horovod works: two ranks under mpirun that add up their numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain import process
from hvdtrain.errors import BuildError
from hvdtrain.tools.build_horovod.facts import HOROVOD_VERSION, Facts
from hvdtrain.tools.build_horovod.plan import proof_command

_PROOF_S = 240.0


def prove(facts: Facts, environ: Mapping[str, str], site: Path | None) -> dict[str, Any]:
    """Runs the two ranks and returns what rank 0 reported.

    Args:
        facts: The environment.
        environ: The caller's environment variables.
        site: Folder with an unpacked wheel; None for the Horovod of the environment.

    Raises:
        BuildError: The ranks failed, hung, or reported anything but the right sum from the right build.
    """
    command = proof_command(facts, environ, site, root=os.geteuid() == 0)
    try:
        done = process.run(command, timeout_s=_PROOF_S, base_env=environ)
    except TimeoutError as error:
        raise BuildError(f"the two-rank proof hung: {error}; run it by hand: {command.display()}") from error
    report = _last_document(done.stdout)
    expected = expected_report(facts)
    wrong = {name: report.get(name) for name, value in expected.items() if report.get(name) != value}
    if done.returncode != 0 or wrong:
        detail = " | ".join(done.stderr.strip().splitlines()[-4:])
        raise BuildError(
            f"the two-rank proof failed (exit code {done.returncode}, reported {wrong or report}, "
            f"expected {expected}): {detail}; run it by hand: {command.display()}"
        )
    return report


def expected_report(facts: Facts) -> dict[str, object]:
    """What rank 0 must report: 1 + 2 over two ranks, from the build that was asked for."""
    return {
        "size": 2,
        "sum": 3.0,
        "horovod": HOROVOD_VERSION,
        "mpi_built": True,
        "gloo_built": True,
        "nccl_built": facts.gpu.kind == "nccl",
    }


def _last_document(text: str) -> dict[str, Any]:
    for line in reversed(text.splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}
