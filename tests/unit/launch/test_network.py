"""The choice of a network, from reports as hosts make them."""

import os
from ipaddress import ip_network

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.host_report import report
from hvdtrain.launch.network import choose_network, named_network, refuse_shared_machine
from hvdtrain.launch.plan import Network
from hvdtrain.topology.hosts import Cluster, Host, place


def card(name, subnet, speed_mbps=1000, is_physical=True):
    return {"name": name, "subnet": subnet, "speed_mbps": speed_mbps, "is_physical": is_physical}


def host(*cards, routes=(), machine="m"):
    return {
        "host": machine,
        "machine": machine,
        "cores": 4,
        "gpus": 0,
        "cards": cards,
        "routes": list(routes),
    }


LOOP = card("lo", "127.0.0.0/8", 0, False)
DOCKER = card("docker0", "172.17.0.0/16", 10_000, False)
VIRBR = card("virbr0", "192.168.122.0/24", 10_000, False)


def test_shared_network_that_leads_somewhere():
    reports = [host(LOOP, DOCKER, VIRBR, card("eth0", "10.0.0.0/24")) for _ in range(3)]
    assert choose_network(reports) == Network(("eth0",), ("10.0.0.0/24",))


def test_fastest_of_two():
    slow, fast = card("eth0", "10.0.0.0/24", 1000), card("ib0", "10.1.0.0/16", 200_000)
    assert choose_network([host(slow, fast), host(fast, slow)]).interfaces == ("ib0",)
    assert choose_network([host(slow, fast), host(slow)]).interfaces == ("eth0",)


def test_cards_of_two_names_on_one_network():
    reports = [host(card("eno1", "10.0.0.0/24")), host(card("enp3s0", "10.0.0.0/24"))]
    assert choose_network(reports) == Network(("eno1", "enp3s0"), ("10.0.0.0/24",))


def test_networks_that_are_only_routed():
    reports = [
        host(DOCKER, card("eth0", "10.0.1.0/24"), routes=["eth0"]),
        host(DOCKER, card("eth1", "10.0.2.0/24"), routes=["eth1"]),
    ]
    assert choose_network(reports) == Network(("eth0", "eth1"))
    assert choose_network([reports[0], host(DOCKER, LOOP, routes=["docker0"])]) is None


def test_nic_that_the_user_names():
    assert named_network("ib0,ib1", is_one_host=False) == Network(("ib0", "ib1"))
    assert named_network("lo", is_one_host=True) == Network(("lo",))
    for name in ("lo", "docker0", "virbr0", "eth0,lo", "br-0a1b2c3d4e5f"):
        with pytest.raises(InputError, match="leads nowhere beyond its host"):
            named_network(name, is_one_host=False)
    with pytest.raises(InputError, match="--nic: 'a b'"):
        named_network("a b", is_one_host=False)


def test_one_machine_under_two_names():
    placement = place(Cluster((Host("a", 1), Host("b", 1)), "-H"))
    refuse_shared_machine(placement, [host(machine="x"), host(machine="y")])
    with pytest.raises(InputError, match="-H: a and b are the same machine, x"):
        refuse_shared_machine(placement, [host(machine="x"), host(machine="x")])


def test_this_machine_reports_itself():
    told = report(["127.0.0.1"])
    assert told["host"] == os.uname().nodename
    assert told["cores"] == len(os.sched_getaffinity(0))
    subnets = {one["name"]: one["subnet"] for one in told["cards"]}
    assert ip_network(subnets["lo"])
    assert told["routes"] == ["lo"]
