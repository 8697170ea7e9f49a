"""Whether a host's name means this machine."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtrain.topology.names import machine_key, names_machine

_HOSTS = Path("/etc/hosts")


def is_this_machine(host: str) -> bool:
    """Whether a name or an address is this machine's own, without asking a name server."""
    if names_machine(host, own_hostnames()):
        return True
    # the rest takes longer to find out
    addresses = own_addresses()
    return machine_key(host) in addresses | listed_names(addresses)


def own_names() -> set[str]:
    """All names and addresses of this machine that are known without asking a name server."""
    addresses = own_addresses()
    return own_hostnames() | addresses | listed_names(addresses)


def own_hostnames() -> set[str]:
    """What this machine calls itself, and the same without a domain."""
    name = machine_key(os.uname().nodename)
    return {name, name.partition(".")[0]}


def own_addresses() -> set[str]:
    """The addresses of this machine's network cards."""
    import socket

    import psutil

    return {
        machine_key(entry.address.partition("%")[0])
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }


def listed_names(addresses: set[str], path: Path = _HOSTS) -> set[str]:
    """The names that a hosts file gives to addresses; Debian gives a machine's own the address 127.0.1.1.

    Names of loopback addresses count as well: whatever such a name means, it means it on this machine only.
    """
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    names: set[str] = set()
    for line in lines:
        address, *listed = line.partition("#")[0].split() or [""]
        if machine_key(address) in addresses or address.startswith("127."):
            names.update(map(machine_key, listed))
    return names
