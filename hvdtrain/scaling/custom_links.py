"""Reads a link of one's own: a bandwidth such as ``200Mbit/s`` or ``12.5GB/s``, a latency such as ``1ms``."""

from __future__ import annotations

import re

from hvdtrain.errors import InputError

_MOST_DELAY_S = 10.0
_MOST_B_S = 1e13
_SECONDS = {"us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_DELAY = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|μs|ms|s)(?:\s+(?:delay|latency))?", re.IGNORECASE)
_APART = re.compile(r"(?:\s*[,/;]|\s+with|\s+and)?\s+", re.IGNORECASE)
# A capital B is bytes; nobody writes Gbit/s with one.
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KkMmGg])(i?)B(?:/s|ps)(?![A-Za-z])")

_AMBIGUOUS = re.compile(r"\d+(\.\d+)?\s*[KkMmGg]i?B")


def split_delay(text: str, where: str) -> tuple[str, float | None]:
    """A link's name and the seconds of latency after it: ``1GbE@2ms``, ``200Mbit/s, 1ms``, ``1GbE 1 ms``.

    Returns:
        The name, and None where no latency follows.

    Raises:
        InputError: What follows an ``@`` is no latency, or one of more than ten seconds.
    """
    name, at, delay = text.partition("@")
    if not at:
        match = re.fullmatch(rf"(.*?){_APART.pattern}{_DELAY.pattern}\s*", text, re.IGNORECASE)
        if not match:
            return text, None
        name, number, unit = match[1], match[2], match[3]
    else:
        found = _DELAY.fullmatch(delay.strip())
        if not found:
            raise InputError(f"no delay: {delay!r}", where=where, legal="such as 100Mbit@1ms, 10GbE@50us")
        number, unit = found[1], found[2]
    seconds = float(number) * _SECONDS[unit.lower()]
    if seconds > _MOST_DELAY_S:
        told = f"a message takes {seconds:g} s: {text.strip()!r}"
        raise InputError(told, where=where, legal=f"a latency of at most {_MOST_DELAY_S:g} s")
    return name, seconds


def counts_bytes(text: str) -> bool:
    """Whether a text names a bandwidth in bytes a second."""
    return bool(_BYTES.search(text))


def read_bytes_per_s(text: str, where: str) -> float | None:
    """The bandwidth in B/s of a text such as ``12.5GB/s`` (GB is 1e9, GiB 2^30 bytes), None of another.

    Raises:
        InputError: Bytes a second beside other words, or no such bandwidth that a link has.
    """
    if _AMBIGUOUS.fullmatch(text.strip()):
        told = f"{text.strip()!r} is an amount, not a speed"
        raise InputError(told, where=where, legal="25GB/s for bytes a second, 25Gbit/s or 25GbE for bits")
    found = _BYTES.search(text)
    if not found:
        return None
    if found[0] != text.strip():
        told = f"{found[0]} in {text.strip()!r} counts bytes, and a named link has a line rate in bits"
        legal = "12.5GB/s alone for what an allreduce reaches, or 100Gbit/s, 100GbE-RDMA for a line rate"
        raise InputError(told, where=where, legal=legal)
    power = "kmg".index(found[2].lower()) + 1
    speed = float(found[1]) * (1024.0**power if found[3] else 1000.0**power)
    if not 1e3 <= speed <= _MOST_B_S:
        raise InputError(f"no bandwidth of a link: {text.strip()!r}", where=where, legal="1kB/s to 10000GB/s")
    return speed
