"""``--include`` and ``--exclude``: which hosts of a cluster, and which GPUs of a host.

The grammar follows DeepSpeed's launcher, with ``;`` between entries and Slurm's brackets in names::

    filter  = entry { ";" entry }
    entry   = hosts [ ":" gpus ]        hosts: a, n[1-3], [fe80::1], or without GPUs a list a,b
    gpus    = range { "," range }       range: 2 or 0-3

``a:2,0;b`` means GPUs 2 and 0 of a (local rank 0 takes GPU 2), and all of b.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches

from hvdtrain.errors import InputError
from hvdtrain.topology.hosts import Cluster, Host
from hvdtrain.topology.names import is_ipv6, machine_key, quoted
from hvdtrain.topology.nodelist import expand_nodelist

LEGAL_FILTER = "HOST or HOST:GPU,GPU, several of them separated by ';', as in 'a:0,1;n[2-4]'"

_ADDRESS = re.compile(r"\[([^\[\]]*)\]")
_GPUS = re.compile(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*")


@dataclass(frozen=True, slots=True)
class _Entry:
    """GPUs of some hosts, None for all of them; ``where`` is the option and the column."""

    hosts: tuple[str, ...]
    devices: tuple[int, ...] | None
    where: str


def select(cluster: Cluster, include: str | None = None, exclude: str | None = None) -> Cluster:
    """The cluster without the hosts and GPUs that the filters leave out; its order is kept.

    Args:
        cluster: All hosts.
        include: Only these; applied first. A host's GPUs are taken in the order given.
        exclude: Not these.

    Returns:
        The remaining hosts; where a filter names GPUs, with one slot for each that is left.

    Raises:
        InputError: With the column: a filter is wrong, names a host or GPU that the cluster has not,
            or a host twice; or nothing is left.
    """
    if include is not None:
        chosen = _by_host(cluster, include, "--include")
        kept = (_with(host, chosen[host.name]) for host in cluster.hosts if host.name in chosen)
        cluster = _left(cluster, kept, "--include")
    if exclude is not None:
        dropped = _by_host(cluster, exclude, "--exclude")
        cluster = _left(cluster, (_without(host, dropped) for host in cluster.hosts), "--exclude")
    return cluster


def _with(host: Host, devices: tuple[int, ...] | None) -> Host | None:
    return host if devices is None else _on(host, devices)


def _without(host: Host, dropped: dict[str, tuple[int, ...] | None]) -> Host | None:
    if host.name not in dropped:
        return host
    unwanted = dropped[host.name]
    return None if unwanted is None else _on(host, tuple(i for i in _devices(host) if i not in unwanted))


def _on(host: Host, devices: tuple[int, ...]) -> Host | None:
    """The host with one slot on each of these GPUs; None where there is none."""
    if not devices:
        return None
    in_order = devices == tuple(range(len(devices)))
    return replace(host, slots=len(devices), devices=None if in_order else devices)


def _devices(host: Host) -> tuple[int, ...]:
    return tuple(range(host.slots)) if host.devices is None else host.devices


def _left(cluster: Cluster, hosts: Iterator[Host | None], option: str) -> Cluster:
    kept = tuple(host for host in hosts if host is not None)
    if not kept:
        raise InputError(f"leaves no slot of {cluster.source}", where=option)
    return replace(cluster, hosts=kept)


def _by_host(cluster: Cluster, text: str, option: str) -> dict[str, tuple[int, ...] | None]:
    """The filter, checked against the cluster: host name as the cluster writes it -> GPUs."""
    known = {machine_key(host.name): host for host in cluster.hosts}
    chosen: dict[str, tuple[int, ...] | None] = {}
    for entry in _entries(text, option):
        for name in entry.hosts:
            host = known.get(machine_key(name))
            if host is None:
                raise _unknown(name, cluster, entry.where)
            if host.name in chosen:
                raise InputError(f"{name} stands twice in {quoted(text)}", where=entry.where)
            _check_devices(host, entry)
            chosen[host.name] = entry.devices
    return chosen


def _check_devices(host: Host, entry: _Entry) -> None:
    offered = _devices(host)
    for device in entry.devices or ():
        if device not in offered:
            raise InputError(
                f"{host.name} has no slot for GPU {device}",
                where=entry.where,
                legal=f"{host.name}: GPUs {', '.join(map(str, offered))}",
            )


def _unknown(name: str, cluster: Cluster, where: str) -> InputError:
    names = [host.name for host in cluster.hosts]
    close = get_close_matches(name, names[:1000], n=1)
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    do = f"did you mean {close[0]}?" if close else ""
    return InputError(f"{cluster.source} has no host {quoted(name)}", where=where, legal=shown, do=do)


def _entries(text: str, option: str) -> Iterator[_Entry]:
    begin = 0
    for word in text.split(";"):
        where = f"{option}, column {begin + len(word) - len(word.lstrip()) + 1}"
        begin += len(word) + 1
        if not word.strip():
            raise InputError(f"{quoted(text)} has an empty entry", where=where, legal=LEGAL_FILTER)
        yield _entry(word.strip(), where)


def _entry(word: str, where: str) -> _Entry:
    address = _ADDRESS.match(word)
    if address and is_ipv6(address[1]):
        hosts, rest = [address[1]], word[address.end() :]
        if rest and not rest.startswith(":"):
            raise InputError(f"{quoted(rest)} after {address[0]}", where=where, legal=LEGAL_FILTER)
        gpus = rest[1:] if rest else None
    else:
        listed, colon, after = word.partition(":")
        hosts, gpus = expand_nodelist(listed, where), after if colon else None
        if gpus is not None and re.search(r"[,\s]", re.sub(r"\[[^\]]*\]", "", listed.strip())):
            raise InputError(f"{quoted(word)} gives GPUs to a list", where=where, legal=LEGAL_FILTER)
    return _Entry(tuple(hosts), None if gpus is None else _parse_devices(gpus, word, where), where)


def _parse_devices(text: str, word: str, where: str) -> tuple[int, ...]:
    devices: list[int] = []
    for part in text.split(","):
        match = _GPUS.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError(
                f"{quoted(part)} in {quoted(word)} is no GPU index or range of them",
                where=where,
                legal=LEGAL_FILTER,
                do="separate hosts by ';'" if part.strip()[:1].isalpha() else "",
            )
        devices += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(devices)) < len(devices):
        raise InputError(f"{quoted(word)} names a GPU twice", where=where)
    return tuple(devices)
