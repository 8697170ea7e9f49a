"""A plan as a document: ``plan.json`` and what ``--dry-run --json`` prints."""

from __future__ import annotations

from typing import Any

from hvdtrain.launch.plan import Launcher, LaunchPlan


def describe_plan(plan: LaunchPlan, launcher: Launcher) -> dict[str, Any]:
    """What would run where: the command, what it adds to the environment, and the ranks."""
    command = launcher.command(plan)
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
