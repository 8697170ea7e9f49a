"""Which names are this machine's, on this very machine."""

from __future__ import annotations

import os

import psutil

from hvdtrain.launch.local import Local
from hvdtrain.launch.machine import plan_here
from hvdtrain.launch.names import is_this_machine, listed_names, own_names
from hvdtrain.topology.hosts import Cluster, Host, place

NAME = os.uname().nodename


def own_address():
    cards = psutil.net_if_addrs().values()
    addresses = [entry.address for entries in cards for entry in entries if entry.family.name == "AF_INET"]
    return addresses[-1]


def test_names_and_addresses_of_this_machine(monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", None)  # no name server is asked
    for name in (NAME, NAME.upper(), NAME.partition(".")[0], f"{NAME}.", "localhost", "::1", own_address()):
        assert is_this_machine(name), name
        plan = plan_here(place(Cluster((Host(name, 2),), "-H")), os.environ)
        assert plan.is_local
        assert Local().refusal(plan) == ""
    for name in (f"{NAME}0", "192.0.2.1", "example.org", "2001:db8::1"):
        assert not is_this_machine(name), name


def test_full_name_of_a_machine_that_calls_itself_by_its_short_one(monkeypatch):
    name = os.uname()
    short = os.uname_result((name.sysname, "gpu1", name.release, name.version, name.machine))
    monkeypatch.setattr("os.uname", lambda: short)
    assert is_this_machine("gpu1.cluster.example")
    assert not is_this_machine("gpu2.cluster.example")
    full = os.uname_result((name.sysname, "gpu1.cluster.example", name.release, name.version, name.machine))
    monkeypatch.setattr("os.uname", lambda: full)
    assert is_this_machine("gpu1")
    assert not is_this_machine("gpu1.other.example")
    assert {"gpu1", "gpu1.cluster.example", own_address()} <= own_names()


def test_names_in_a_hosts_file(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "127.0.0.1\tlocalhost\n127.0.1.1 gpu1.cluster.example gpu1 # Debian\n\n#10.0.0.5 no\n"
        "10.0.0.5 GPU1-ib\n10.0.0.6 gpu2-ib\nfd00:0::5 gpu1-six\n"
    )
    names = listed_names({"10.0.0.5", "fd00::5"}, path)
    assert names == {"localhost", "gpu1.cluster.example", "gpu1", "gpu1-ib", "gpu1-six"}
    assert listed_names({"10.0.0.5"}, tmp_path / "none") == set()
