"""The network of a prediction: two levels, each measured or by name, and the time of an allreduce on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.scaling.collectives import Cost, CostOf, Wire, cheapest, fit_wire, hierarchical, ring
from hvdtrain.scaling.fields import Fields, read_document
from hvdtrain.scaling.links import UNKNOWN_INSIDE, Link, find_link, find_links, unknown_between
from hvdtrain.scaling.open_mpi import open_mpi

_MAKER = "hvdtrain bench allreduce --json"
_CYCLE_S = 1e-3  # Horovod's default
_BITS_BYTES = 16  # what ranks agree on in a cycle: a bit a tensor, up to 125 tensors
_MEASURED_SPREAD = 0.08  # of a fit whose residual is small


@dataclass(frozen=True)
class Level:
    """One level of the network.

    Attributes:
        wire: Its constants, fitted or from a name.
        spread: Standard deviation of the logarithm of its speed.
        source: Where the constants come from, in words.
        is_measured: Whether they were fitted to measurements; then only the algorithm of the fit is known.
        fixed_s: Seconds of each allreduce that do not depend on ranks, beyond an engine's cycle.
        link: The link by name that it is, None where it was measured.
        fitted: The algorithm of the fit.
    """

    wire: Wire
    spread: float
    source: str
    is_measured: bool
    fixed_s: float = 0.0
    link: Link | None = None
    fitted: CostOf = ring

    @property
    def on_gpu(self) -> bool:
        """Whether GPUs reduce, beside their arithmetic; where nobody told, they do."""
        return self.link is None or self.link.on_gpu

    def cost(self, num_bytes: float, ranks: int) -> Cost:
        """An allreduce over this level alone: of a measured one as fitted, else the cheapest."""
        if ranks == 1:
            return Cost(0.0, 0.0)
        if self.is_measured:
            cost = self.fitted(num_bytes, ranks, self.wire)
        else:
            cost = cheapest(num_bytes, ranks, self.wire)[1]
        return Cost(cost.latency_s + self.fixed_s, cost.transfer_s)

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

        Inside a node the cheapest algorithm, of a measured level the one that was fitted. Between nodes one
        pipelined ring through all ranks, as slow as the slower level; or, if asked for, the hierarchical one.
        """
        if ranks == 1:
            return Cost(0.0, 0.0)
        nodes, in_node = self.nodes(ranks), min(ranks, self.gpus_per_node)
        if nodes == 1:
            return self.inside.cost(num_bytes, ranks)
        if in_node == 1:
            return self.between.cost(num_bytes, nodes)
        if self.hierarchical:
            return hierarchical(num_bytes, in_node, nodes, self.inside.wire, self.between.wire)
        inside, between = self.inside.cost(num_bytes, ranks), self.between.cost(num_bytes, ranks)
        hops = self.between.cost(num_bytes, nodes).latency_s
        hops += self.inside.cost(num_bytes, in_node).latency_s
        hops -= min(self.inside.fixed_s, self.between.fixed_s)  # the engine is asked once
        return Cost(hops, max(inside.transfer_s, between.transfer_s))

    def agreement_s(self, ranks: int) -> float:
        """What ranks need to agree on a few bytes: the engine asks in each cycle what is ready on all.

        An allreduce of MPI, between nodes and inside of them; its latency alone.
        """
        nodes, in_node = self.nodes(ranks), min(ranks, self.gpus_per_node)
        parts = ((nodes, self.between), (in_node, self.inside))
        return sum(open_mpi(_BITS_BYTES, count, level.wire).latency_s for count, level in parts)


def named_level(link: Link) -> Level:
    """The level of a named link."""
    return Level(link.wire, link.spread, link.describe(), is_measured=False, link=link)


def read_network(text: str | None, gpus_per_node: int, library: str = "horovod") -> Network:
    """The network of ``--network``: a file that exists, else a name; None takes the priors of an unknown one.

    ``FILE+100Mbit@1ms`` is the file's network with another link between nodes, ``FILE+NVLink3`` inside.

    Args:
        text: What the user gave.
        gpus_per_node: Ranks of a full node.
        library: The engine that trains, whose own fits of a file come first.

    Raises:
        InputError: The file holds no usable fit, or the name is unknown.
    """
    if text is None:
        return _of_links(None, None, gpus_per_node)
    if _is_file(text):
        return _from_file(Path(text), gpus_per_node, library)
    path, _, name = text.rpartition("+")
    if path and _is_file(path):
        return _with_link(_from_file(Path(path), gpus_per_node, library), find_link(name))
    return _of_links(*find_links(text), gpus_per_node)


def _of_links(inside: Link | None, between: Link | None, gpus_per_node: int) -> Network:
    """Links by name, and the priors of those that are not told."""
    return Network(
        named_level(inside or UNKNOWN_INSIDE),
        named_level(between or unknown_between(gpus_per_node)),
        gpus_per_node,
    )


def _with_link(network: Network, link: Link) -> Network:
    """Another link; what the engine and the hosts take of each message between nodes stays as measured."""
    if link.inside:
        return replace(network, inside=named_level(link))
    old = network.between
    if not old.is_measured:
        return replace(network, between=named_level(link))
    if link.is_whole:
        alpha_s, source = link.alpha_s, f"{link.describe()}; the engine as {old.source}"
    else:
        alpha_s = old.wire.alpha_s + link.delay_s
        source = f"{replace(link, alpha_s=alpha_s).describe()}; messages and engine otherwise as {old.source}"
    wire = Wire(alpha_s, 1 / link.bandwidth_b_s)
    return replace(network, between=replace(old, wire=wire, spread=link.spread, source=source, link=link))


