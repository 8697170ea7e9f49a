from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from hvdtrain.config import SamplingConfig
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition
from hvdtrain.data.sampling import LengthGrouped, Weighted, build_sampling
from hvdtrain.errors import InputError


def drawn(sampling, epoch=0):
    return sampling.order(epoch).take(np.arange(sampling.num_samples, dtype=np.uint64)).tolist()


weight_lists = st.lists(st.floats(0, 1e6) | st.just(0.0), min_size=1, max_size=400).filter(
    lambda weights: sum(weights) > 1e-3
)
length_lists = st.lists(st.integers(0, 500), min_size=1, max_size=400)


def samplings(values):
    yield LengthGrouped(values, 3, 7)
    if sum(values):
        yield Weighted(values, 3)
    yield Weighted.by_class(values, 3)


@settings(deadline=None, max_examples=60)
@given(length_lists, st.integers(0, 5))
def test_single_and_many_positions_agree(values, epoch):
    for sampling in samplings(values):
        order = sampling.order(epoch)
        positions = np.arange(sampling.num_samples, dtype=np.uint64)[::-1].copy()
        assert order.take(positions).tolist() == [order.at(position) for position in positions.tolist()]
        assert order.take(positions[:, None]).shape == (len(values), 1)
        assert order.take(positions).dtype == np.uint64


@settings(deadline=None, max_examples=60)
@given(length_lists, st.integers(1, 5), st.integers(1, 9), st.integers(1, 5), st.integers(0, 6))
def test_they_split_and_resume_like_a_shuffle(values, before, batch, after, num_steps):
    for sampling in samplings(values):
        one = Partition(len(values), before, global_batch=batch, sampling=sampling)
        steps = list(zip(*(one.steps(rank, 2) for rank in range(before)), strict=True))[:num_steps]
        consumed = steps[-1][0].consumed if steps else 0
        read = [sample for shares in steps for share in shares for sample in share.indices]
        two = Partition(len(values), after, global_batch=batch + 1, sampling=sampling)
        read += [sample for rank in range(after) for sample in two.indices(rank, 2, consumed)]
        assert sorted(read) == sorted(drawn(sampling, 2))


# --- weights


def test_equal_weights_draw_each_sample_once():
    for weight in (1, 0.1, 7e-9):
        sampling = Weighted([weight] * 1000, 0)
        assert sorted(drawn(sampling)) == list(range(1000))
    assert drawn(sampling, 0) != drawn(sampling, 1)
    assert drawn(sampling, 1) == drawn(Weighted([1] * 1000, 0), 1)
    assert drawn(sampling, 1) != drawn(Weighted([1] * 1000, 1), 1)


def test_counts_by_hand():
    # 8 draws: weights 4, 2, 1, 1 and four zeros are 4, 2, 1 and 1 of 8
    assert Counter(drawn(Weighted([4, 0, 2, 0, 0, 1, 0, 1], 5))) == {0: 4, 2: 2, 5: 1, 7: 1}


@settings(deadline=None, max_examples=200)
@given(weight_lists, st.integers(0, 3))
def test_counts_follow_weights(weights, epoch):
    counts = Counter(drawn(Weighted(weights, 1), epoch))
    for sample, weight in enumerate(weights):
        expected = len(weights) * weight / sum(weights)
        assert abs(counts[sample] - expected) < 2 + 1e-6
        assert weight or not counts[sample]


def test_rare_draws_are_as_frequent_as_their_weight_says():
    # 50 samples of weight 1 and 50 of weight 9: the former are drawn 0.2 times per epoch
    sampling = Weighted([1, 9] * 50, 7)
    counts = np.zeros(100)
    for epoch in range(2000):
        np.add.at(counts, sampling.order(epoch).take(np.arange(100, dtype=np.uint64)).astype(int), 1)
    # the variance of a count is at most its mean, 400: six deviations are 120
    assert abs(counts[::2] - 400).max() < 120
    assert abs(counts[1::2] - 3600).max() < 120


