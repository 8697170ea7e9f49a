"""The network of a prediction: two levels, each measured or by name, and the time of an allreduce on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.scaling.collectives import Cost, Wire, cheapest, hierarchical, ring
from hvdtrain.scaling.fields import Fields, read_document
from hvdtrain.scaling.links import UNKNOWN_BETWEEN, UNKNOWN_INSIDE, Link, find_link, find_links

_MAKER = "hvdtrain bench allreduce --json"
_CYCLE_S = 1e-3  # Horovod's default
_MEASURED_SPREAD = 0.08  # of a fit whose residual is small


@dataclass(frozen=True)
class Level:
    """One level of the network.

    Attributes:
        wire: Its constants, fitted or from a name.
        spread: Standard deviation of the logarithm of its speed.
        source: Where the constants come from, in words.
        is_measured: Whether they were fitted to measurements; then only the ring is known.
        fixed_s: Seconds of each allreduce that do not depend on ranks, such as an engine's cycle.
    """

    wire: Wire
    spread: float
    source: str
    is_measured: bool
    fixed_s: float = 0.0

    def faster(self, factor: float) -> Level:
        """The same level with ``factor`` times the bandwidth."""
        return replace(self, wire=replace(self.wire, beta_s=self.wire.beta_s / factor))


@dataclass(frozen=True)
class Network:
    """Two levels and how ranks are spread over nodes."""

    inside: Level
    between: Level
    gpus_per_node: int
    hierarchical: bool = False

    def nodes(self, ranks: int) -> int:
        """Nodes that ``ranks`` ranks take."""
        return -(-ranks // self.gpus_per_node)

    def allreduce(self, num_bytes: float, ranks: int) -> Cost:
        """The time of one buffer, in its two parts.

        Inside a node the cheapest algorithm, of a measured level the ring that was fitted. Between nodes one
        pipelined ring through all ranks, as slow as the slower level; or, if asked for, the hierarchical one.
        """
        if ranks == 1:
            return Cost(0.0, 0.0)
        nodes, in_node = self.nodes(ranks), min(ranks, self.gpus_per_node)
        if nodes == 1:
            return _cost(num_bytes, ranks, self.inside)
        if in_node == 1:
            return _cost(num_bytes, nodes, self.between)
        if self.hierarchical:
            return hierarchical(num_bytes, in_node, nodes, self.inside.wire, self.between.wire)
        inside, between = _cost(num_bytes, ranks, self.inside), _cost(num_bytes, ranks, self.between)
        hops = _cost(num_bytes, nodes, self.between).latency_s
        hops += _cost(num_bytes, in_node, self.inside).latency_s
        hops -= min(self.inside.fixed_s, self.between.fixed_s)  # the engine is asked once
        return Cost(hops, max(inside.transfer_s, between.transfer_s))


def _cost(num_bytes: float, ranks: int, level: Level) -> Cost:
    if level.is_measured:
        cost = ring(num_bytes, ranks, level.wire)
    else:
        cost = cheapest(num_bytes, ranks, level.wire)[1]
    return Cost(cost.latency_s + level.fixed_s, cost.transfer_s)


def named_level(link: Link) -> Level:
    """The level of a named link."""
    return Level(link.wire, link.spread, link.describe(), is_measured=False)


def read_network(text: str | None, gpus_per_node: int, library: str = "horovod") -> Network:
    """The network of ``--network``: a file that exists, else a name; None takes the priors of an unknown one.

    ``FILE+100Mbit@1ms`` is the file's network with another link between nodes.

    Args:
        text: What the user gave.
        gpus_per_node: Ranks of a full node.
        library: The engine that trains, whose own fits of a file come first.

    Raises:
        InputError: The file holds no usable fit, or the name is unknown.
    """
    if text is None:
        return Network(named_level(UNKNOWN_INSIDE), named_level(UNKNOWN_BETWEEN), gpus_per_node)
    if _is_file(text):
        return _from_file(Path(text), gpus_per_node, library)
    path, _, name = text.rpartition("+")
    if path and _is_file(path):
        return _with_link(_from_file(Path(path), gpus_per_node, library), find_link(name))
    inside, between = find_links(text)
    return Network(
        named_level(inside or UNKNOWN_INSIDE), named_level(between or UNKNOWN_BETWEEN), gpus_per_node
    )


def _with_link(network: Network, link: Link) -> Network:
    """Another link between nodes; what the engine and the hosts take of each message stays as measured."""
    old = network.between
    if not old.is_measured:
        return replace(network, between=named_level(link))
    wire = Wire(old.wire.alpha_s + link.delay_s, 1 / link.bandwidth_b_s)
    source = f"{link.describe()}; each message otherwise as {old.source}"
    return replace(network, between=replace(old, wire=wire, spread=link.spread, source=source))


def _is_file(text: str) -> bool:
    path = Path(text)
    try:
        return path.exists() or path.suffix == ".json"
    except OSError:
        return False


def _from_file(path: Path, gpus_per_node: int, library: str) -> Network:
    fields = read_document(path, "network file", _MAKER)
    if fields.values.get("kind") != "allreduce":
        raise fields.wrong("kind", "is not allreduce: this is no network file", do=f"write one with {_MAKER}")
    fits = [_fit(one) for one in fields.objects("fits")]
    if not fits:
        do = "measure at least two sizes on at least two ranks"
        raise fields.wrong("fits", "is empty: the network file has no fit", do=do)
    inside, between = (
        _level([one for one in fits if one.level == name], library) for name in ("inside", "between")
    )
    return Network(
        inside or between or named_level(UNKNOWN_INSIDE),
        between or named_level(UNKNOWN_BETWEEN),
        gpus_per_node,
    )


@dataclass(frozen=True)
class _Fit:
    level: str
    library: str
    ranks: int
    wire: Wire
    residual: float


def _fit(fields: Fields) -> _Fit:
    level = fields.text("level")
    if level not in ("inside", "between"):
        raise fields.wrong("level", f"is {level!r}", "inside, between")
    wire = Wire(fields.number("alpha_s"), fields.number("beta_s_per_byte"))
    if wire.alpha_s == wire.beta_s == 0:
        raise InputError(f"{fields.path} says that an allreduce takes no time", where=fields.file)
    return _Fit(level, fields.text("library"), fields.count("ranks", 2), wire, fields.number("residual"))


def _level(fits: list[_Fit], library: str) -> Level | None:
    """The level of the engine's own fit, or of the first; an engine's cycle is told apart from messages."""
    if not fits:
        return None
    own = next((one for one in fits if one.library == library), fits[0])
    messages, fixed = 2 * (own.ranks - 1), 0.0
    if own.library == "horovod":
        bare = next((one for one in fits if one.library == "mpi" and one.ranks == own.ranks), None)
        # Without bare MPI beside it, a cycle's wait is taken to be the engine's, not the messages'.
        most = own.wire.alpha_s - bare.wire.alpha_s if bare else min(own.wire.alpha_s, _CYCLE_S / messages)
        fixed = messages * max(0.0, most)
    wire = replace(own.wire, alpha_s=own.wire.alpha_s - fixed / messages)
    speed = f"{1e-9 / wire.beta_s:.3g} GB/s" if wire.beta_s else "no limit of bandwidth"
    told = f"measured with {own.library} on {own.ranks} ranks"
    engine = f" and {fixed * 1e3:.2g} ms an allreduce" if fixed else ""
    source = f"{told}: {speed}, {wire.alpha_s * 1e6:.3g} us a message{engine}"
    return Level(wire, (_MEASURED_SPREAD**2 + own.residual**2) ** 0.5, source, True, fixed)
