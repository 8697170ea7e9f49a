import pytest

from hvdtrain.data.agreement import check_equal_batches, check_equal_lengths, check_world, name_ranks
from hvdtrain.errors import InputError


def test_equal_lengths_pass():
    check_equal_lengths([7, 7, 7])
    check_equal_lengths([0])


def test_lengths_that_differ_are_named_with_their_ranks():
    with pytest.raises(InputError) as caught:
        check_equal_lengths([1000, 1000, 998, 1000], "the validation data set")
    said = "the validation data set has different lengths: 1000 (ranks 0, 1, 3), 998 (rank 2);"
    assert str(caught.value).startswith(said)


def test_a_message_about_many_ranks_is_short():
    with pytest.raises(InputError) as caught:
        check_equal_lengths(list(range(1000)))
    assert "and 992 more" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_more_ranks_than_samples():
    with pytest.raises(InputError, match=r"^3 training samples for 7 ranks: ranks 3 to 6 .*at most 3 ranks"):
        check_world(3, 7)
    with pytest.raises(InputError, match=r"rank 0 would never have one; add samples"):
        check_world(0, 1)
    check_world(3, 7, "pad")
    check_world(7, 7)


def test_loaders_that_end_at_different_steps():
    check_equal_batches({0: 5, 1: 5})
    with pytest.raises(InputError, match=r"numbers of batches: 10 \(ranks 0, 1\), 11 \(rank 2\);"):
        check_equal_batches({2: 11, 0: 10, 1: 10})


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([4], "rank 4"), ([0, 1], "ranks 0, 1"), ([0, 2, 3, 4, 9], "ranks 0, 2 to 4, 9")],
)
def test_names_of_ranks(ranks, text):
    assert name_ranks(ranks) == text
