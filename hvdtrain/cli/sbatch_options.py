"""The options of ``hvdtrain submit`` that become options of sbatch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hvdtrain.cli.option_types import FilledText
from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.launch.site import Site

# option of ours -> option of sbatch
_SBATCH = {
    "nodes": "nodes",
    "gpus_per_node": "gpus-per-node",
    "cpus_per_rank": "cpus-per-task",
    "memory": "mem",
    "time": "time",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "array": "array",
    "dependency": "dependency",
    "reservation": "reservation",
}
_HELP = {
    "nodes": "Nodes.",
    "gpus_per_node": "GPUs of each node: 4 or a100:4.",
    "ranks_per_node": "Ranks on each node; default: its GPUs, or 1.",
    "cpus_per_rank": "CPU cores of each rank.",
    "memory": "Memory of each node: 64G.",
    "time": "Time limit: 2:00:00.",
    "partition": "Partition.",
    "account": "Account.",
    "qos": "Quality of service.",
    "constraint": "Features that the nodes must have.",
    "array": "Array of jobs: 0-7%2.",
    "dependency": "When it may start: afterok:12.",
    "reservation": "Reservation.",
    "signal": "Signal before the end: USR1@120.",
}


def slurm_options(function: Any) -> Any:
    """Gives a click command the options, which come to it one by one."""
    for name in reversed(_HELP):
        is_count = name in ("nodes", "ranks_per_node", "cpus_per_rank")
        kind = click.IntRange(1, 1_000_000) if is_count else FilledText()
        function = click.option(f"--{name.replace('_', '-')}", type=kind, help=_HELP[name])(function)
    return function


def with_named(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with ``--sbatch`` read; what it says of options that mean more here counts as theirs.

    Raises:
        InputError: ``--sbatch`` names none, gives a value that sbatch does not take, or an option twice.
    """
    from hvdtrain.launch.sbatch import parse_sbatch_options
    from hvdtrain.launch.sbatch_values import check_value

    others = parse_sbatch_options(options["sbatch"])
    for name, value in others.items():
        check_value(name, value, f"--sbatch {name}")
    merged = dict(options)
    for name in ("signal", "array"):
        if name not in others:
            continue
        merged[name] = value = others.pop(name)
        if options[name] is not None:
            raise InputError(
                f"--{name} {options[name]} is given too", where=f"--sbatch {name}={value}", do="omit one"
            )
    return {**merged, "sbatch": others}


def sbatch_options(site: Site, options: Mapping[str, Any]) -> dict[str, str]:
    """All options of sbatch by their long names, but for those that ``launch.sbatch`` adds.

    Args:
        site: What the site presets.
        options: What the user said, after ``with_named``.

    Raises:
        InputError: A value is none that sbatch takes.
    """
    from hvdtrain.launch.sbatch_values import check_value

    preset = {
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
    }
    chosen = {"nodes": "1", **{name: value for name, value in preset.items() if value}, **site.sbatch}
    for name, theirs in _SBATCH.items():
        if options[name] is not None:
            chosen[theirs] = str(options[name])
            check_value(theirs, chosen[theirs], f"--{name.replace('_', '-')}")
    chosen["ntasks-per-node"] = str(options["ranks_per_node"] or _num_gpus(options["gpus_per_node"]) or 1)
    if options["exclusive"]:
        chosen["exclusive"] = ""
    if options["max_restarts"]:
        chosen["no-kill"] = ""  # else Slurm ends the job when one of its nodes fails
    chosen["output"] = options["log"] or ("slurm-%A_%a.out" if options["array"] else "slurm-%j.out")
    return {**chosen, **options["sbatch"]}


def num_ranks(chosen: Mapping[str, str]) -> int | None:
    """How many ranks Slurm will start; None where it is to choose the nodes, or is told in another way."""
    if "ntasks" in chosen:
        return None
    counts = [chosen.get(name, "") for name in ("nodes", "ntasks-per-node")]
    return math.prod(map(int, counts)) if all(map(_is_count, counts)) else None


def _num_gpus(text: str | None) -> int | None:
    """The number in ``4``, ``a100:4`` or ``a100:2,v100:2``; None where there is none."""
    numbers = [kind.rpartition(":")[2] for kind in (text or "").split(",")]
    return sum(map(int, numbers)) if all(map(_is_count, numbers)) else None


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= 18  # Python reads no number of some thousand digits
