"""The network between the hosts, chosen from what they report of themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hvdtrain.errors import InputError
from hvdtrain.launch.plan import Network
from hvdtrain.topology.hosts import Placement

# Cards that lead nowhere beyond their host: loopback, container and virtual machine bridges.
_INSIDE = re.compile(r"lo\d*|br-[0-9a-f]+|(docker|virbr|veth|vnet|cni|flannel|cali|podman|lxc|lxd)[\w.-]*")

Report = Mapping[str, Any]


def choose_network(reports: Sequence[Report]) -> Network | None:
    """The fastest network that all hosts share, or else the cards that lead them to each other.

    Args:
        reports: One for each host, as ``host_report`` makes them; two or more.

    Returns:
        None where they neither share one nor have routes.
    """
    shared = set.intersection(*(_subnets(report) for report in reports))
    if shared:
        best = max(sorted(shared), key=lambda subnet: _rank(subnet, reports))
        cards = {card["name"] for report in reports for card in _usable(report) if card["subnet"] == best}
        return Network(tuple(sorted(cards)), (best,))
    routes = [{name for name in report["routes"] if not _INSIDE.fullmatch(name)} for report in reports]
    return Network(tuple(sorted(set.union(*routes)))) if all(routes) else None


def named_network(text: str, is_one_host: bool) -> Network:
    """The network of ``--nic``: cards by name, ``eth0`` or ``ib0,ib1``.

    Raises:
        InputError: A card that leads nowhere beyond its host, for a launch that leaves this machine.
    """
    names = tuple(text.split(","))
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_.@-]{1,15}", name):
            raise InputError(f"{text!r}", where="--nic", legal="auto, none or cards: eth0 or ib0,ib1")
        if not is_one_host and _INSIDE.fullmatch(name):
            raise InputError(
                f"{name} leads nowhere beyond its host",
                where="--nic",
                do="name a card of the network between the hosts, or use --nic auto",
            )
    return Network(names)


def refuse_shared_machine(placement: Placement, reports: Sequence[Report]) -> None:
    """Refuses two names of one machine: both would start a local rank 0, two ranks on one GPU.

    Raises:
        InputError: Names both.
    """
    seen: dict[str, str] = {}
    for host, report in zip(placement.hosts, reports, strict=True):
        other = seen.setdefault(report["machine"], host.name)
        if other != host.name:
            raise InputError(
                f"{other} and {host.name} are the same machine, {report['host']}",
                where=placement.source,
                legal="each machine once",
                do="keep one of them, with the slots that the machine has",
            )


def _usable(report: Report) -> list[Mapping[str, Any]]:
    return [card for card in report["cards"] if card["subnet"] and not _INSIDE.fullmatch(card["name"])]


def _subnets(report: Report) -> set[str]:
    return {str(card["subnet"]) for card in _usable(report)}


def _rank(subnet: str, reports: Sequence[Report]) -> tuple[bool, float, bool]:
    """Real cards before virtual ones, then by the speed of the slowest card, then what routes prefer."""
    cards = [[card for card in _usable(report) if card["subnet"] == subnet] for report in reports]
    is_physical = all(any(card["is_physical"] for card in own) for own in cards)
    is_route = all(
        any(card["name"] in report["routes"] for card in own)
        for own, report in zip(cards, reports, strict=True)
    )
    speed = min(max(card["speed_mbps"] for card in own) for own in cards)
    return is_physical, speed, is_route
