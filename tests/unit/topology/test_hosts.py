"""Placement: ranks in blocks, Horovod's cross ranks, refusals with numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.errors import InputError
from hvdtrain.topology.hosts import (
    MAX_RANKS,
    Cluster,
    Host,
    RankPlace,
    local_cluster,
    place,
    refuse_same_machine,
)


def cluster(**slots: int) -> Cluster:
    return Cluster(tuple(Host(name, count) for name, count in slots.items()), "test")


def test_unequal_hosts_by_hand():
    # a: ranks 0-2, b: rank 3, c: ranks 4-5. Local rank 1 exists on a and c, local rank 2 on a alone.
    assert place(cluster(a=3, b=1, c=2)).ranks == (
        RankPlace(0, "a", 0, 3, 0, 3, 0, None),
        RankPlace(1, "a", 1, 3, 0, 2, 1, None),
        RankPlace(2, "a", 2, 3, 0, 1, 2, None),
        RankPlace(3, "b", 0, 1, 1, 3, 0, None),
        RankPlace(4, "c", 0, 2, 2, 3, 0, None),
        RankPlace(5, "c", 1, 2, 1, 2, 1, None),
    )


@settings(max_examples=60, deadline=None)
@given(slots=st.lists(st.integers(1, 5), min_size=1, max_size=6), data=st.data())
def test_is_horovods_own_assignment(slots, data):
    horovod_hosts = pytest.importorskip("horovod.runner.common.util.hosts")
    num_ranks = data.draw(st.integers(1, sum(slots)))
    infos = [horovod_hosts.HostInfo(f"h{i}", count) for i, count in enumerate(slots)]
    theirs = horovod_hosts.get_host_assignments(infos, num_ranks, num_ranks)
    ours = place(Cluster(tuple(Host(f"h{i}", count) for i, count in enumerate(slots)), "test"), num_ranks)
    assert [
        (p.host, p.rank, p.local_rank, p.cross_rank, ours.size, p.local_size, p.cross_size)
        for p in ours.ranks
    ] == [
        (s.hostname, s.rank, s.local_rank, s.cross_rank, s.size, s.local_size, s.cross_size) for s in theirs
    ]


def test_fewer_ranks_leave_the_last_hosts_empty():
    placement = place(cluster(a=2, b=2, c=2), num_ranks=3)
    assert [p.host for p in placement.ranks] == ["a", "a", "b"]
    assert placement.hosts == (Host("a", 2), Host("b", 1))
    assert placement.cluster == Cluster((Host("a", 2), Host("b", 1)), "test")
    assert placement.ranks[0].cross_size == 2
    assert placement.ranks[1].cross_size == 1


def test_ranks_per_node():
    placement = place(cluster(a=4, b=4), ranks_per_node=2)
    assert [(p.host, p.local_rank) for p in placement.ranks] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert place(cluster(a=4, b=4), num_ranks=3, ranks_per_node=2).hosts == (Host("a", 2), Host("b", 1))


def test_devices_of_the_host():
    placement = place(Cluster((Host("a", 3, devices=(5, 2, 7)), Host("b", 1)), "test"), num_ranks=4)
    assert [p.device for p in placement.ranks] == [5, 2, 7, 0]
    assert placement.hosts == (Host("a", 3, devices=(5, 2, 7)), Host("b", 1))


def test_cores():
    placement = place(cluster(a=2, b=1), cores_per_rank=3)
    assert [p.cores for p in placement.ranks] == [(0, 1, 2), (3, 4, 5), (0, 1, 2)]


def test_more_ranks_than_slots_names_both_numbers():
    with pytest.raises(InputError, match=r"-np: 14 ranks asked for, but 3 hosts of test have 12 slots"):
        place(cluster(aa=4, bb=4, cc=4), num_ranks=14)


def test_more_ranks_than_ranks_per_node_allow():
    with pytest.raises(InputError, match=r"5 ranks asked for.*4 slots"):
        place(cluster(a=4, b=4), num_ranks=5, ranks_per_node=2)


def test_host_too_small_for_ranks_per_node_is_named():
    with pytest.raises(InputError, match="2 ranks per node, but b has 1 slot"):
        place(cluster(a=4, b=1), ranks_per_node=2)


@pytest.mark.parametrize("option", ["num_ranks", "ranks_per_node", "cores_per_rank"])
@pytest.mark.parametrize("value", [0, -1])
def test_counts_below_one(option, value):
    with pytest.raises(InputError, match=f"{value} is below 1"):
        place(cluster(a=4), **{option: value})


def test_too_many_ranks_are_refused_before_they_are_made():
    huge = Cluster(tuple(Host(f"n{i}", 65_536) for i in range(16)), "test")
    with pytest.raises(InputError, match=f"at most {MAX_RANKS} ranks"):
        place(huge)
    assert place(huge, num_ranks=2).size == 2


def test_local_cluster():
    assert place(local_cluster(2)).ranks[1] == RankPlace(1, "localhost", 1, 2, 0, 1, 1, None)


@pytest.mark.parametrize(
    "names",
    [
        ("localhost", "10.0.0.5"),
        ("127.0.0.1", "node-1"),
        ("Node-1", "node-1.site.example"),
        ("fd00:0:0::5", "localhost"),
        ("::1", "10.0.0.5"),
        ("n7", "n7.site.example"),
        ("N7.site.example", "n7"),
    ],
)
def test_one_machine_under_two_names(names):
    listed = Cluster((Host("other", 8), *(Host(name, 8) for name in names)), "-H")
    own = {"node-1", "node-1.site.example", "10.0.0.5", "fd00::5"}
    with pytest.raises(InputError, match="same machine") as caught:
        refuse_same_machine(listed, own)
    assert all(f"{name} (8 slots)" in str(caught.value) for name in names)


def test_other_machines_are_fine():
    refuse_same_machine(cluster(localhost=8, other=8), {"node-1", "10.0.0.5"})
    refuse_same_machine(cluster(a=8, b=8), {"node-1"})
    full = Cluster(tuple(Host(name, 8) for name in ("a.x", "b.x", "a.y", "10", "10.0.0.1")), "-H")
    refuse_same_machine(full, {"node-1"})


def test_full_name_beside_this_machines_own():
    with pytest.raises(InputError, match=r"localhost \(8 slots\) and node-1.site \(8 slots\) are the same"):
        refuse_same_machine(Cluster((Host("localhost", 8), Host("node-1.site", 8)), "-H"), {"node-1"})
