"""Names of hosts: when two are one machine, and how the user's text is quoted."""

from __future__ import annotations

import pytest

from hvdtrain.topology.names import is_ipv6, is_loopback, machine_key, quoted, whole_number


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
