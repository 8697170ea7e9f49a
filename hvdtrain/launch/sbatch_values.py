"""The forms of sbatch's values that a user is likely to get wrong, judged before a job is submitted.

Only the form is judged: whether a partition allows the time, or a node has the memory, Slurm knows.

Source: sbatch(1) of Slurm 22.05, at --time, --mem, --array and --signal. What is legal here, sbatch 22.05.8
took; it also takes slips that are refused here, such as a time of "-5" or an array "0-15%".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hvdtrain.errors import InputError

_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|INFINITE|UNLIMITED", re.ASCII | re.IGNORECASE)
_MEMORY = re.compile(r"\d+([KMGT]B?)?", re.ASCII | re.IGNORECASE)
_ELEMENTS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_SIGNAL = re.compile(r"(?:[RB]:)?(?:(?:SIG)?([A-Z][A-Z0-9]*)|(\d{1,9}))(?:@(\d{1,9}))?", re.ASCII)
# Those whose names sbatch knows; it takes any other by its number.
_SIGNALS = frozenset(
    {
        *("HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1"),
        *("USR2", "URG", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "XCPU"),
    }
)
_MAX_SIGNAL = 64
_MAX_SIGNAL_TIME_S = 65535


def check_value(option: str, value: str, where: str) -> None:
    """Refuses a value that no sbatch would take; an option that is not known here may have any.

    Args:
        option: The option of sbatch by its long name: ``time``.
        value: What the user gave it.
        where: How the user calls the option, for the message.

    Raises:
        InputError: The value has none of the forms that sbatch(1) lists.
    """
    if option not in _FORMS:
        return
    is_legal, legal = _FORMS[option]
    if not is_legal(value):
        raise InputError(repr(value), where=where, legal=legal)


def _is_time(text: str) -> bool:
    return _TIME.fullmatch(text) is not None


def _is_memory(text: str) -> bool:
    return _MEMORY.fullmatch(text) is not None


def _is_array(text: str) -> bool:
    """Elements, which may stand in brackets, and after a ``%`` how many run at once."""
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    elements, sign, most = text.partition("%")
    if sign and not (_COUNT.fullmatch(most) and int(most)):
        return False
    return all(_is_range(part) for part in elements.split(","))


def _is_range(text: str) -> bool:
    match = _ELEMENTS.fullmatch(text)
    if match is None:
        return False
    first, last, step = match.groups()
    return int(last or first) >= int(first) and step != "0" * len(step or "")


def _is_signal(text: str) -> bool:
    match = _SIGNAL.fullmatch(text)
    if match is None:
        return False
    name, number, before_s = match.groups()
    is_known = name in _SIGNALS if name else 1 <= int(number) <= _MAX_SIGNAL
    return is_known and int(before_s or 0) <= _MAX_SIGNAL_TIME_S


_FORMS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "time": (
        _is_time,
        "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or "
        "days-hours:minutes:seconds: 90, 2:00:00, 1-12",
    ),
    "mem": (_is_memory, "a whole number and K, M (the default), G or T: 64G; 0 for all of a node's"),
    "array": (_is_array, "numbers, ranges, ranges with a step, and how many run at once: 0-15%4, 1,3,5-7:2"),
    "signal": (
        _is_signal,
        f"a signal's name or number and up to {_MAX_SIGNAL_TIME_S} seconds, after B: for the batch shell or "
        "R: for reservations: USR1@120, B:TERM@60",
    ),
}
