"""Which plans leave this machine, and what is asked of the hosts of those."""

import json
import os
import socket
import sys

import psutil
import pytest

from hvdtrain.launch.machine import survey_hosts
from hvdtrain.launch.plan import LaunchPlan, Network
from hvdtrain.topology.hosts import Cluster, Host, local_cluster, place

OWN_ADDRESS = next(
    one.address for card in psutil.net_if_addrs().values() for one in card if one.family == socket.AF_INET
)


def plan_of(*names, environ=None, **changes):
    cluster = Cluster(tuple(Host(name, 2) for name in names), "-H") if names else local_cluster(2)
    return LaunchPlan(place(cluster), ("true",), sys.executable, environ or {}, **changes)


@pytest.mark.parametrize(
    ("names", "is_one_host", "is_local"),
    [
        ((), True, True),
        (("127.0.0.1",), True, True),
        ((os.uname().nodename,), True, True),
        ((OWN_ADDRESS,), True, True),
        (("192.0.2.1",), True, False),  # of documentation, nobody's
        (("other.invalid",), True, False),
        (("a.invalid", "b.invalid"), False, False),
    ],
)
def test_one_host_need_not_be_this_machine(names, is_one_host, is_local):
    plan = plan_of(*names)
    assert (plan.is_one_host, plan.is_local) == (is_one_host, is_local)


@pytest.fixture
def asked(tmp_path):
    """An environment whose ssh answers for every host: 3 cores, a GPU, a card in one network."""
    card = {"name": "eth7", "subnet": "10.7.0.0/16", "is_physical": True, "speed_mbps": 1000}
    told = {"host": "HOST", "machine": "HOST", "cores": 3, "gpus": 1, "cards": [card], "routes": ["eth7"]}
    script = (
        f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\necho \'{json.dumps(told)}\' | sed "s/HOST/$2/g"\n'
    )
    (tmp_path / "ssh").write_text(script)
    (tmp_path / "ssh").chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_one_other_host_is_asked_but_has_no_network_to_choose(asked):
    plan, notes = survey_hosts(plan_of("a.invalid", environ=asked), is_needed=True)
    assert (plan.cores, plan.uses_gpus, plan.network, notes) == (3, True, None, ())


def test_no_choice_of_a_network_is_no_end_of_questions(asked):
    two = plan_of("a.invalid", "b.invalid", environ=asked)
    plan, notes = survey_hosts(two, is_needed=True, picks_network=False)
    assert (plan.cores, plan.uses_gpus, plan.network, notes) == (3, True, None, ())
    plan, notes = survey_hosts(two, is_needed=True)
    assert plan.network == Network(("eth7",), ("10.7.0.0/16",))
    assert notes == ("network 10.7.0.0/16 by eth7",)
