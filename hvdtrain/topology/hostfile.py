"""Hostfiles in the dialects people have, and the host lists of ``-H``.

One reader takes them all, because files wander from one launcher to another:

* Open MPI: ``node1 slots=4 max_slots=8``, blanks around ``=``, comments ``#``, ``//``, ``/* */``
  (orte/util/hostfile/hostfile_lex.l of Open MPI 4);
* Horovod, MPICH and Intel MPI: ``node1:4``;
* PBS and LSF node files: bare names, one line for each slot.

What is none of these is an error with file and line; nothing is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.topology.hosts import Cluster, Host
from hvdtrain.topology.names import is_ipv6, machine_key, parse_host, parse_slots, quoted

LEGAL_LINE = "HOST, HOST:4 or HOST slots=4 [max_slots=8], with #, // or /* */ comments"

_SLOTS_KEYS = frozenset({"slots", "count", "cpu"})
_LIMIT_KEYS = frozenset(f"{a}_{b}" for key in _SLOTS_KEYS for a, b in ((key, "max"), ("max", key)))
_USER_KEYS = frozenset({"user", "username", "user_name"})

_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|/\*[\s\S]*?\*/")
_SETTING = re.compile(r"([^\s=]+)\s*=\s*([^\s=]*)")
# A blank in a -H list ends it for the shell; the next word then looks like this.
_HOST_WITH_SLOTS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][A-Za-z0-9_.-]*):[0-9]+")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One mention of a host: ``number`` is its line, or its place in a -H list; bare: only a name."""

    number: int
    name: str
    slots: int
    max_slots: int | None
    bare: bool


def read_hostfile(path: Path) -> Cluster:
    """Reads a hostfile.

    Raises:
        InputError: The file cannot be read, or is no hostfile.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8", where=str(path), legal="a text file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read the hostfile: {reason}", where=str(path)) from None
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, name: str) -> Cluster:
    """Reads the text of a hostfile.

    A host without a count has one slot. Where all lines are bare names, a host that stands k times
    has k slots; in any other file a host that stands twice is an error.

    Args:
        text: All of the file.
        name: The file's name, for messages.

    Raises:
        InputError: With file, line, the offending text and what is legal.
    """
    lines = _without_comments(text.removeprefix("\ufeff"), name).split("\n")
    entries = [
        _parse_line(line.strip(), number, f"{name}:{number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not entries:
        raise InputError("no host in it", where=name, legal=LEGAL_LINE)
    return _merge(entries, name, f"{name}:", "lines")


def parse_host_list(text: str, following: Sequence[str] = (), source: str = "-H") -> Cluster:
    """Reads the list of ``-H``: ``a:2,b:2``; a bare name has one slot.

    Args:
        text: The list.
        following: The words after it, to notice a list that was written with blanks.
        source: The option, for messages.

    Raises:
        InputError: The list is wrong, or goes on after a blank.
    """
    words = text.split(",")
    if following and _HOST_WITH_SLOTS.fullmatch(following[0]):
        raise _blank_in_list(words, following, source)
    entries = []
    for number, word in enumerate(words, 1):
        if word.split() != [word]:
            fault = f"a blank in {quoted(word)}" if word.strip() else "an empty entry"
            raise InputError(
                f"{quoted(text)} has {fault}", where=source, legal="HOST:SLOTS,HOST:SLOTS without blanks"
            )
        host, slots = parse_host(word, source)
        entries.append(_Entry(number, host, slots or 1, None, slots is None))
    return _merge(entries, source, f"{source}, entry ", "entries")


def render_host_list(cluster: Cluster) -> str:
    """The cluster as ``a:2,b:2``, for mpirun and horovodrun; IPv6 addresses stand in brackets."""
    return ",".join(f"{_bracketed(host.name)}:{host.slots}" for host in cluster.hosts)


def render_hostfile(cluster: Cluster) -> str:
    """The cluster as a hostfile in Open MPI's dialect, one line for each host."""
    limits = ("" if host.max_slots is None else f" max_slots={host.max_slots}" for host in cluster.hosts)
    return "".join(
        f"{host.name} slots={host.slots}{limit}\n" for host, limit in zip(cluster.hosts, limits, strict=True)
    )


