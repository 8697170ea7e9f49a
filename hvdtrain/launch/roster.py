"""Who takes part: what the supervisor checks of ranks that report for work, and whom it has not heard of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from hvdtrain.errors import InputError
from hvdtrain.topology.devices import Seat, check_seats
from hvdtrain.topology.launchers import RANKS_PER_HOST
from hvdtrain.topology.nodelist import expand_counts

# An agent says something every 3 s; four in a row are not lost by chance.
SILENCE_S = 11.0


@dataclass
class Roster:
    """The ranks that reported, when each was last heard of, and the Slurm step that they are, if one.

    Args:
        size: Ranks that were asked for.
        hears_beats: Whether the agents say something all the time; they do on several hosts.
        layout: Ranks on each planned host, blocks in the order of the ranks; empty if nothing was planned.
    """

    size: int
    hears_beats: bool = False
    layout: Sequence[int] = ()
    hosts: dict[int, str] = field(default_factory=dict)
    step: str = ""
    _seats: list[Seat] = field(default_factory=list)
    _planned: dict[int, int] = field(default_factory=dict)  # a rank that reported, of each planned host
    _named: dict[str, int] = field(default_factory=dict)  # a rank that reported, of each host's name
    _heard_at: dict[int, float] = field(default_factory=dict)
    _looked_at: float | None = None

    def start(self, rank: int, told: Mapping[str, Any]) -> None:
        """Takes a rank's first report.

        Raises:
            InputError: It cannot be one of this job: the launcher started something else than was asked
                for or put it elsewhere, or two ranks sit on one GPU.
        """
        host = told["host"]
        if rank in self.hosts:
            raise InputError(
                f"two processes take themselves for rank {rank}, on hosts {self.hosts[rank]} and {host}",
                do="the launcher does not connect them: take launcher and MPI from one installation",
            )
        if told["size"] != self.size or rank >= self.size:
            raise InputError(
                f"{self.size} ranks were asked for, but on host {host} the launcher started rank {rank} of "
                f"{told['size']}",
                do="take launcher and MPI from one installation",
            )
        self.hosts[rank] = host
        self._check_place(rank, host)
        self.step = told.get("step", "")
        if told["device"]:
            # PCI addresses, which stand in for UUIDs that the driver hides, are unique on a host only.
            key = told["device"] if "-" in told["device"] else f"{host} {told['device']}"
            self._seats.append(Seat(rank, host, key))
            check_seats(self._seats)

    def _check_place(self, rank: int, host: str) -> None:
        """Holds a rank's host against those of others: the plan's names may be no names that hosts know."""
        if sum(self.layout) != self.size:
            return
        neighbour = self._planned.setdefault(self._index(rank), rank)
        if self.hosts[neighbour] != host:
            raise InputError(
                f"ranks {neighbour} and {rank} belong on one host, but the launcher started them on "
                f"{self.hosts[neighbour]} and {host}",
                do="look for settings of the launcher's own that place ranks, such as SLURM_DISTRIBUTION",
            )
        other = self._named.setdefault(host, rank)
        if self._index(other) != self._index(rank):
            raise InputError(
                f"ranks {other} and {rank} belong on two hosts, but both run on {host}",
                do="list each host under one name, and give each machine a host name of its own",
            )

    def _index(self, rank: int) -> int:
        """The index of the host on which a rank was planned."""
        return bisect_right(self._ends, rank)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.layout))

    def hear(self, rank: int, now: float) -> None:
        """Notes that a rank said something."""
        self._heard_at[rank] = now

    def forget(self, rank: int) -> None:
        """Expects nothing more of a rank: it ended."""
        self._heard_at.pop(rank, None)

    def silent_host(self, now: float) -> str:
        """A host of whose ranks one has been silent for too long; empty if there is none."""
        if not self.hears_beats:
            return ""
        if self._looked_at is not None and now - self._looked_at > SILENCE_S / 2:
            # This process was stopped, as a suspended job is: it could not hear anybody.
            self._heard_at = dict.fromkeys(self._heard_at, now)
        self._looked_at = now
        for rank, heard_at in self._heard_at.items():
            if now - heard_at > SILENCE_S:
                return self.hosts.get(rank, f"of rank {rank}")
        return ""


def planned_layout(env: Mapping[str, str]) -> list[int]:
    """The ranks on each host, as hvdtrain's own launch tells them; empty for one host."""
    text = env.get(RANKS_PER_HOST)
    return expand_counts(text, RANKS_PER_HOST) if text else []
