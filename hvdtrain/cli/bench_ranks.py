"""Starts the ranks of a measurement and stays with them, or joins as the rank that this process is."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hvdtrain.cli.bench_output import tell_note
from hvdtrain.cli.ending_signals import ending_signals
from hvdtrain.cli.launch_options import LaunchOptions, make_plan, with_site
from hvdtrain.cli.placement_options import PlacementOptions, resolve_placement
from hvdtrain.errors import ExitCode, HvdtrainError, InputError

if TYPE_CHECKING:
    from hvdtrain.launch.plan import Launcher, LaunchPlan
    from hvdtrain.launch.supervise import JobOutcome, Line
    from hvdtrain.topology.environ import World

Show = Callable[[Mapping[str, Any]], None]


class MeasuringError(HvdtrainError):
    """The ranks ended without a result.

    Attributes:
        text: All that is known of it, several lines; empty where the message says it.
        code: What the command ends with.
    """

    def __init__(self, outcome: JobOutcome) -> None:
        from hvdtrain.launch.supervise import failure_text
        from hvdtrain.train.launching import own_error

        line = own_error(outcome.first_failure.tail) if outcome.first_failure else ""
        self.text = "" if line else failure_text(outcome)
        self.code = outcome.exit_code or int(ExitCode.FAILED)
        super().__init__(line or (self.text.splitlines() or ["the ranks ended without a result"])[0])


@dataclass(frozen=True)
class Measurement:
    """What the ranks of a measurement run.

    Attributes:
        module: Run by each rank, as ``python -m``.
        env: Variables that carry the request to it.
        placement: Where the ranks are.
        launch: How they are started.
        check: Refuses a number of ranks, before anything is started.
    """

    module: str
    env: Mapping[str, str]
    placement: PlacementOptions
    launch: LaunchOptions
    check: Callable[[int], None]

    def plan(self, *, is_dry: bool) -> tuple[LaunchPlan, Launcher, tuple[str, ...]]:
        """The plan, its launcher and what the user should know.

        Raises:
            InputError: It cannot be started, has too few ranks, or a folder for logs the name of a document.
        """
        from dataclasses import replace

        from hvdtrain.launch.job import choose_launcher
        from hvdtrain.launch.site import read_site, site_path

        output = self.launch.output
        if output and output.suffix == ".json":
            raise InputError(
                f"{output} is to be a folder for the ranks' logs",
                where="--output",
                do=f"pass --save {output}",
            )
        placement = resolve_placement(self.placement, uses_gpus=self.launch.gpus is not False)
        self.check(placement.size)
        options = with_site(self.launch, read_site(site_path(os.environ)))
        program = (sys.executable, "-P", "-m", self.module)
        plan, notes = make_plan(options, placement, program, os.environ, is_dry=is_dry)
        plan = replace(plan, env={**plan.env, **self.env})
        chosen = choose_launcher(plan, options.launcher or "auto")
        return plan, chosen, notes + chosen.notes(plan)

    def show(self, as_json: bool) -> int:
        """Prints the command that would start the ranks; starts nothing."""
        from hvdtrain.launch.describe import describe_plan, masked

        plan, chosen, notes = self.plan(is_dry=True)
        if as_json:
            print(json.dumps({**describe_plan(plan, chosen), "notes": notes}, indent=2))
            return int(ExitCode.DONE)
        print(masked(chosen.command(plan)).display())
        for note in notes:
            tell_note(note)
        return int(ExitCode.DONE)

    def run(self, show: Show) -> dict[str, Any]:
        """Starts the ranks and stays with them to the end.

        Args:
            show: Gets each event but the last one.

        Returns:
            The document of that one.

        Raises:
            MeasuringError: The ranks ended without it.
        """
        from hvdtrain.launch.job import launch_job

        plan, chosen, _ = self.plan(is_dry=False)
        found: list[dict[str, Any]] = []

        def take(_rank: int, event: dict[str, Any]) -> None:
            if event.get("event") == "result":
                found.append(event["document"])
            else:
                show(event)

        def say(line: Line) -> None:
            print(f"[{line.rank}] {line.text}", file=sys.stderr, flush=True)

        with ending_signals():
            outcome = launch_job(plan, say, take, launcher=chosen.name, timeout_s=self.launch.timeout_s)
        if outcome.exit_code != ExitCode.DONE or not found:
            raise MeasuringError(outcome)
        return found[0]


@contextmanager
def told_once() -> Iterator[None]:
    """Lets rank 0 of a launch around tell what all its ranks meet; its end ends the others."""
    from hvdtrain.topology.environ import find_world

    try:
        yield
    except InputError:
        if find_world(os.environ).rank > 0:
            # Long enough for a busy machine, on which ranks do not start at the same moment.
            time.sleep(3.0)
        raise


def find_launch(placement: PlacementOptions, launch: LaunchOptions) -> World | None:
    """The rank that this process is in a launch that somebody else made; None outside of one.

    Raises:
        InputError: Inside of one, with options that say how to start ranks.
    """
    from hvdtrain.topology.environ import find_world

    world = find_world(os.environ)
    if world.launcher == "single":
        return None
    given = [
        field.name
        for options in (placement, launch)
        for field in fields(options)
        if field.name not in ("gpus", "num_ranks") and getattr(options, field.name) != field.default
    ]
    if given:
        raise InputError(
            f"{_option(given[0])} inside a launch by {world.launcher}: the ranks run already",
            do=f"omit {_option(given[0])}",
        )
    if placement.num_ranks not in (None, world.size):
        raise InputError(
            f"-np {placement.num_ranks} inside a launch of {world.size} ranks by {world.launcher}",
            do="omit -np",
        )
    return world


def refuse_launch(what: str) -> None:
    """Refuses a launch around a measurement of one process.

    Raises:
        InputError: There is one.
    """
    from hvdtrain.topology.environ import find_world

    world = find_world(os.environ)
    if world.launcher != "single":
        raise InputError(
            f"{what} inside a launch by {world.launcher}: it measures one process",
            do="call it outside of that launch",
        )


def tell_failure(error: MeasuringError, as_json: bool) -> int:
    """Tells why there is no result; returns the exit code."""
    told = f"hvdtrain: {error.text}" if error.text else f"hvdtrain: error: {error}"
    print(told, file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({"schema": 1, "error": str(error), "exit_code": error.code}))
    return error.code


def _option(name: str) -> str:
    return {"timeout_s": "--timeout", "mpi_type": "--mpi"}.get(name, "--" + name.replace("_", "-"))