def test_the_places_of_a_sample_are_shuffled():
    places = np.array([drawn(Weighted([1] * 300, 0), epoch).index(0) for epoch in range(300)])
    assert abs(places.mean() - 149.5) < 30  # 300 / sqrt(12 * 300) = 5 is one deviation


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1, -2.5, -3], "weight -2.5 of sample 1 is negative"),
        ([1, float("nan")], "weight of sample 1 is nan"),
        ([float("inf"), 1], "weight of sample 0 is inf"),
        ([0, 0.0], "all weights are 0"),
        ([], "there are no weights"),
        ([[1, 2]], r"weights are an array of shape \(1, 2\)"),
        (["a"], "weights are an array of shape"),
    ],
)
def test_wrong_weights(weights, said):
    with pytest.raises(InputError, match=rf"^data.sampling: {said}"):
        Weighted(weights, 0)


# --- classes


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-3, 9), min_size=1, max_size=400), st.integers(0, 3))
def test_classes_are_drawn_equally_often(targets, epoch):
    counts = Counter(targets[sample] for sample in drawn(Weighted.by_class(targets, 4), epoch))
    expected = len(targets) / len(set(targets))
    assert all(abs(counts[target] - expected) < 2 for target in set(targets))


def test_samples_of_a_class_take_turns():
    targets = [0] * 90 + [1] * 10
    counts = Counter(drawn(Weighted.by_class(targets, 0)))
    assert sum(counts[sample] for sample in range(90, 100)) == 50
    assert {counts[sample] for sample in range(90, 100)} <= {4, 5, 6}
    # another half of the large class in each epoch
    seen = {sample for epoch in range(12) for sample in drawn(Weighted.by_class(targets, 0), epoch)}
    assert seen == set(range(100))


def test_targets_that_are_no_classes():
    with pytest.raises(InputError, match=r"^data.sampling: targets are an array of .* float64"):
        Weighted.by_class([0.5, 1.0], 0)


# --- lengths


@settings(deadline=None, max_examples=100)
@given(length_lists, st.integers(1, 40), st.integers(0, 3))
def test_each_sample_once_and_like_lengths_in_a_step(lengths, group, epoch):
    order = drawn(LengthGrouped(lengths, 2, group), epoch)
    assert sorted(order) == list(range(len(lengths)))
    window = group * 50
    for start in range(0, len(order), window):
        part = order[start : start + window]
        groups = [[lengths[sample] for sample in part[at : at + group]] for at in range(0, len(part), group)]
        full = sorted((min(lot), max(lot)) for lot in groups if len(lot) == group)
        # the groups of a window overlap at their ends alone
        assert all(low[1] <= high[0] for low, high in pairwise(full))
        assert all(lot in (sorted(lot), sorted(lot, reverse=True)) for lot in groups)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=300), st.integers(1, 5), st.integers(1, 8))
def test_ranks_with_equally_many_samples_have_balanced_totals(lengths, num_ranks, batch):
    sampling = LengthGrouped(lengths, 2, batch * num_ranks)
    partition = Partition(len(lengths), num_ranks, batch, sampling=sampling)
    steps = zip(*(partition.steps(rank, 0) for rank in range(num_ranks)), strict=True)
    for shares in steps:
        held = [[lengths[sample] for sample in share.indices] for share in shares]
        every = [length for own in held for length in own]
        totals = [sum(own) for own in held if len(own) == len(held[0])]
        assert max(totals) - min(totals) <= max(every) - min(every)


def test_no_rank_has_the_shorter_samples_always():
    lengths = np.random.default_rng(0).integers(0, 1000, 6400)
    partition = Partition(6400, 2, 16, sampling=LengthGrouped(lengths, 0, 32))
    shorter = 0
    for one, two in zip(partition.steps(0, 0), partition.steps(1, 0), strict=True):
        shorter += lengths[list(one.indices)].sum() < lengths[list(two.indices)].sum()
    assert 70 <= shorter <= 130  # of 200; 100 on average, 7 is one deviation


