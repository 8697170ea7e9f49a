"""Reads what a user says of throughputs that somebody measured: rows, counts, a model's size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hvdtrain.errors import InputError
from hvdtrain.scaling.measured_gates import NO_LIMITS, Limits
from hvdtrain.scaling.network import Network, read_network

MAX_GPUS = 1_000_000
_LARGEST = 1e15  # far above any rate or count, and no product of some is infinite
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_AMOUNT = re.compile(r"^(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d{1,2}))?\s*([kmbg]?)$", re.IGNORECASE)
_ROW = re.compile(r"^\s*(\d+)\s*[:=]\s*([0-9.eE+-]+)\s*$")


def read_rows(text: str) -> dict[int, float]:
    """GPUs and samples a second of a text such as ``1:872,8:6679``, in ascending order of GPUs.

    Raises:
        InputError: No rows, a row that is no such pair, a value that is not positive, a count named twice.
    """
    legal = "GPUS:SAMPLES_PER_S,... such as 1:872,8:6679"
    rows: dict[int, float] = {}
    for part in filter(str.strip, text.split(",")):
        match = _ROW.match(part)
        if not match:
            raise InputError(f"no row: {part.strip()!r}", where="--measured", legal=legal)
        gpus = _count(match[1], "--measured")
        try:
            value = float(match[2])
        except ValueError:
            raise InputError(f"no number: {match[2]!r}", where="--measured", legal=legal) from None
        if not 1 / _LARGEST <= value <= _LARGEST:
            told = f"the throughput of {gpus} GPUs is {match[2]}"
            raise InputError(told, where="--measured", legal=f"{1 / _LARGEST:g} to {_LARGEST:g}")
        if gpus in rows:
            do = "give their median as one row"
            raise InputError(f"{gpus} GPUs stand there twice", where="--measured", do=do)
        rows[gpus] = value
    if not rows:
        raise InputError("no rows", where="--measured", legal=legal)
    return dict(sorted(rows.items()))


def read_counts(text: str, where: str = "--predict") -> tuple[int, ...]:
    """Numbers of GPUs of a text such as ``16,32,64``, ascending, each once."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise InputError("no number of GPUs", where=where, legal="such as 16,32,64")
    return tuple(sorted({_count(word, where) for word in words}))


def read_amount(text: str, where: str = "--params") -> float:
    """A count such as ``25.6M``, ``335e6``, ``1.3B`` or ``138000000``."""
    match = _AMOUNT.match(text.strip().replace(",", "").replace("_", ""))
    value = float(match[1]) * 10.0 ** int(match[2] or 0) * _UNITS[match[3].lower()] if match else 0.0
    if not match or not 1 <= value <= _LARGEST:
        legal = f"such as 25.6M, 1.3B or 138000000, at most {_LARGEST:g}"
        raise InputError(f"no count: {text!r}", where=where, legal=legal)
    return value


def _count(word: str, where: str) -> int:
    if not (word.isdecimal() and len(word) <= 18 and 1 <= int(word) <= MAX_GPUS):
        raise InputError(
            f"no number of GPUs: {word!r}", where=where, legal=f"a whole number from 1 to {MAX_GPUS}"
        )
    return int(word)


@dataclass(frozen=True)
class Measured:
    """What somebody measured, and what is known of the job and the machine.

    Attributes:
        rows: Samples a second by number of GPUs, ascending.
        params: Parameters that are trained.
        predict: Numbers of GPUs to predict, ascending.
        max_gpus: The largest number of GPUs that there are to choose from; None for no limit.
        gpus_per_node: GPUs of a full node; None if not told.
        network: Name of the network, such as ``NVLink+100GbE-RDMA``, or a file of it; None if not told.
        batch_per_gpu: Samples of a micro-batch; None if not told.
        accumulate: Micro-batches a step.
        bytes_per_param: Bytes of a gradient's element on the wire: 4, or 2 with fp16 compression.
        price: Price of a GPU-hour; None if not told.
        samples: Samples that the cost is of.
        limits: What must hold.
    """

    rows: Mapping[int, float]
    params: float
    predict: tuple[int, ...]
    max_gpus: int | None = None
    gpus_per_node: int | None = None
    network: str | None = None
    batch_per_gpu: float | None = None
    accumulate: int = 1
    bytes_per_param: float = 4.0
    price: float | None = None
    samples: float = 1e6
    limits: Limits = NO_LIMITS

    def cost(self, gpus: int, throughput: float) -> float | None:
        """What the samples cost on so many GPUs at so many samples/s; None without a price."""
        return None if self.price is None else self.price * gpus * self.samples / throughput / 3600

    def machine(self) -> Network:
        """Its two levels, with priors for those that are not told.

        Raises:
            InputError: The network's file holds no usable fit, or its name is unknown.
        """
        network = read_network(self.network, self.node_size())
        inside, between = network.inside.link, network.between.link
        named_inside = inside is not None and inside.is_told and inside.inside
        if self.gpus_per_node is None and named_inside and between is not None and not between.is_told:
            return replace(network, between=network.inside)  # a machine with a switch: no GPUs leave it
        return network

    def node_size(self) -> int:
        """GPUs of a node; eight if not told, as most machines have."""
        return self.gpus_per_node or 8
