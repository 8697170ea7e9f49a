import sys
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.data.partition import Partition
from hvdtrain.data.passes import Passes
from hvdtrain.errors import InputError
from hvdtrain.process import command, run


def of_ranks(partition, accumulate, epoch=0, consumed=0, **options):
    """For each pass the parts of all ranks."""
    ranks = range(partition.num_ranks)
    parts = [Passes(partition, rank, accumulate, **options).of_epoch(epoch, consumed) for rank in ranks]
    return list(zip(*parts, strict=True))  # strict: all ranks take equally many passes


def test_a_step_by_hand():
    # 2 ranks, 5 samples each: ceil(5 / 2) = 3 samples in a pass; the last step of 3 has shares of 2 and 1
    parts = of_ranks(Partition(13, 2, 5, shuffle=False), 2)
    assert [[part.indices for part in ranks] for ranks in parts] == [
        [(0, 2, 4), (1, 3, 5)],
        [(6, 8), (7, 9)],
        [(10, 12), (11,)],
    ]
    assert [(p.number, p.num_passes, p.is_last, p.consumed, p.step.global_count) for p, _ in parts] == [
        (0, 2, False, 0, 10),
        (1, 2, True, 10, 10),
        (0, 1, True, 13, 3),
    ]


def test_passes_are_rounded_up_in_size_so_there_may_be_fewer():
    passes = Passes(Partition(8, 1, 8, shuffle=False), 0, 5)
    assert passes.micro == 2
    assert [part.indices for part in passes.of_epoch(0)] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_ranks_that_do_not_divide_the_batch_take_equally_many_passes():
    parts = of_ranks(Partition(7, 2, global_batch=7, shuffle=False), 4)
    assert [[part.indices for part in ranks] for ranks in parts] == [
        [(0,), (1,)],
        [(2,), (3,)],
        [(4,), (5,)],
        [(6,), ()],
    ]


partitions = st.builds(
    lambda samples, ranks, batch, tail: Partition(samples, ranks, global_batch=batch, tail=tail, seed=3),
    st.integers(60, 300),
    st.integers(1, 9),
    st.integers(1, 60),
    st.sampled_from(["weight", "pad", "drop"]),
)


@settings(deadline=None, max_examples=200)
@given(partitions, st.integers(1, 20), st.integers(0, 3))
def test_laws(partition, accumulate, epoch):
    parts = of_ranks(partition, accumulate, epoch, fill=True)
    assert len(parts) == Passes(partition, 0, accumulate).num_left()
    steps = [list(partition.steps(rank, epoch)) for rank in range(partition.num_ranks)]
    for rank, own in enumerate(steps):
        mine = [ranks[rank] for ranks in parts]
        grouped = [list(group) for _, group in groupby(mine, lambda part: part.step)]
        assert [tuple(i for part in group for i in part.indices) for group in grouped] == [
            step.indices for step in own
        ]
        start = 0
        for group in grouped:
            assert [part.number for part in group] == list(range(group[0].num_passes))
            assert [part.is_last for part in group] == [False] * (len(group) - 1) + [True]
            assert [part.consumed for part in group[:-1]] == [start] * (len(group) - 1)
            start = group[-1].consumed
            assert start == group[0].step.consumed
    for ranks in parts:
        assert len({(part.number, part.num_passes, part.step.global_count) for part in ranks}) == 1
        assert ranks[0].num_passes <= accumulate
        assert any(part.indices for part in ranks)  # no pass that all ranks take in vain
        assert all(bool(part.filler) != bool(part.indices) for part in ranks)


@settings(deadline=None, max_examples=100)
@given(partitions, st.integers(1, 6), st.integers(0, 8))
def test_resume_at_a_step_continues_the_passes(partition, accumulate, num_steps):
    whole = [part for (part, *_) in of_ranks(partition, accumulate, 2)]
    ends = [0, *(part.consumed for part in whole if part.is_last)]
    consumed = ends[min(num_steps, len(ends) - 1)]
    rest = [part for part in whole if part.start >= consumed]
    assert [part for (part, *_) in of_ranks(partition, accumulate, 2, consumed)] == rest
    assert Passes(partition, 0, accumulate).num_left(consumed) == len(rest)


def test_filler_is_as_large_as_a_pass_and_exists():
    # step 4: 1 sample left for 3 ranks; order of 13: ranks start at 0, 1, 2
    parts = of_ranks(Partition(13, 3, 4, shuffle=False), 2, fill=True)
    assert [part.filler for part in parts[-1]] == [(), (1, 4), (2, 5)]
    assert of_ranks(Partition(13, 3, 4, shuffle=False), 2)[-1][1].filler == ()
    # 2 samples for 3 ranks and passes of 3: samples are read again
    assert of_ranks(Partition(2, 3, 3, shuffle=False), 1, fill=True)[0][2].filler == (0, 1, 0)


def test_where_samples_may_be_unreadable_every_pass_can_be_filled():
    parts = of_ranks(Partition(13, 3, 4, shuffle=False), 2, fill=True, may_skip=True)
    assert all(len(part.filler) == 2 for ranks in parts for part in ranks)


@pytest.mark.parametrize("accumulate", [0, -1, True, 1.5])
def test_wrong_accumulate(accumulate):
    with pytest.raises(InputError, match=r"accumulate is .*an integer from 1"):
        Passes(Partition(3, 1, 1), 0, accumulate)


def test_empty_data_has_no_pass():
    passes = Passes(Partition(0, 2, 1), 1, 3, fill=True)
    assert (list(passes.of_epoch(0)), passes.num_left()) == ([], 0)


def test_a_login_node_needs_neither_torch_nor_numpy():
    program = (
        "import sys; from hvdtrain.data.passes import Passes; from hvdtrain.data.partition import Partition;"
        "import hvdtrain.data.agreement; next(Passes(Partition(10**12, 8, 4), 3, 2).of_epoch(1));"
        "print(sorted({'torch', 'numpy', 'horovod', 'mpi4py'} & set(sys.modules)))"
    )
    done = run(command(sys.executable, "-c", program), timeout_s=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
