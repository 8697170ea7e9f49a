"""What a host is called: ``host``, ``host:4``, ``[fe80::1]:4``; and when two names are one machine."""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address

from hvdtrain.errors import InputError

# One host; far above what any machine takes, so that a slip does not fill the memory.
MAX_SLOTS = 65_536
# The first character keeps a name from being taken for an option by ssh or mpirun.
HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
LEGAL_HOST = "a host name (letters, digits, '.', '-', '_') or an address"

_ADDRESS = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")
_BRACKETED = re.compile(r"\[([^\[\]]*)\](?::(.*))?")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")
_QUOTED_CHARS = 60


def quoted(text: str, position: int = 0) -> str:
    """The user's text in quotes for a message; of a long one the part around ``position``."""
    if len(text) <= _QUOTED_CHARS:
        return repr(text)
    begin = max(0, min(position - _QUOTED_CHARS // 2, len(text) - _QUOTED_CHARS))
    end = begin + _QUOTED_CHARS
    return f"{'...' if begin else ''}{text[begin:end]!r}{'...' if end < len(text) else ''}"


def is_ipv6(text: str) -> bool:
    """Whether the text is an IPv6 address, with or without a zone (``fe80::1%eth0``)."""
    return isinstance(_address(text), IPv6Address)


def is_loopback(name: str) -> bool:
    """Whether every machine means itself by this name: ``localhost``, ``127.0.0.1``, ``::1``."""
    address = _address(name)
    return name.casefold() == "localhost" if address is None else address.is_loopback


def machine_key(name: str) -> str:
    """A name in the form in which names are compared: no case, no final dot, an address in its short form."""
    text = name.casefold().rstrip(".")
    address = _address(text)
    return text if address is None else address.compressed


def names_machine(name: str, own: Collection[str]) -> bool:
    """Whether a name means the machine that has these names and addresses; asks no name server.

    A full name, ``n1.cluster``, means it too where the machine calls itself ``n1`` and knows no domain of
    its own: Open MPI takes the two for one host as well.

    Args:
        name: A host's name or address.
        own: The machine's names and addresses, as ``machine_key`` has them.
    """
    key = machine_key(name)
    if key in own or is_loopback(name):
        return True
    label = host_label(key)
    return label in own and not any(one.startswith(f"{label}.") for one in own)


def host_label(name: str) -> str:
    """What stands before the domain of a full name; empty for an address and for a name without a domain."""
    label, dot, _ = machine_key(name).partition(".")
    return label if dot and _address(name) is None else ""


def whole_number(text: str, highest: int) -> int | None:
    """The number that the text is, from 1 to ``highest``; None where it is anything else."""
    if not _WHOLE_NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if 1 <= number <= highest else None


def parse_slots(text: str, where: str, setting: str = "slots") -> int:
    """A number of slots.

    Raises:
        InputError: It is no whole number from 1 to ``MAX_SLOTS``.
    """
    number = whole_number(text, MAX_SLOTS)
    if number is None:
        raise InputError(
            f"{quoted(text)} is no number of {setting}",
            where=where,
            legal=f"a whole number from 1 to {MAX_SLOTS}",
            do="leave out a host that takes no ranks" if text.strip("0") == "" and text else "",
        )
    return number


def parse_host(word: str, where: str) -> tuple[str, int | None]:
    """Reads ``host``, ``host:4``, ``fe80::1``, ``[fe80::1]`` or ``[fe80::1]:4``.

    Returns:
        The name, an address without brackets, and the slots, None where none are given.

    Raises:
        InputError: It is none of these, or could be two of them.
    """
    if "@" in word:
        user, _, host = word.partition("@")
        raise InputError(
            f"{quoted(word)} names a user",
            where=where,
            legal="hosts without a user",
            do=f"write {host or 'the host'} and set 'User {user}' for it in ~/.ssh/config",
        )
    name, slots = _split(word, where)
    if not HOST_NAME.fullmatch(name) and not is_ipv6(name):
        do = "give a Slurm node list with --nodelist" if "[" in word else ""
        raise InputError(f"{quoted(word)} is no host", where=where, legal=LEGAL_HOST, do=do)
    return name, None if slots is None else parse_slots(slots, where, f"slots of {name}")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    if not _ADDRESS.fullmatch(text):  # saves most names of a long list an exception
        return None
    try:
        return ip_address(text)
    except ValueError:
        return None


def _split(word: str, where: str) -> tuple[str, str | None]:
    """The name and what stands for its slots, neither of them checked unless the name is an address."""
    if bracketed := _BRACKETED.fullmatch(word):
        if not is_ipv6(bracketed[1]):
            raise InputError(f"{quoted(word)} holds no IPv6 address", where=where, legal="[fe80::1]:4")
        return bracketed[1], bracketed[2]
    if word.count(":") < 2:
        name, colon, slots = word.partition(":")
        return name, slots if colon else None
    head, _, tail = word.rpartition(":")
    if is_ipv6(word) and not (is_ipv6(head) and tail.isdecimal()):
        return word, None
    meanings = f"[{head}]:{tail} or [{word}]" if is_ipv6(word) else f"[{head}]:{tail}"
    raise InputError(
        f"{quoted(word)} does not tell the address from the slots", where=where, do=f"write {meanings}"
    )