def test_steps_come_in_no_order_of_length_and_save_padding():
    lengths = np.random.default_rng(0).integers(1, 1000, 3200)
    order = np.array(drawn(LengthGrouped(lengths, 0, 32)))
    longest = lengths[order].reshape(-1, 32).max(1)
    padded, plain = longest.sum() * 32, lengths.reshape(-1, 32).max(1).sum() * 32
    assert lengths.sum() / padded > 0.95 > 0.6 > lengths.sum() / plain
    ups = sum(one < two for one, two in pairwise(longest))
    assert 30 <= ups <= 70


def test_groups_are_shuffled_anew_in_each_window_and_epoch():
    lengths = list(range(400))
    sampling = LengthGrouped(lengths, 0, 4)  # two windows of 50 groups

    def arrangements(epoch):
        first = np.array(drawn(sampling, epoch)).reshape(2, 50, 4)[:, :, 0]
        return [row.argsort().argsort().tolist() for row in first]

    every = arrangements(0) + arrangements(1)
    assert len(set(map(tuple, every))) == 4


@pytest.mark.parametrize(
    ("lengths", "group", "said"),
    [
        ([3, -1], 2, "length -1 of sample 1 is negative"),
        ([3, float("nan")], 2, "length of sample 1 is nan"),
        ([3], 0, "group is 0"),
    ],
)
def test_wrong_lengths(lengths, group, said):
    with pytest.raises(InputError, match=rf"^data.sampling: {said}"):
        LengthGrouped(lengths, 0, group)


# --- from a job


def told(**attributes):
    dataset = TensorDataset(torch.arange(8))
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def test_a_job_names_its_sampling():
    assert build_sampling(SamplingConfig(), told(), 0, 4) is None
    balanced = build_sampling(
        SamplingConfig(name="balanced"), told(targets=torch.tensor([0] * 6 + [1, 1])), 0, 4
    )
    assert sum(sample > 5 for sample in drawn(balanced)) == 4
    weighted = build_sampling(SamplingConfig(name="weighted"), told(weights=[1, 0] * 4), 0, 4)
    assert {sample % 2 for sample in drawn(weighted)} == {0}
    assert build_sampling(SamplingConfig(name="length"), told(lengths=range(8)), 0, 4).group == 4
    grouped = SamplingConfig(name="length", group=2)
    assert build_sampling(grouped, told(lengths=range(8)), 0, 4).group == 2


@pytest.mark.parametrize(
    ("name", "attributes", "said"),
    [
        (
            "balanced",
            {},
            r"the training data set \(TensorDataset\) tells no targets; legal: .*attribute targets",
        ),
        ("weighted", {"targets": [0] * 8}, "tells no weights"),
        ("length", {"lengths": [1] * 7}, "tells 7 lengths for 8 samples"),
        ("weighted", {"weights": [0] * 8}, "all weights are 0"),
    ],
)
def test_a_data_set_that_does_not_tell(name, attributes, said):
    with pytest.raises(InputError, match=rf"^data.sampling: .*{said}"):
        build_sampling(SamplingConfig(name=name), told(**attributes), 0, 4)


def test_a_group_is_for_lengths_alone():
    with pytest.raises(ValueError, match="group is not used by balanced"):
        SamplingConfig(name="balanced", group=3)


def test_a_sampling_of_other_data_is_refused():
    with pytest.raises(InputError, match="the sampling is of 3 samples, the partition of 4"):
        Partition(4, 1, 1, sampling=Weighted([1, 1, 1], 0))


def test_through_the_loader():
    sampling = Weighted.by_class([0] * 30 + [1] * 10, 0)
    counts = Counter()
    for rank in range(2):
        partition = Partition(40, 2, 4, sampling=sampling)
        with PartitionLoader(TensorDataset(torch.arange(40)), partition, rank) as loader:
            for batch in loader.batches(0):
                counts.update((batch.inputs[0] >= 30).tolist())
    assert counts == {False: 20, True: 20}
