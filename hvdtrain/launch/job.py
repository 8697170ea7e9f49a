"""From a plan to an outcome: the choice of a launcher, and the job's life under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdtrain.errors import InputError
from hvdtrain.launch import hydra
from hvdtrain.launch.horovodrun import Horovodrun
from hvdtrain.launch.local import Local
from hvdtrain.launch.mpirun import Mpirun
from hvdtrain.launch.openmpi import session_folder
from hvdtrain.launch.plan import Launcher, LaunchPlan
from hvdtrain.launch.srun import Srun
from hvdtrain.launch.supervise import JobOutcome, Line, Terms, supervise

LAUNCHERS: tuple[Launcher, ...] = (Mpirun(), Horovodrun(), Srun(), Local())

# Those that "auto" asks, in order. On this machine mpirun comes first where there is one: a program that uses
# MPI or Horovod would else run as so many worlds of one rank.
_IN_SLURM = ("srun", "mpirun", "local")
_ELSEWHERE = ("mpirun", "local")


def choose_launcher(plan: LaunchPlan, name: str = "auto") -> Launcher:
    """The launcher of that name, or for ``auto`` the first that can start the plan.

    Raises:
        InputError: No launcher of that name, or none that can start the plan; says why.
    """
    check_launcher(name)
    by_name = {launcher.name: launcher for launcher in LAUNCHERS}
    reasons = []
    for candidate in _candidates(plan) if name == "auto" else (name,):
        reason = by_name[candidate].refusal(plan)
        if not reason:
            return by_name[candidate]
        reasons.append(f"{candidate}: {reason}")
    raise InputError(
        f"{plan.size} rank{'s' if plan.size > 1 else ''} cannot be started", do="; ".join(reasons)
    )


def check_launcher(name: str) -> None:
    """Refuses a name that is no launcher's.

    Raises:
        InputError: It is none.
    """
    known = ("auto", *(launcher.name for launcher in LAUNCHERS))
    if name not in known:
        raise InputError(f"no launcher {name!r}", where="--launcher", legal=", ".join(known))


def warnings(launcher: Launcher, plan: LaunchPlan) -> tuple[str, ...]:
    """What may go wrong under this launcher through no fault of the program."""
    return hydra.warnings(plan) if _is_hydra(launcher, plan) else ()


def launch_job(
    plan: LaunchPlan,
    on_line: Callable[[Line], None],
    on_event: Callable[[int, dict[str, Any]], None],
    *,
    launcher: str = "auto",
    timeout_s: float | None = None,
) -> JobOutcome:
    """Starts a plan's ranks and stays with them to the end.

    Args:
        plan: What to start.
        on_line: Gets each line that a rank prints, in the rank's order.
        on_event: Gets (rank, event) for each line that begins with ``supervise.EVENT_MARK``.
        launcher: A launcher's name, or ``auto``.
        timeout_s: After it the job is asked to end; None sets no limit.

    Raises:
        InputError: No launcher can start the plan.
    """
    chosen = choose_launcher(plan, launcher)
    terms = Terms(
        chosen.end_signal(plan),
        timeout_s,
        hears_beats=not plan.is_local,
        deaf_to=hydra.DEAF_TO if _is_hydra(chosen, plan) else frozenset(),
        is_wrapper=isinstance(chosen, Horovodrun),  # which leaves a shell around its mpirun
    )
    with session_folder(plan) as environ:
        return supervise(
            chosen.command(plan),
            size=plan.size,
            on_line=on_line,
            on_event=on_event,
            base_env=environ,
            terms=terms,
        )


def _is_hydra(launcher: Launcher, plan: LaunchPlan) -> bool:
    return isinstance(launcher, Mpirun) and plan.mpi is not None and plan.mpi.vendor != "openmpi"


def _candidates(plan: LaunchPlan) -> tuple[str, ...]:
    return _ELSEWHERE if plan.slurm is None else _IN_SLURM
