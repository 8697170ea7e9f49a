"""What is to be measured: sizes, types, libraries, time. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hvdtrain.errors import InputError

# Bytes of an element, by PyTorch's names.
DTYPES = {"float32": 4, "float16": 2}
LIBRARIES = ("horovod", "mpi", "torch")
SMALLEST = 8
LARGEST_ON_GPUS = 256 << 20
# Memory that ranks share with their computing; 256 MiB would take most of a minute alone on a few cores.
LARGEST_ON_CPUS = 32 << 20
_LIMIT = 4 << 30  # MPI counts elements in 31 bits, and a buffer has to fit beside a model

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(I?B)?", re.IGNORECASE)
_LEGAL = "bytes such as 8, 64K, 1.5M or 1G (powers of 1024, also KB or KiB), lists 1M,4M and ranges 8..256M"


@dataclass(frozen=True)
class AllreduceRequest:
    """Measurements of one call.

    Attributes:
        sizes: Bytes of a buffer, ascending; empty for the usual range, which depends on the device.
        factor: From one size of the usual range to the next.
        dtypes: Names of ``DTYPES``.
        libraries: Names of ``LIBRARIES``; empty for all that are there.
        repeat: Repetitions of a size, at most.
        limit_s: About how long all measurements together may take.
        on_cpu: Whether buffers lie in the host's memory, though there are GPUs.
    """

    sizes: tuple[int, ...] = ()
    factor: int = 4
    dtypes: tuple[str, ...] = ("float32",)
    libraries: tuple[str, ...] = ()
    repeat: int = 200
    limit_s: float = 60.0
    on_cpu: bool = False

    def to_json(self) -> str:
        """As text, for the ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AllreduceRequest:
        """What ``to_json`` gave."""
        values = json.loads(text)
        lists = {name: tuple(values[name]) for name in ("sizes", "dtypes", "libraries")}
        return cls(**{**values, **lists})

    def sizes_on(self, has_gpu: bool) -> tuple[int, ...]:
        """The sizes that were asked for, or those of the usual range."""
        return self.sizes or size_range(
            SMALLEST, LARGEST_ON_GPUS if has_gpu else LARGEST_ON_CPUS, self.factor
        )


def parse_size(text: str, where: str = "--sizes") -> int:
    """Bytes from a text; K, M and G are powers of 1024, as in nccl-tests' size arguments.

    Raises:
        InputError: No size.
    """
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * _UNITS[found[2].upper()] if found else 0.0
    if not 1 <= size <= _LIMIT or size != int(size):
        raise InputError(f"{text.strip()!r} is no size of a buffer", where=where, legal=f"{_LEGAL}, up to 4G")
    return int(size)


def parse_sizes(text: str, factor: int = 4, where: str = "--sizes") -> tuple[int, ...]:
    """Sizes from a list of sizes and ranges, ascending and each once.

    Args:
        text: Such as ``8B..1MB,3M``. A range holds its first size times the powers of ``factor``, and its
            last.
        factor: From one size of a range to the next.
        where: What the text is, for messages.

    Raises:
        InputError: Not sizes, or a range that ends before it begins.
    """
    sizes: set[int] = set()
    for word in text.split(","):
        first, dots, last = word.partition("..")
        low = parse_size(first, where)
        high = parse_size(last, where) if dots else low
        if high < low:
            raise InputError(f"{word.strip()!r} ends before it begins", where=where, legal=_LEGAL)
        sizes.update(size_range(low, high, factor))
    return tuple(sorted(sizes))


def size_range(low: int, high: int, factor: int) -> tuple[int, ...]:
    """``low`` times the powers of ``factor`` below ``high``, and ``high``."""
    sizes = []
    while low < high:
        sizes.append(low)
        low *= factor
    return (*sizes, high)


def show_size(num_bytes: int) -> str:
    """Such as ``8 B``, ``1.5 KiB``, ``256 MiB``: which megabyte is meant cannot be mistaken."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.4g} {unit}"
    return f"{num_bytes} B"


def check_request(request: AllreduceRequest) -> None:
    """Refuses what cannot be measured, before anything is started.

    Raises:
        InputError: An unknown type or library, one twice, or a size that holds no whole number of elements.
    """
    _check_names(request.dtypes, tuple(DTYPES), "--dtype")
    _check_names(request.libraries, LIBRARIES, "--library")
    for dtype in request.dtypes:
        for size in request.sizes:
            if size % DTYPES[dtype]:
                raise InputError(
                    f"{size} bytes are no whole number of {dtype} elements",
                    where="--sizes",
                    legal=f"multiples of {DTYPES[dtype]}",
                )


def _check_names(names: Sequence[str], legal: Sequence[str], where: str) -> None:
    for name in names:
        if name not in legal:
            raise InputError(f"{name!r}", where=where, legal=", ".join(legal))
        if names.count(name) > 1:
            raise InputError(f"{name} stands twice", where=where, do="name each once")
