"""Names of hosts: when two are one machine, and how the user's text is quoted."""

from __future__ import annotations

import pytest

from hvdtrain.topology.names import (
    host_label,
    is_ipv6,
    is_loopback,
    machine_key,
    names_machine,
    quoted,
    whole_number,
)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Node-1", "node-1.", True),
        ("fe80:0:0::1", "FE80::1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("node-1", "node-01", False),
        ("node-1", "node-1.site", False),
        ("10.0.0.1", "10.0.0.10", False),
        ("dead.beef", "dead.beef", True),
    ],
)
def test_one_machine(one, other, same):
    assert (machine_key(one) == machine_key(other)) is same


def test_loopback():
    assert all(map(is_loopback, ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "0:0::1"]))
    assert not any(map(is_loopback, ["localhost2", "127.host", "10.0.0.1", "fe80::1", ""]))


@pytest.mark.parametrize(
    ("name", "own", "is_same"),
    [
        ("n1", {"n1"}, True),
        ("N1.", {"n1"}, True),
        ("localhost", {"n1"}, True),
        ("10.0.0.5", {"n1", "10.0.0.5"}, True),
        ("n1.cluster.example", {"n1"}, True),  # the machine knows no domain of its own
        ("n1.cluster.example", {"n1", "n1.cluster.example"}, True),
        ("n1.other.example", {"n1", "n1.cluster.example"}, False),
        ("n1", {"n1.cluster.example"}, False),  # own_hostnames has the short one too
        ("n10", {"n1"}, False),
        ("n2.cluster.example", {"n1"}, False),
        ("10.0.0.5", {"10"}, False),
    ],
)
def test_names_of_a_machine(name, own, is_same):
    assert names_machine(name, own) is is_same


def test_labels_of_full_names():
    assert [host_label(name) for name in ("N1.a.b", "n1", "n1.", "10.0.0.5", "fe80::1")] == [
        "n1",
        "",
        "",
        "",
        "",
    ]


def test_ipv6():
    assert all(map(is_ipv6, ["::1", "fe80::1%eth0", "2001:db8::1:4"]))
    assert not any(map(is_ipv6, ["10.0.0.1", "node", "fe80::1%a;b", "fe80::1%", ":", "fe80:::1", ""]))


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("007", 7), ("9", 9), ("10", None), ("0", None), ("-1", None), ("", None), ("1_0", None)],
)
def test_whole_number(text, number):
    assert whole_number(text, 9) == number


def test_quoting_keeps_the_place_in_sight():
    assert quoted("a\nb") == r"'a\nb'"
    assert quoted("a" * 60) == repr("a" * 60)
    text = "a" * 100 + "X" + "b" * 100
    assert quoted(text, 100) == f"...{'a' * 30 + 'X' + 'b' * 29!r}..."
    assert quoted(text) == f"{'a' * 60!r}..."
    assert quoted(text, 200) == f"...{'b' * 60!r}"
