"""Where ranks sit, and what follows from it."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.topology.devices import Seat, check_seats
from hvdtrain.train.seats import Seating


def seating(*ranks):
    return Seating(
        [Seat(number, host) for number, (host, _) in enumerate(ranks)], [frozenset(c) for _, c in ranks]
    )


def test_ranks_that_share_cores_divide_them():
    shared = seating(("a", range(8)), ("a", range(8)), ("b", range(8)))
    assert [shared.threads(rank) for rank in range(3)] == [4, 4, 8]


def test_ranks_that_a_launcher_bound_keep_their_cores():
    bound = seating(("a", range(4)), ("a", range(4, 8)))
    assert [bound.threads(rank) for rank in range(2)] == [4, 4]


def test_more_ranks_than_cores_have_one_thread_each():
    assert seating(*[("a", range(2))] * 5).threads(3) == 1


def test_some_ranks_without_a_gpu_are_refused_with_their_host():
    check_seats([Seat(0, "a"), Seat(1, "b")])
    check_seats([Seat(0, "a", "GPU-1"), Seat(1, "a", "GPU-2")])
    with pytest.raises(InputError, match=r"1 of 2 ranks see no GPU.*host b"):
        check_seats([Seat(0, "a", "GPU-1"), Seat(1, "b")])