def _is_file(text: str) -> bool:
    path = Path(text)
    try:
        return path.suffix == ".json" or path.exists()
    except OSError as error:
        # Below a folder that may not be searched nothing can be seen, but no network's name looks like that:
        # the reading tells what is wrong. What is too long for a file's name is left to those who know names.
        return isinstance(error, PermissionError)


def _from_file(path: Path, gpus_per_node: int, library: str) -> Network:
    fields = read_document(path, "network file", _MAKER)
    if fields.values.get("kind") != "allreduce":
        raise fields.wrong("kind", "is not allreduce: this is no network file", do=f"write one with {_MAKER}")
    fits = [_fit(one) for one in fields.objects("fits")]
    if not fits:
        do = "measure at least two sizes on at least two ranks"
        raise fields.wrong("fits", "is empty: the network file has no fit", do=do)
    if _is_open_mpi(fields):
        fits = [_refit(one, fields) for one in fits]
    inside, between = (
        _level([one for one in fits if one.level == name], library) for name in ("inside", "between")
    )
    return Network(
        inside or between or named_level(UNKNOWN_INSIDE),
        between or named_level(unknown_between(gpus_per_node)),
        gpus_per_node,
    )


@dataclass(frozen=True)
class _Fit:
    level: str
    library: str
    ranks: int
    wire: Wire
    residual: float
    dtype: str = "float32"
    cost: CostOf = ring


def _fit(fields: Fields) -> _Fit:
    level = fields.text("level")
    if level not in ("inside", "between"):
        raise fields.wrong("level", f"is {level!r}", "inside, between")
    wire = Wire(fields.number("alpha_s"), fields.number("beta_s_per_byte"))
    if wire.alpha_s == wire.beta_s == 0:
        raise InputError(f"{fields.path} says that an allreduce takes no time", where=fields.file)
    dtype = str(fields.values.get("dtype", "float32"))
    return _Fit(
        level, fields.text("library"), fields.count("ranks", 2), wire, fields.number("residual"), dtype
    )


def _is_open_mpi(fields: Fields) -> bool:
    """Whether MPI's and, on CPUs, Horovod's allreduces are known to be Open MPI's."""
    return fields.values.get("device") == "cpu" and str(fields.values.get("mpi", "")).startswith("Open MPI")


def _refit(fit: _Fit, fields: Fields) -> _Fit:
    """The fit of a ring, which the file holds, made again with what Open MPI really did."""
    if fit.library not in ("horovod", "mpi"):
        return fit
    samples = [
        (one.number("bytes"), one.number("time_s"))
        for one in fields.objects("rows")
        if (one.text("library"), one.text("level"), one.text("dtype")) == (fit.library, fit.level, fit.dtype)
    ]
    if len({size for size, _ in samples}) < 2:  # only the fit was kept of what was measured
        return fit
    cost = open_mpi if fit.library == "mpi" else _engine_cost
    found = fit_wire(samples, fit.ranks, cost)
    return replace(fit, wire=found.wire, residual=found.residual, cost=open_mpi)


def _engine_cost(num_bytes: float, ranks: int, wire: Wire) -> Cost:
    """Open MPI's transfer; the constant part is mostly the engine's cycle, and the same for all sizes."""
    whole = open_mpi(num_bytes, ranks, wire)
    return Cost(2 * (ranks - 1) * wire.alpha_s, whole.transfer_s)


def _level(fits: list[_Fit], library: str) -> Level | None:
    """The level of the engine's own fit, or of the first; an engine's cycle is told apart from messages."""
    if not fits:
        return None
    own = next((one for one in fits if one.library == library), fits[0])
    wire, fixed = own.wire, 0.0
    if own.library == "horovod":
        bare = next((one for one in fits if one.library == "mpi" and one.ranks == own.ranks), None)
        constant = 2 * (own.ranks - 1) * own.wire.alpha_s
        wire, fixed = _without_cycle(own, constant, bare)
    speed = f"{1e-9 / wire.beta_s:.3g} GB/s" if wire.beta_s else "no limit of bandwidth"
    told = f"measured with {own.library} on {own.ranks} ranks"
    engine = f" and {fixed * 1e3:.2g} ms an allreduce" if fixed else ""
    source = f"{told}: {speed}, {wire.alpha_s * 1e6:.3g} us a message{engine}"
    spread = (_MEASURED_SPREAD**2 + own.residual**2) ** 0.5
    return Level(wire, spread, source, is_measured=True, fixed_s=fixed, fitted=own.cost)


def _without_cycle(own: _Fit, constant_s: float, bare: _Fit | None) -> tuple[Wire, float]:
    """The wire of messages alone, and what of an allreduce's constant part is neither theirs nor the cycle's.

    ``bench`` enqueues the next allreduce as soon as the last one has ended. Within a cycle of the last one's
    begin the engine sleeps: one allreduce a cycle. Later it has begun to agree without it, and the ranks
    agree twice.
    """
    if bare is None:
        # Without bare MPI beside it, a cycle's wait is taken to be the engine's, not the messages'.
        left = max(0.0, constant_s - _CYCLE_S)
        return replace(own.wire, alpha_s=left / (2 * (own.ranks - 1))), 0.0
    wire = replace(own.wire, alpha_s=bare.wire.alpha_s)
    messages = bare.cost(_BITS_BYTES, own.ranks, wire).latency_s
    agreement = open_mpi(_BITS_BYTES, own.ranks, wire).latency_s
    return wire, max(0.0, constant_s - max(_CYCLE_S, 2 * agreement + messages))
