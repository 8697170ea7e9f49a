"""--include and --exclude: hosts, GPUs, and refusals with the column."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.errors import InputError
from hvdtrain.topology.hosts import Cluster, Host, place
from hvdtrain.topology.selection import select

CLUSTER = Cluster((Host("a", 4), Host("b", 4), Host("n1", 2), Host("n2", 2), Host("fe80::1", 2)), "hosts")


def kept(
    include: str | None = None, exclude: str | None = None
) -> list[tuple[str, int, tuple[int, ...] | None]]:
    return [(host.name, host.slots, host.devices) for host in select(CLUSTER, include, exclude).hosts]


def test_no_filter():
    assert select(CLUSTER) is CLUSTER


@pytest.mark.parametrize(
    ("include", "hosts"),
    [
        ("a", [("a", 4, None)]),
        ("b;a", [("a", 4, None), ("b", 4, None)]),
        ("a:0,1;b", [("a", 2, None), ("b", 4, None)]),
        ("a:2,0", [("a", 2, (2, 0))]),
        ("a: 1-3 ; n[1-2]:1", [("a", 3, (1, 2, 3)), ("n1", 1, (1,)), ("n2", 1, (1,))]),
        ("a,n[1-2]", [("a", 4, None), ("n1", 2, None), ("n2", 2, None)]),
        ("[fe80::1]:1", [("fe80::1", 1, (1,))]),
        ("[fe80:0::1]", [("fe80::1", 2, None)]),
        ("A", [("a", 4, None)]),
    ],
)
def test_include(include, hosts):
    assert kept(include) == hosts


@pytest.mark.parametrize(
    ("exclude", "hosts"),
    [
        ("b;n[1-2];[fe80::1]", [("a", 4, None)]),
        ("b;n1;n2:0;[fe80::1]", [("a", 4, None), ("n2", 1, (1,))]),
        ("a:3;b:0-3;n1,n2;[fe80::1]", [("a", 3, None)]),
    ],
)
def test_exclude(exclude, hosts):
    assert kept(None, exclude) == hosts


def test_include_then_exclude():
    assert kept("a:3,2,1;b", "a:2;b") == [("a", 2, (3, 1))]


def test_ranks_get_the_chosen_gpus():
    ranks = place(select(CLUSTER, "a:3,1;n2:1")).ranks
    assert [(rank.host, rank.local_rank, rank.device) for rank in ranks] == [
        ("a", 0, 3),
        ("a", 1, 1),
        ("n2", 0, 1),
    ]


@pytest.mark.parametrize(
    ("include", "column", "offending"),
    [
        ("", 1, "empty entry"),
        ("a;", 3, "empty entry"),
        ("a; ;b", 4, "empty entry"),
        ("a;c", 3, "no host 'c'"),
        ("a:4", 1, "no slot for GPU 4"),
        ("a:0,x", 1, "'x' in 'a:0,x'"),
        ("a:0,b", 1, "separate hosts by ';'"),
        ("b; a:", 4, "''"),
        ("a:1-0", 1, "'1-0'"),
        ("a:0,0", 1, "names a GPU twice"),
        ("a;a:1", 3, "stands twice"),
        ("a,b:1", 1, "gives GPUs to a list"),
        ("n[1-]", 1, "column 3"),
        ("[fe80::1]1", 1, "'1'"),
        ("a@b", 1, "'@'"),
    ],
)
def test_refused(include, column, offending):
    for option, filters in (("--include", (include, None)), ("--exclude", (None, include))):
        with pytest.raises(InputError) as caught:
            select(CLUSTER, *filters)
        assert str(caught.value).startswith(f"{option}, column {column}: ")
        assert offending in str(caught.value)


def test_unknown_host_has_a_hint():
    with pytest.raises(
        InputError, match=r"hosts has no host 'n21'.*a, b, n1, n2 and 1 more; did you mean n2\?"
    ):
        select(CLUSTER, "n21")


def test_nothing_left():
    with pytest.raises(InputError, match="--exclude: leaves no slot"):
        select(CLUSTER, None, "a,b,n[1-2];[fe80::1]:0,1")


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text(alphabet="abn12:;,[]- "))
def test_any_text_selects_or_is_refused(text):
    with suppress(InputError):
        assert select(CLUSTER, text).hosts
