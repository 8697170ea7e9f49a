"""From a plan to an outcome: the choice of a launcher, and the job's life under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdtrain.errors import InputError
from hvdtrain.launch.local import Local
from hvdtrain.launch.mpirun import OpenMpi
from hvdtrain.launch.plan import Launcher, LaunchPlan
from hvdtrain.launch.supervise import JobOutcome, Line, supervise

# In the order in which "auto" asks them.
LAUNCHERS: tuple[Launcher, ...] = (OpenMpi(), Local())


def choose_launcher(plan: LaunchPlan, name: str = "auto") -> Launcher:
    """The launcher of that name, or for ``auto`` the first that can start the plan.

    Raises:
        InputError: No launcher of that name, or none that can start the plan; says why.
    """
    known = ("auto", *(launcher.name for launcher in LAUNCHERS))
    if name not in known:
        raise InputError(f"no launcher {name!r}", where="--launcher", legal=", ".join(known))
    reasons = []
    for launcher in LAUNCHERS:
        if name in ("auto", launcher.name):
            reason = launcher.refusal(plan)
            if not reason:
                return launcher
            reasons.append(f"{launcher.name}: {reason}")
    raise InputError(f"{plan.size} ranks cannot be started", do="; ".join(reasons))


def launch_job(
    plan: LaunchPlan,
    on_line: Callable[[Line], None],
    on_event: Callable[[int, dict[str, Any]], None],
    *,
    launcher: str = "auto",
) -> JobOutcome:
    """Starts a plan's ranks and stays with them to the end.

    Args:
        plan: What to start.
        on_line: Gets each line that a rank prints, in the rank's order.
        on_event: Gets (rank, event) for each line that begins with ``supervise.EVENT_MARK``.
        launcher: A launcher's name, or ``auto``.

    Raises:
        InputError: No launcher can start the plan.
    """
    chosen = choose_launcher(plan, launcher)
    return supervise(
        chosen.command(plan),
        size=plan.size,
        on_line=on_line,
        on_event=on_event,
        base_env=plan.environ,
        end_signal=chosen.end_signal,
    )
