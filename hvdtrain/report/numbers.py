"""Numbers as people read them: 83 ms, 1.2 GB, 84 %."""

from __future__ import annotations

from collections.abc import Callable

_TIMES = (
    (1e-3, "µs", 1e-6),
    (1.0, "ms", 1e-3),
    (120.0, "s", 1.0),
    (7200.0, "min", 60.0),
    (172_800.0, "h", 3600.0),
)
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def short(value: float) -> str:
    """Three digits that count, with separators: 0.00166, 12.5, 46,900."""
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.10g}"


def time_text(seconds: float) -> str:
    """Seconds in the unit that suits: 83 ms, 1.2 s, 35 min, 7.4 h, 3.1 d."""
    for limit, unit, size in _TIMES:
        if abs(seconds) < limit:
            return f"{short(seconds / size)} {unit}" if seconds else "0 s"
    return f"{short(seconds / 86_400)} d"


def bytes_text(num_bytes: float) -> str:
    """Bytes in powers of 1000, as disks and GPUs are sold: 102 MB."""
    value, unit = float(num_bytes), _SIZES[0]
    for unit in _SIZES:
        if value < 999.5 or unit == _SIZES[-1]:
            break
        value /= 1000
    return f"{short(value)} {unit}"


def percent(share: float, digits: int = 1) -> str:
    """A fraction in percent: 84.1 %."""
    text = f"{100 * share:.{digits}f}"
    return f"{text.removeprefix('-') if float(text) == 0 else text} %"


def span_text(low: float, high: float, write: Callable[[float], str]) -> str:
    """A range, its unit told once where both ends have the same: 20.6 to 37.7 min."""
    first, last = write(low), write(high)
    if first == last:
        return first
    value, _, unit = first.rpartition(" ")
    return f"{value if unit and last.endswith(f' {unit}') else first} to {last}"


def counted(number: float, word: str) -> str:
    """A count with its noun: 1 rank, 4 ranks."""
    return f"{number:,.0f} {word}" if number == 1 else f"{number:,.0f} {word}s"
