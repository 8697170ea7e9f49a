"""A plan as a document: ``plan.json`` and what ``--dry-run --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hvdtrain.launch.exports import is_secret
from hvdtrain.launch.plan import Launcher, LaunchPlan
from hvdtrain.process import Command


def describe_plan(plan: LaunchPlan, launcher: Launcher) -> dict[str, Any]:
    """What would run where: the command, what it adds to the environment, and the ranks."""
    command = masked(launcher.command(plan))
    return {
        "schema": 1,
        "source": plan.placement.source,
        "size": plan.size,
        "launcher": launcher.name,
        "command": list(command.argv),
        "env": dict(command.env),
        "unset": list(command.unset),
        "notes": list(launcher.notes(plan)),
        "ranks": [
            {
                "rank": place.rank,
                "host": place.host,
                "local_rank": place.local_rank,
                "local_size": place.local_size,
                "cross_rank": place.cross_rank,
                "cross_size": place.cross_size,
                "device": place.device if plan.uses_gpus else None,
            }
            for place in plan.placement.ranks
        ],
    }


def masked(command: Command) -> Command:
    """The command as it may be shown: without the values of variables that look like secrets."""
    return replace(command, env=masked_values(command.env))


def masked_values(env: Mapping[str, str]) -> dict[str, str]:
    """The variables as they may be shown."""
    return {name: "***" if is_secret(name) else value for name, value in env.items()}
