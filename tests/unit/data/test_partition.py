import sys
import tracemalloc
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.data.partition import Partition, Step
from hvdtrain.errors import InputError
from hvdtrain.process import command, run


def all_indices(partition, epoch=0, consumed=0):
    return [list(partition.indices(rank, epoch, consumed)) for rank in range(partition.num_ranks)]


def all_steps(partition, epoch=0, consumed=0):
    """For each step the shares of all ranks."""
    ranks = range(partition.num_ranks)
    return list(zip(*(partition.steps(rank, epoch, consumed) for rank in ranks), strict=True))


partitions = st.tuples(
    st.integers(0, 700),
    st.integers(1, 9),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from(["weight", "pad", "drop"]),
    st.booleans(),
)


def has_data(samples, ranks, batch, is_global, tail, shuffle):
    """Whether a partition with these arguments is legal."""
    size = batch if is_global else batch * ranks
    return tail == "weight" or samples >= (size if tail == "drop" else 1)


def built(samples, ranks, batch, is_global, tail, shuffle):
    size = {"global_batch": batch} if is_global else {"batch_size": batch}
    return Partition(samples, ranks, tail=tail, shuffle=shuffle, seed=7, **size)


# --- cases D1, D3, D5, D7: what people met with other samplers


@pytest.mark.parametrize(
    ("samples", "ranks", "tail", "expected"),
    [
        (3, 7, "pad", [[0], [1], [2], [0], [1], [2], [0]]),
        (4, 9, "pad", [[0], [1], [2], [3], [0], [1], [2], [3], [0]]),
        (10, 4, "pad", [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]),
        (10, 4, "drop", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (10, 4, "weight", [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
        (3, 7, "weight", [[0], [1], [2], [], [], [], []]),
    ],
)
def test_tail(samples, ranks, tail, expected):
    assert all_indices(Partition(samples, ranks, 1, tail=tail, shuffle=False)) == expected
    assert all_indices(Partition(samples, ranks, global_batch=ranks, tail=tail, shuffle=False)) == expected


def test_drop_that_leaves_nothing_is_an_error():
    with pytest.raises(InputError, match=r"no data per rank: 3 samples over 7 ranks .* step of 7"):
        Partition(3, 7, 1, tail="drop")


def test_pad_of_an_empty_data_set_is_an_error():
    with pytest.raises(InputError, match=r"no data per rank: 0 samples"):
        Partition(0, 2, 1, tail="pad")


def test_padding_pushes_out_no_real_sample():
    partition = Partition(9, 4, 2, tail="drop", shuffle=False)
    assert [[sample + 1 for sample in rank] for rank in all_indices(partition)] == [
        [1, 5],
        [2, 6],
        [3, 7],
        [4, 8],
    ]


def test_uneven_batches_end_together():
    # 31 batches over 3 ranks: 10, 10 and 11 where each rank counts its own
    steps = all_steps(Partition(31 * 4, 3, 4, shuffle=False))
    assert [[len(share.indices) for share in shares] for shares in steps] == [[4, 4, 4]] * 10 + [[2, 1, 1]]
    assert steps[-1][0].global_count == 4


def test_epochs_reshuffle_and_a_resumed_epoch_is_the_same():
    partition = Partition(22, 2, 3, shuffle=True, seed=0)
    epochs = [all_indices(partition, epoch) for epoch in range(3)]
    assert all(sorted(ranks[0] + ranks[1]) == list(range(22)) for ranks in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert all_indices(Partition(22, 2, 3, shuffle=True, seed=0), 2) == epochs[2]


def test_ranks_share_one_permutation():
    order = Partition(22, 1, 22, seed=4).indices(0, 1)
    ranks = all_indices(Partition(22, 2, 1, seed=4), 1)
    assert [sample for pair in zip(*ranks, strict=True) for sample in pair] == list(order)


# --- laws that hold for every partition


@settings(deadline=None, max_examples=300)
@given(partitions, st.integers(0, 3))
def test_laws(arguments, epoch):
    if not has_data(*arguments):
        with pytest.raises(InputError, match="no data per rank"):
            built(*arguments)
        return
    partition = built(*arguments)
    samples, size = partition.num_samples, partition.step_size
    steps = all_steps(partition, epoch)  # strict zip: all ranks take equally many steps
    assert len(steps) == partition.num_steps()
    read = [sample for shares in steps for share in shares for sample in share.indices]
    assert len(read) == samples + partition.num_padded - partition.num_dropped
    if partition.tail != "pad":
        assert len(set(read)) == len(read)
    if partition.tail != "drop":
        assert set(read) == set(range(samples))
    for number, shares in enumerate(steps):
        counts = [len(share.indices) for share in shares]
        assert max(counts) - min(counts) <= 1
        assert {share.global_count for share in shares} == {sum(counts)}
        assert {share.consumed for share in shares} == {min(samples, (number + 1) * size)}
        assert sum(counts) == size or number == len(steps) - 1
    assert partition.last_count() == (steps[-1][0].global_count if steps else 0)
    if partition.num_padded:
        assert steps[-1][0].copies == partition.num_padded
        assert partition.num_padded < partition.num_ranks


@settings(deadline=None, max_examples=150)
@given(partitions, partitions, st.integers(0, 50))
def test_resume_under_other_ranks_loses_and_repeats_nothing(before, after, num_steps):
    samples = before[0]
    first = built(samples, *before[1:4], "weight", True)
    second = built(samples, *after[1:4], "weight", True)
    done = all_steps(first, 5)[:num_steps]
    consumed = done[-1][0].consumed if done else 0
    read = [sample for shares in done for share in shares for sample in share.indices]
    read += [sample for rank in all_indices(second, 5, consumed) for sample in rank]
    assert sorted(read) == list(range(samples))


@settings(deadline=None, max_examples=100)
@given(partitions.filter(lambda arguments: has_data(*arguments)), st.integers(0, 10))
def test_resume_under_the_same_ranks_continues_the_steps(arguments, num_steps):
    partition = built(*arguments)
    steps = all_steps(partition, 1)
    consumed = steps[num_steps - 1][0].consumed if 0 < num_steps <= len(steps) else 0
    rest = steps[num_steps:] if consumed else steps
    assert all_steps(partition, 1, consumed) == rest
    assert partition.num_steps(consumed) == len(rest)


def test_global_and_per_rank_batch_are_the_same_where_ranks_divide_it():
    assert all_steps(Partition(100, 4, 8, seed=1)) == all_steps(Partition(100, 4, global_batch=32, seed=1))


def test_uneven_global_batch():
    partition = Partition(12, 4, global_batch=6, shuffle=False)
    assert all_indices(partition) == [[0, 4, 6, 10], [1, 5, 7, 11], [2, 8], [3, 9]]


def test_short_step_of_a_padded_uneven_batch_is_never_larger_than_a_full_one():
    steps = all_steps(Partition(11, 4, global_batch=6, tail="pad", shuffle=False))
    assert steps[-1] == (
        Step((6, 10), 6, 11, 1),
        Step((7, 0), 6, 11, 1),
        Step((8,), 6, 11, 1),
        Step((9,), 6, 11, 1),
    )


def test_blocks_do_not_show():
    # batches from 1 to 70 cross the border between single elements and blocks of NumPy
    for batch in (1, 5, 31, 32, 33, 70):
        partition = Partition(5000, 3, batch, seed=2)
        order = partition.order(0)
        expected = [order.at(position) for position in range(5000)]
        got = [0] * 5000
        for rank in range(3):
            for number, step in enumerate(partition.steps(rank, 0)):
                for place, sample in enumerate(step.indices):
                    got[number * 3 * batch + rank + 3 * place] = sample
        assert got == expected


def test_counts_for_the_log():
    assert Partition(10, 4, 1, tail="pad").num_padded == 2
    assert Partition(10, 4, 1, tail="drop").num_dropped == 2
    assert Partition(12, 4, 1, tail="pad").num_padded == Partition(12, 4, 1, tail="drop").num_dropped == 0
    assert Partition(10, 4, 1).num_padded == Partition(10, 4, 1).num_dropped == 0


def test_empty_data_set_has_no_steps():
    assert all_indices(Partition(0, 3, 2)) == [[], [], []]


def test_jump_into_a_huge_epoch():
    partition = Partition(10**12, 1024, 64)
    whole_steps = list(islice(partition.steps(1000, 3, 5 * 65536), 2))
    assert whole_steps == list(islice(partition.steps(1000, 3), 7))[5:]
    last = list(partition.steps(0, 10**9, 10**12 - 10))
    assert [(len(step.indices), step.global_count, step.consumed) for step in last] == [(1, 10, 10**12)]


def test_memory_does_not_grow_with_the_data_set():
    next(Partition(10**6, 8, 4096).steps(7, 0))  # imports NumPy
    tracemalloc.start()
    for _ in islice(Partition(10**12, 8, 4096).indices(7, 0), 100_000):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"num_samples": -1}, "num_samples is -1"),
        ({"num_samples": 2.0}, "num_samples is 2.0"),
        ({"num_ranks": 0}, "num_ranks is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": None, "global_batch": 0}, "global_batch is 0"),
        ({"seed": 2**64}, f"seed is {2**64}"),
        ({"tail": "keep"}, "tail is 'keep'; legal: weight, pad, drop"),
        ({"global_batch": 8}, "found both"),
        ({"batch_size": None}, "found neither"),
    ],
)
def test_wrong_arguments(arguments, named):
    with pytest.raises(InputError) as caught:
        Partition(**{"num_samples": 10, "num_ranks": 2, "batch_size": 2, **arguments})
    assert named in str(caught.value)


@pytest.mark.parametrize("arguments", [(2, 0, 0), (-1, 0, 0), (0, -1, 0), (0, 0, 11), (0, 0, -1)])
def test_wrong_place_is_told_before_the_first_step(arguments):
    with pytest.raises(InputError, match="legal: an integer from"):
        Partition(10, 2, 2).steps(*arguments)


def test_a_login_node_needs_neither_torch_nor_numpy():
    program = (
        "import sys; from hvdtrain.data.partition import Partition; import hvdtrain.data.validate;"
        "next(Partition(10**12, 8, 4).indices(3, 1));"
        "print(sorted({'torch', 'numpy', 'horovod', 'mpi4py', 'sklearn', 'PIL'} & set(sys.modules)))"
    )
    done = run(command(sys.executable, "-c", program), timeout_s=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