def _without_comments(text: str, name: str) -> str:
    """The text with blanks for its comments; line numbers stay."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _COMMENT.sub(lambda comment: " " + "\n" * comment[0].count("\n"), text)
    if "/*" in text:
        line = text.count("\n", 0, text.index("/*")) + 1
        raise InputError("the comment '/*' has no end", where=f"{name}:{line}", do="close it with '*/'")
    return text


def _parse_line(line: str, number: int, where: str) -> _Entry:
    word = line.split(None, 1)[0]
    settings = _parse_settings(line, len(word), where)
    slots, limit = settings.get("slots"), settings.get("max_slots")
    # With slots= there is no doubt where a bare IPv6 address ends.
    host, after_colon = (word, None) if settings and is_ipv6(word) else parse_host(word, where)
    if slots is not None and after_colon is not None:
        raise InputError(f"{quoted(line)} gives the slots twice", where=where, legal=LEGAL_LINE)
    # Without a count Open MPI takes the limit for it.
    count = slots or after_colon or limit or 1
    if limit is not None and limit < count:
        raise InputError(
            f"{quoted(line)}: max_slots {limit} is below slots {count}",
            where=where,
            legal="max_slots of at least slots",
        )
    return _Entry(number, host, count, limit, bare=after_colon is None and not settings)


def _parse_settings(line: str, begin: int, where: str) -> dict[str, int]:
    """The ``key=value`` pairs after the host, under the keys ``slots`` and ``max_slots``."""
    settings: dict[str, int] = {}
    rest = line[begin:].strip()
    while rest:
        match = _SETTING.match(rest)
        if match is None:
            raise InputError(f"{quoted(rest)} in {quoted(line)} is no setting", where=where, legal=LEGAL_LINE)
        key = _known_key(match[1], line, where)
        if key in settings:
            raise InputError(f"{quoted(line)} gives {key} twice", where=where, legal=LEGAL_LINE)
        settings[key] = parse_slots(match[2], f"{where}: {quoted(line)}", key)
        rest = rest[match.end() :].lstrip()
    return settings


def _known_key(key: str, line: str, where: str) -> str:
    plain = key.replace("-", "_")
    if plain in _SLOTS_KEYS:
        return "slots"
    if plain in _LIMIT_KEYS:
        return "max_slots"
    close = get_close_matches(plain, ("slots", "max_slots"), n=1)
    do = f"did you mean {close[0]}?" if close else ""
    if plain in _USER_KEYS:
        do = "set the user in ~/.ssh/config"
    raise InputError(f"{quoted(key)} in {quoted(line)} is no setting", where=where, legal=LEGAL_LINE, do=do)


def _merge(entries: Sequence[_Entry], source: str, prefix: str, noun: str) -> Cluster:
    """The hosts in order of their first mention, each once."""
    all_bare = all(entry.bare for entry in entries)
    firsts: dict[str, _Entry] = {}
    counts: dict[str, int] = {}
    returning = previous = ""
    for entry in entries:
        key = machine_key(entry.name)
        first = firsts.setdefault(key, entry)
        if first is not entry and not all_bare:
            raise InputError(
                f"{entry.name} stands twice, in {noun} {first.number} and {entry.number}",
                where=f"{prefix}{entry.number}",
                legal="each host once, or bare names only, one for each slot",
                do="add up its slots in one of them",
            )
        if first is not entry and previous != key:
            returning = returning or entry.name
        counts[key] = counts.get(key, 0) + entry.slots
        previous = key
    hosts = tuple(Host(first.name, counts[key], first.max_slots) for key, first in firsts.items())
    notice = f"{returning} comes back after other hosts; the ranks of a host are placed together"
    return Cluster(hosts, source, (notice,) if returning else ())


def _blank_in_list(words: Sequence[str], following: Sequence[str], source: str) -> InputError:
    """The error for ``-H a:2 b:2``; tells of hosts without slots as well."""
    more = []
    for word in following:
        if not _HOST_WITH_SLOTS.fullmatch(word):
            break
        more.append(word)
    listed = [*words, *more]
    empty = [word for word in listed if word.rpartition(":")[2].strip("0") == "" and ":" in word]
    without = "".join(f"; {word.rpartition(':')[0]} has no slots ({word})" for word in empty)
    kept = ",".join(word for word in listed if word not in empty)
    return InputError(
        f"{quoted(more[0])} after {quoted(','.join(words))} goes on with the list{without}",
        where=source,
        legal="one list, separated by commas",
        do=f"write {source} {kept}" if kept else "",
    )


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name
