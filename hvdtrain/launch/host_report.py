"""Runs on each host before a launch over several: its cores, GPUs and networks, as one line of JSON.

``python -m hvdtrain.launch.host_report PEER ...`` also tells by which network cards the host would reach its
peers. Nothing is sent to them: connecting a datagram socket only looks up the route.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from ipaddress import IPv6Interface, ip_interface
from pathlib import Path
from typing import Any

import psutil

from hvdtrain.launch.gpus import count_gpus

_CARDS = Path("/sys/class/net")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def report(peers: Sequence[str]) -> dict[str, Any]:
    """This host's facts.

    Args:
        peers: Names of the other hosts.

    Returns:
        ``host``, ``machine`` (what two names of one machine have in common), ``cores``, ``gpus``,
        ``cards`` (each with ``name``, ``subnet``, ``speed_mbps`` and ``is_physical``) and ``routes`` (names
        of the cards that lead to the peers).
    """
    cards = _cards()
    host = os.uname().nodename
    return {
        "host": host,
        "machine": f"{host} {_BOOT.read_text().strip() if _BOOT.is_file() else ''}",
        "cores": len(os.sched_getaffinity(0)),
        "gpus": count_gpus(os.environ),
        "cards": [{name: value for name, value in card.items() if name != "address"} for card in cards],
        "routes": sorted({name for peer in peers if (name := _route(peer, cards))}),
    }


def _cards() -> list[dict[str, Any]]:
    """The network cards that are up and have an address, one entry for each address."""
    found = []
    stats = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if name not in stats or not stats[name].isup:
            continue
        for entry in addresses:
            if entry.family not in (socket.AF_INET, socket.AF_INET6) or not entry.netmask:
                continue
            address = entry.address.partition("%")[0]
            found.append(
                {
                    "name": name,
                    "address": address,
                    "subnet": _subnet(address, entry.netmask),
                    "speed_mbps": stats[name].speed,
                    # bridges, tunnels and the like have no device behind them; nor have a namespace's cards
                    "is_physical": (_CARDS / name / "device").exists(),
                }
            )
    return found


def _subnet(address: str, netmask: str) -> str:
    """The network in CIDR notation; empty for link-local ones, which are the same everywhere."""
    interface = ip_interface(f"{address}/{_prefix_length(netmask)}")
    is_only_local = interface.is_link_local and isinstance(interface, IPv6Interface)
    return "" if is_only_local else str(interface.network)


def _prefix_length(netmask: str) -> str:
    """IPv4 masks are understood as they are; of an IPv6 mask the bits have to be counted."""
    if ":" not in netmask:
        return netmask
    return str(bin(int.from_bytes(socket.inet_pton(socket.AF_INET6, netmask.partition("/")[0]))).count("1"))


def _route(peer: str, cards: Sequence[dict[str, Any]]) -> str:
    """The card by which packets to a peer leave; empty where there is no route or it is this host."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            own = probe.getsockname()[0].partition("%")[0]
    except OSError:
        return ""
    return next((card["name"] for card in cards if card["address"] == own), "")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report(sys.argv[1:])) + "\n")
