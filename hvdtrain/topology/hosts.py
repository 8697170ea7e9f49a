"""Hosts, clusters, and the placement of ranks on them.

The words are Horovod's and MPI's. A host offers slots, one rank each. Ranks are placed in
blocks, host by host in the given order, as ``mpirun --map-by slot`` and ``horovodrun`` do:

* ``local_rank``, ``local_size``: index of a rank on its host, and the ranks there.
* ``cross_rank``, ``cross_size``: index of the host among the hosts that have this local rank,
  and how many those are. With unequal hosts they differ from one local rank to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import NamedTuple

from hvdtrain.errors import InputError
from hvdtrain.topology.names import host_label, machine_key, names_machine

# Far above any machine that exists; keeps a slip like slots=80000000 from filling the memory.
MAX_RANKS = 1_000_000


@dataclass(frozen=True, slots=True)
class Host:
    """One machine.

    Attributes:
        name: Name or address by which the launcher reaches it; an IPv6 address stands without brackets.
        slots: Ranks that it takes, at least 1.
        max_slots: The hard limit that a hostfile names, at least ``slots``; None where it names none.
        devices: GPU index of each slot; None means that slot i takes GPU i.
    """

    name: str
    slots: int
    max_slots: int | None = None
    devices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        assert self.slots >= 1, "parsers refuse hosts without slots"
        assert self.devices is None or len(self.devices) == self.slots, "one GPU per slot"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts in the order in which they are filled; each machine stands once.

    Attributes:
        hosts: At least one host.
        source: Where the list came from, for messages: a file name, ``-H``, a variable.
        notices: What the user should know about how the list was read; the caller prints them once.
    """

    hosts: tuple[Host, ...]
    source: str
    notices: tuple[str, ...] = ()

    @property
    def slots(self) -> int:
        """Ranks that all hosts take together."""
        return sum(host.slots for host in self.hosts)


class RankPlace(NamedTuple):
    """Where one rank runs.

    A tuple, because a placement may hold a hundred thousand of them.

    Attributes:
        rank: Global index, 0 to size - 1.
        host: Name of the host.
        local_rank: Index among the ranks of this host.
        local_size: Number of ranks on this host.
        cross_rank: Index of this host among the hosts that have this local rank.
        cross_size: Number of hosts that have this local rank.
        device: GPU index on the host; None where the rank uses none.
        cores: Indices into the cores that the host gives the job; None where ranks are not bound.
    """

    rank: int
    host: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    device: int | None
    cores: tuple[int, ...] | None


