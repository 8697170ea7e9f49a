"""``hvdtrain build-horovod``: Horovod for this environment, built or from the cache."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import click

from hvdtrain.tools.build_horovod.build import Builder, Outcome, Preview, Request, describe
from hvdtrain.tools.build_horovod.cache import Cache, cache_root
from hvdtrain.tools.build_horovod.facts import Facts
from hvdtrain.tools.build_horovod.progress import reporter


@click.command("build-horovod", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--gpu",
    type=click.Choice(["auto", "none", "nccl"]),
    default="auto",
    show_default=True,
    help="Build with NCCL; auto does if torch is a CUDA build and a toolkit and NCCL are found.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compilers at once; by default as many as cores and free memory allow.",
)
@click.option(
    "--wheel-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Put the wheel into DIR and do not install it here.",
)
@click.option("--force", is_flag=True, help="Build even if the cache has this very wheel.")
@click.option("--dry-run", is_flag=True, help="Print what would be built, and how; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    gpu: str, jobs: int | None, wheel_dir: Path | None, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Build Horovod 0.28.1 for this environment's PyTorch, Python and MPI, and install it.

    Wheels are kept under ~/.cache/hvdtrain (or $HVDTRAIN_CACHE): one for each torch, Python, MPI, compiler
    and CUDA. A wheel that is there is taken, not built again.
    """
    started_s = time.monotonic()
    request = Request(gpu=gpu, jobs=jobs, wheel_dir=wheel_dir, force=force)
    with reporter() as told:
        builder = Builder(request, os.environ, Cache(cache_root(os.environ)), told)
        result = builder.preview() if dry_run else builder.run()
    document = _document(builder.facts, result)
    document["seconds"] = round(time.monotonic() - started_s, 1)
    if as_json:
        click.echo(json.dumps(document))
    elif isinstance(result, Preview):
        click.echo(_plan_text(builder.facts, result))
    else:
        click.echo(_summary(builder.facts, result))


def _document(facts: Facts, result: Outcome | Preview) -> dict[str, object]:
    document: dict[str, object] = {
        "schema": 1,
        "dry_run": isinstance(result, Preview),
        "key": facts.key,
        "cached": result.cached,
        "up_to_date": result.up_to_date,
        **facts.document(),
    }
    if isinstance(result, Outcome):
        proof = dict(result.proof)
        return {**document, "wheel": str(result.wheel), "installed": result.installed, "proof": proof}
    commands = [
        {"argv": command.argv, "env": dict(command.env), "unset": command.unset}
        for command in result.commands
    ]
    return {**document, "commands": commands}


def _plan_text(facts: Facts, preview: Preview) -> str:
    state = "in the cache" if preview.cached else "not in the cache"
    lines = [f"{describe(facts)}: wheel {facts.key} is {state}"]
    lines += [f"  GPU: {facts.gpu.kind} ({facts.gpu.why})"]
    lines += [f"  C++{facts.torch.cxx_standard} by {' '.join(facts.compiler.argv)} {facts.compiler.version}"]
    lines += [f"  MPI: {facts.mpi.prefix}"]
    if not preview.cached:
        lines += [f"  edit {edit.name}: {edit.path}: {edit.reason}" for edit in facts.edits]
    lines += [f"  {command.display()}" for command in preview.commands] or ["  nothing to do: up to date"]
    return "\n".join(lines)


def _summary(facts: Facts, outcome: Outcome) -> str:
    if outcome.up_to_date:
        return f"{describe(facts)}: up to date"
    made = "from the cache" if outcome.cached else "built"
    put = f"installed in {sys.prefix}" if outcome.installed else f"put into {outcome.wheel.parent}"
    return f"{describe(facts)}: {made}, proven on two ranks, {put}"
