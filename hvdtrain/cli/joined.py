"""``hvdtrain train`` as a rank of a launch: what it may be asked, and what it tells ``hvdtrain run``.

``hvdtrain run --max-restarts`` listens to lines that begin with ``EVENT_MARK``: where the run directory is
and how far the run got. It hands the directory on to the next life.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.cli.progress_view import LineView
    from hvdtrain.config import Job
    from hvdtrain.topology.environ import World

_TOLD = frozenset({"start", "step", "epoch"})


def check_join(world: World, options: Mapping[str, Any]) -> None:
    """Refuses what only who starts the ranks can do.

    Raises:
        InputError: Names the option.
    """
    from hvdtrain.cli.progress_view import counted

    ours = {
        "--dry-run": options["dry_run"],
        "--slots": options["slots"],
        "--launcher": options["launcher"] != "auto",
        "--max-restarts": options["max_restarts"],
        "--min-ranks": options["min_ranks"],
        "--elastic": options["elastic"],
        "--max-ranks": options["max_ranks"],
        "--commit-steps": options["commit_steps"],
    }
    for name in (name for name, given in ours.items() if given):
        is_of_run = name not in ("--dry-run", "--slots", "--launcher")
        do = f"give it to hvdtrain run: hvdtrain run {name} ..." if is_of_run else f"omit {name}"
        raise InputError(f"{name} inside a launch by {world.launcher}: the ranks run already", do=do)
    num_ranks = options["num_ranks"]
    if num_ranks not in (None, world.size):
        raise InputError(
            f"-np {num_ranks} inside a launch of {counted(world.size, 'rank')} by {world.launcher}",
            do="omit -np",
        )


def follow_on(
    job: Job, options: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Job, Path | None, bool]:
    """The job, its directory and whether to overwrite what that holds, where lives of the job came before.

    Args:
        job: The job as the user gave it.
        options: ``run_dir`` and ``overwrite`` as the user gave them.
        environ: This process's environment. ``HVDTRAIN_RUN_DIR`` without a restart is where a batch script
            wants the run, since it is run again.
    """
    from hvdtrain.launch.restart import RESTART, RUN_DIR

    told = environ.get(RUN_DIR)
    if told and environ.get(RESTART, "0") != "0":
        return job.model_copy(update={"resume": "auto"}), Path(told), False
    return job, options["run_dir"] or (Path(told) if told else None), options["overwrite"]


class Relay:
    """A view that also tells the ``hvdtrain run`` around of the events by which it knows how far the run is.

    Args:
        view: Shows the events here.
        overwrites: Whether the run replaces another one: its directory is told of with its first step then.
            A life that ends before has not replaced anything, and the next one begins as it did.
    """

    def __init__(self, view: LineView, *, overwrites: bool) -> None:
        self._view, self._overwrites = view, overwrites
        self._place: dict[str, Any] | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        """Tells of an event, and shows it."""
        kind = event.get("event")
        if kind == "run":
            self._place = event
        if self._place and (not self._overwrites or kind in ("step", "epoch")):
            _tell(self._place)
            self._place = None
        if kind in _TOLD:
            _tell(event)
        self._view(event)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._view.close()


def relayed(view: LineView, overwrites: bool, environ: Mapping[str, str]) -> LineView | Relay:
    """The view, with a relay where somebody listens."""
    from hvdtrain.launch.restart import RESTART

    return Relay(view, overwrites=overwrites) if RESTART in environ else view


def _tell(event: Mapping[str, Any]) -> None:
    from hvdtrain.launch.frames import EVENT_MARK

    # Not sys.stdout, whose copy goes into the rank's log.
    stream = sys.__stdout__ or sys.stdout
    stream.write(f"{EVENT_MARK}{json.dumps(event)}\n")
    stream.flush()