@dataclass(frozen=True)
class Placement:
    """Every rank's place, in rank order.

    Attributes:
        source: Where the hosts came from, for messages.
        ranks: Rank i at index i; the ranks of a host stand together.
    """

    source: str
    ranks: tuple[RankPlace, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts that hold ranks, in order, with as many slots as they hold ranks."""
        hosts, rank = [], 0
        while rank < self.size:
            hosts.append(self._host(self.ranks[rank]))
            rank += hosts[-1].slots
        return tuple(hosts)

    @property
    def cluster(self) -> Cluster:
        """What a launcher needs to make exactly this placement: the used hosts and slots."""
        return Cluster(self.hosts, self.source)

    def _host(self, first: RankPlace) -> Host:
        places = self.ranks[first.rank : first.rank + first.local_size]
        devices = tuple(place.device for place in places if place.device is not None)
        # Slot i on GPU i is what a host means without a list.
        listed = None if devices in ((), tuple(range(len(places)))) else devices
        return Host(first.host, first.local_size, devices=listed)


def place(
    cluster: Cluster,
    num_ranks: int | None = None,
    ranks_per_node: int | None = None,
    cores_per_rank: int | None = None,
) -> Placement:
    """Places ranks in blocks: fills the first host, then the next.

    Args:
        cluster: The hosts and their slots.
        num_ranks: Ranks in all; None takes every slot.
        ranks_per_node: Ranks on each host, at most its slots; None takes every slot.
        cores_per_rank: Cores that each rank is bound to, counted from the host's first; None binds none.

    Raises:
        InputError: A number is below 1, or above what the hosts offer.
    """
    for option, value in (
        ("-np", num_ranks),
        ("--ranks-per-node", ranks_per_node),
        ("--cores-per-rank", cores_per_rank),
    ):
        if value is not None and value < 1:
            raise InputError(f"{value} is below 1", where=option, legal="a whole number of at least 1")
    offered = _offered(cluster, ranks_per_node)
    counts = _filled(cluster, offered, num_ranks)
    return Placement(cluster.source, tuple(_places(cluster.hosts, counts, cores_per_rank)))


def local_cluster(slots: int) -> Cluster:
    """This machine alone, with that many slots."""
    return Cluster((Host("localhost", slots),), "this machine")


def refuse_same_machine(cluster: Cluster, own_names: Iterable[str]) -> None:
    """Refuses a list in which one machine stands under two names, as far as the names tell.

    Both entries would start a local rank 0, that is two ranks on one GPU; Open MPI may crash. Other names of
    one machine show when the hosts are asked about themselves.

    Args:
        cluster: The hosts.
        own_names: Names and addresses of this machine, as far as they are known.

    Raises:
        InputError: Two hosts are this machine, or a short name and a full one are the same.
    """
    own = {machine_key(name) for name in own_names}
    mine = [host for host in cluster.hosts if names_machine(host.name, own)]
    if len(mine) > 1:
        raise _twice(cluster, mine, ", this one")
    full = {label: host for host in cluster.hosts if (label := host_label(host.name))}
    for host in cluster.hosts if full else ():
        if other := full.get(machine_key(host.name)):
            raise _twice(cluster, [host, other], "")


def _twice(cluster: Cluster, hosts: Sequence[Host], which: str) -> InputError:
    names = " and ".join(f"{host.name} ({_num(host.slots, 'slot')})" for host in hosts)
    return InputError(
        f"{names} are the same machine{which}",
        where=cluster.source,
        legal="each machine once",
        do=f"keep one of them, with the slots that the machine has: {hosts[0].name}:{hosts[0].slots}",
    )


def _offered(cluster: Cluster, ranks_per_node: int | None) -> list[int]:
    """Slots of each host that may be used."""
    if ranks_per_node is None:
        return [host.slots for host in cluster.hosts]
    for host in cluster.hosts:
        if host.slots < ranks_per_node:
            raise InputError(
                f"{ranks_per_node} ranks per node, but {host.name} has {_num(host.slots, 'slot')}",
                where=cluster.source,
                do="lower --ranks-per-node, raise the host's slots, or leave the host out with --exclude",
            )
    return [ranks_per_node] * len(cluster.hosts)


def _filled(cluster: Cluster, offered: list[int], num_ranks: int | None) -> list[int]:
    """Ranks of each host, host by host until all are placed."""
    total = sum(offered)
    wanted = total if num_ranks is None else num_ranks
    if wanted > total:
        raise InputError(
            f"{_num(wanted, 'rank')} asked for, but {_num(len(offered), 'host')} of {cluster.source} "
            f"{'has' if len(offered) == 1 else 'have'} {_num(total, 'slot')}",
            where="-np",
            do="ask for fewer ranks or name more slots; slots are never oversubscribed",
        )
    if wanted > MAX_RANKS:
        raise InputError(f"{wanted} ranks", where=cluster.source, legal=f"at most {MAX_RANKS} ranks")
    counts = []
    for slots in offered:
        counts.append(min(slots, wanted))
        wanted -= counts[-1]
    return counts


def _places(hosts: Sequence[Host], counts: list[int], cores_per_rank: int | None) -> Iterator[RankPlace]:
    """The ranks in order; ``counts[i]`` of them on ``hosts[i]``."""
    sharing = Counter(counts)
    # cross_sizes[i]: hosts with more than i ranks, that is with a local rank i.
    cross_sizes = [
        sum(num for count, num in sharing.items() if count > local_rank) for local_rank in range(max(counts))
    ]
    seen = [0] * len(cross_sizes)
    cores = [_cores(local_rank, cores_per_rank) for local_rank in range(len(cross_sizes))]
    rank = 0
    for host, count in zip(hosts, counts, strict=True):
        # A column for each field, the shortest (local ranks) ends them all.
        yield from map(
            RankPlace,
            range(rank, rank + count),
            repeat(host.name),
            range(count),
            repeat(count),
            tuple(seen[:count]),
            cross_sizes,
            host.devices or range(count),
            cores,
        )
        for local_rank in range(count):
            seen[local_rank] += 1
        rank += count


def _cores(local_rank: int, per_rank: int | None) -> tuple[int, ...] | None:
    return None if per_rank is None else tuple(range(local_rank * per_rank, (local_rank + 1) * per_rank))


def _num(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
