"""Starts the ranks that ``hvdtrain profile`` measures, and stays with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hvdtrain.cli.bench_output import tell_note
from hvdtrain.cli.bench_ranks import MeasuringError
from hvdtrain.cli.ending_signals import ending_signals
from hvdtrain.cli.launch_options import LaunchOptions, make_plan, with_site
from hvdtrain.cli.placement_options import PlacementOptions, resolve_placement
from hvdtrain.errors import ExitCode

if TYPE_CHECKING:
    from hvdtrain.launch.supervise import JobOutcome, Line


@dataclass(frozen=True)
class ProfileLaunch:
    """Where and how the ranks run.

    Attributes:
        placement: Where.
        launch: How.
        check: Refuses a number of ranks, before anything is started.
    """

    placement: PlacementOptions
    launch: LaunchOptions
    check: Callable[[int], None] = lambda _size: None

    def run(self, program: tuple[str, ...], env: Mapping[str, str]) -> dict[str, Any]:
        """Starts ranks of ours; returns what rank 0 told last.

        Raises:
            MeasuringError: They ended without it.
        """
        found: list[dict[str, Any]] = []

        def take(_rank: int, event: dict[str, Any]) -> None:
            if event.get("event") == "result":
                found.append(event["document"])

        outcome = self._start(program, env, lambda line: _say(f"[{line.rank}] {line.text}"), take)
        if outcome.exit_code != ExitCode.DONE or not found:
            raise MeasuringError(outcome)
        return found[0]

    def run_program(self, program: tuple[str, ...], env: Mapping[str, str], *, is_quiet: bool) -> None:
        """Starts a program of the user's and stays with it to its end.

        Args:
            program: With its arguments.
            env: More variables for it.
            is_quiet: Whether stdout is kept for a document: what rank 0 prints goes to stderr then.

        Raises:
            MeasuringError: It failed.
        """

        def show(line: Line) -> None:
            if line.rank == 0:
                print(line.text, file=sys.stderr if is_quiet else sys.stdout, flush=True)

        outcome = self._start(program, env, show, lambda _rank, _event: None)
        if outcome.exit_code != ExitCode.DONE:
            raise MeasuringError(outcome)

    def _start(
        self,
        program: tuple[str, ...],
        env: Mapping[str, str],
        on_line: Callable[[Line], None],
        on_event: Callable[[int, dict[str, Any]], None],
    ) -> JobOutcome:
        from hvdtrain.launch.job import choose_launcher, launch_job
        from hvdtrain.launch.site import read_site, site_path

        placement = resolve_placement(self.placement, uses_gpus=self.launch.gpus is not False)
        self.check(placement.size)
        options = with_site(self.launch, read_site(site_path(os.environ)))
        plan, notes = make_plan(options, placement, program, os.environ, is_dry=False)
        plan = replace(plan, env={**plan.env, **env})
        chosen = choose_launcher(plan, options.launcher or "auto")
        for note in notes + chosen.notes(plan):
            tell_note(note)
        with ending_signals():
            return launch_job(plan, on_line, on_event, launcher=chosen.name)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
