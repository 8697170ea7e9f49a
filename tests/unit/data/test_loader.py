import multiprocessing
import os
import random
import signal
import sys
import time
from collections import namedtuple
from itertools import product

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hvdtrain.data import prefetch, reading
from hvdtrain.data.batch import Batch, SampleError, SkipSample
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition
from hvdtrain.errors import InputError, TrainingError
from hvdtrain.process import command, run

# PyTorch advises against more workers than cores; these tests are about order, not speed.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def numbers(count):
    return TensorDataset(torch.arange(count), torch.arange(count) * 10)


class Function(Dataset):
    """Sample i is ``function(i)``."""

    def __init__(self, count, function):
        self.count, self.function = count, function

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.function(index)

    def describe(self, index):
        return f"file-{index}"


def worker_pids():
    return sorted(child.pid for child in multiprocessing.active_children())


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert worker_pids() == []


@WORKERS
@pytest.mark.parametrize("tail", ["weight", "pad", "drop"])
def test_each_batch_is_one_step(workers, tail):
    partition = Partition(23, 3, 2, tail=tail, seed=5)
    for rank in range(3):
        with PartitionLoader(numbers(23), partition, rank, workers=workers) as loader:
            for epoch in range(2):
                batches = list(loader.batches(epoch))
                steps = list(partition.steps(rank, epoch))
                assert [tuple(batch.inputs.tolist()) for batch in batches] == [step.indices for step in steps]
                for batch, step in zip(batches, steps, strict=True):
                    assert (batch.targets == batch.inputs * 10).all()
                    assert batch.count == len(step.indices)
                    assert (batch.global_count, batch.consumed, batch.copies) == (
                        step.global_count,
                        step.consumed,
                        step.copies,
                    )
                assert loader.num_steps() == len(batches)


@WORKERS
def test_resumes_inside_an_epoch(workers):
    with PartitionLoader(numbers(40), Partition(40, 2, 3, seed=1), 1, workers=workers) as loader:
        whole = [batch.inputs.tolist() for batch in loader.batches(4)]
        assert [batch.inputs.tolist() for batch in loader.batches(4, consumed=18)] == whole[3:]


@WORKERS
def test_a_rank_without_samples_gets_an_empty_batch(workers):
    with PartitionLoader(numbers(7), Partition(7, 3, 2), 2, workers=workers) as loader:
        first, last = loader.batches(0)
    assert (first.count, first.global_count) == (2, 6)
    assert (last.inputs, last.targets, last.count, last.global_count, last.consumed) == (None, None, 0, 1, 7)


@WORKERS
def test_accumulation_reads_each_pass_by_itself(workers):
    partition = Partition(11, 2, 4, shuffle=False)
    dataset = Function(11, lambda index: (index, -index))
    with PartitionLoader(dataset, partition, 0, workers=workers, accumulate=2) as loader:
        batches = list(loader.batches(0))
        assert (loader.num_steps(), loader.num_batches()) == (2, 3) == (2, len(batches))
        assert [batch.inputs.tolist() for batch in loader.batches(0, consumed=8)] == [[8, 10]]
    assert [batch.inputs.tolist() for batch in batches] == [[0, 2], [4, 6], [8, 10]]
    assert [(b.count, b.global_count, b.is_last, b.num_passes, b.consumed) for b in batches] == [
        (2, 8, False, 2, 0),
        (2, 8, True, 2, 8),
        (2, 3, True, 1, 11),
    ]


@WORKERS
def test_a_rank_without_samples_can_be_filled(workers):
    loader = PartitionLoader(
        numbers(7), Partition(7, 3, 2, shuffle=False), 2, workers=workers, fill=True, pin_memory=True
    )
    with loader:
        first, last = loader.batches(0)
    assert first.inputs.tolist() == [2, 5]
    assert (last.inputs.tolist(), last.targets.tolist()) == ([2, 5], [20, 50])
    assert (last.count, last.global_count, last.consumed) == (0, 1, 7)


@WORKERS
def test_an_epoch_that_was_left_early_does_not_spill_into_the_next(workers):
    with PartitionLoader(numbers(60), Partition(60, 1, 2, shuffle=False), 0, workers=workers) as loader:
        left = loader.batches(0)
        next(left)
        assert [batch.inputs.tolist() for batch in loader.batches(1)][:2] == [[0, 1], [2, 3]]
        with pytest.raises(RuntimeError, match="have ended"):
            next(left)


def test_workers_live_on_between_epochs():
    with PartitionLoader(numbers(8), Partition(8, 1, 2), 0, workers=2) as loader:
        list(loader.batches(0))
        pids = worker_pids()
        assert len(pids) == 2
        list(loader.batches(1))
        assert worker_pids() == pids


def draw(index):
    return torch.tensor(
        [index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64
    )


def drawn(workers, rank=0, epoch=0, consumed=0, seed=3, accumulate=1, ranks=2):
    partition = Partition(24, ranks, global_batch=6, seed=seed, shuffle=False)
    with PartitionLoader(
        Function(24, draw), partition, rank, workers=workers, accumulate=accumulate
    ) as loader:
        return torch.cat([batch.inputs for batch in loader.batches(epoch, consumed) if batch.count])


def test_augmentation_depends_on_seed_epoch_and_place_alone():
    base = drawn(0)
    assert len(base[:, 1:].unique()) == base[:, 1:].numel()  # all draws differ
    assert base.equal(drawn(1))
    assert base.equal(drawn(3))
    assert base[6:].equal(drawn(2, consumed=12))
    passes = drawn(2, accumulate=2)
    assert passes.equal(base)
    order = torch.arange(24, dtype=torch.float64)
    for ranks in (1, 3, 5):
        rows = torch.cat([drawn(rank % 3, rank, ranks=ranks, accumulate=2) for rank in range(ranks)])
        rows = rows[rows[:, 0].argsort()]
        assert rows[:, 0].equal(order)
        assert rows[base[:, 0].long()].equal(base)  # the same numbers on any number of ranks
    for other in (drawn(0, epoch=1), drawn(0, rank=1), drawn(0, seed=4)):
        assert not (other[:, 1:] == base[:, 1:]).any()


def test_a_sample_that_is_drawn_twice_is_augmented_twice():
    """Copies, and the draws of balanced sampling, are other places of the epoch."""
    partition = Partition(5, 2, global_batch=4, tail="pad", shuffle=False)
    rows = []
    for rank in range(2):
        with PartitionLoader(Function(5, draw), partition, rank) as loader:
            rows += [batch.inputs for batch in loader.batches(0)]
    both = torch.cat(rows)
    twice = both[both[:, 0] == both[:, 0].mode().values]
    assert len(twice) == 2
    assert not (twice[0, 1:] == twice[1, 1:]).any()


def test_who_draws_nothing_is_spared_the_seeding(monkeypatch):
    def refuse(_seed):
        raise AssertionError("seeded")

    class Quiet(Function):
        draws = False

    monkeypatch.setattr(reading, "seed_generators", refuse)
    for dataset in (Quiet(6, torch.tensor), TensorDataset(torch.arange(6))):
        with PartitionLoader(dataset, Partition(6, 1, 3), 0) as loader:
            assert sum(batch.count for batch in loader.batches(0)) == 6
    loader = PartitionLoader(Function(6, torch.tensor), Partition(6, 1, 3), 0)
    with loader, pytest.raises(SampleError, match="seeded"):
        list(loader.batches(0))


def test_ranks_workers_and_epochs_draw_different_numbers():
    def every():
        return torch.cat([drawn(2, rank, epoch) for rank in range(2) for epoch in range(2)])

    rows = every()  # of two workers in turn
    assert len(rows) == 48
    assert len(rows[:, 1:].unique()) == rows[:, 1:].numel()
    assert rows.equal(every())


@WORKERS
def test_the_models_random_numbers_do_not_depend_on_the_loader(workers):
    def seed():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    seed()
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    seed()
    with PartitionLoader(Function(9, draw), Partition(9, 1, 2), 0, workers=workers) as loader:
        list(loader.batches(0))
        list(loader.batches(1))
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def fail_at_five(index):
    if index == 5:
        raise KeyError("no label\nfor it")
    return index


@pytest.mark.parametrize(("workers", "reader"), [(0, "rank 1:"), (2, "rank 1, loader worker ")])
def test_an_exception_names_the_sample(workers, reader):
    partition = Partition(12, 2, 2, shuffle=False)
    with PartitionLoader(Function(12, fail_at_five), partition, 1, workers=workers) as loader:
        batches = loader.batches(0)
        assert next(batches).inputs.tolist() == [1, 3]
        with pytest.raises(SampleError) as caught:
            next(batches)
    message = str(caught.value)
    assert message.startswith(f"sample 5 (file-5) could not be read on {reader}")
    assert "KeyError: 'no label\\nfor it' (test_loader.py:" in message
    assert "\n" not in message
    assert "in fail_at_five" in caught.value.detail


@WORKERS
def test_samples_that_make_no_batch(workers):
    ragged = Function(4, lambda index: torch.zeros(index))
    with (
        PartitionLoader(ragged, Partition(4, 1, 2, shuffle=False), 0, workers=workers) as loader,
        pytest.raises(SampleError, match=r"^samples 0, 1 make no batch on rank 0.*equal size"),
    ):
        list(loader.batches(0))


def refuse(index):
    raise InputError("image x.png cannot be read", where="data.path", do="remove it")


@WORKERS
def test_an_input_error_of_a_worker_stays_one(workers):
    with (
        PartitionLoader(Function(4, refuse), Partition(4, 1, 2), 0, workers=workers) as loader,
        pytest.raises(InputError) as caught,
    ):
        next(loader.batches(0))
    assert str(caught.value) == "data.path: image x.png cannot be read; remove it"
    assert caught.value.where == "data.path"


def skip_some(index):
    if index in (1, 4, 5):
        raise SkipSample(f"file-{index}: truncated")
    return index, -index


@WORKERS
def test_skipped_samples_lower_the_count_and_are_named(workers):
    partition = Partition(8, 1, 2, shuffle=False)
    with PartitionLoader(Function(8, skip_some), partition, 0, workers=workers, may_skip=True) as loader:
        batches = list(loader.batches(0))
    assert [batch.count for batch in batches] == [2 - 1, 2, 0, 2]
    assert [batch.skipped for batch in batches[:3]] == [
        ("file-1: truncated",),
        (),
        ("file-4: truncated", "file-5: truncated"),
    ]
    assert batches[0].inputs.tolist() == [0]
    assert batches[2].inputs is None
    assert {batch.global_count for batch in batches} == {None}
    assert [batch.consumed for batch in batches] == [2, 4, 6, 8]


@WORKERS
def test_a_batch_of_which_nothing_can_be_read_is_filled(workers):
    loader = PartitionLoader(
        Function(8, skip_some),
        Partition(8, 1, 2, shuffle=False),
        0,
        workers=workers,
        may_skip=True,
        fill=True,
    )
    with loader:
        batches = list(loader.batches(0))
    assert [batch.count for batch in batches] == [1, 2, 0, 2]
    assert batches[2].inputs.tolist() == [0]  # of the filler 0, 1 the latter cannot be read
    assert batches[2].skipped == ("file-4: truncated", "file-5: truncated")


def test_nothing_to_fill_with():
    def refuse_all(index):
        raise SkipSample(f"file-{index}")

    loader = PartitionLoader(Function(3, refuse_all), Partition(3, 1, 2), 0, may_skip=True, fill=True)
    with loader:
        assert [(batch.inputs, batch.count) for batch in loader.batches(0)] == [(None, 0)] * 2


def test_skipping_must_be_announced():
    with (
        PartitionLoader(Function(8, skip_some), Partition(8, 1, 2, shuffle=False), 0) as loader,
        pytest.raises(SampleError, match=r"sample 1 .*SkipSample"),
    ):
        list(loader.batches(0))


def test_samples_that_are_no_pairs_have_no_targets():
    with PartitionLoader(Function(4, lambda i: {"x": i}), Partition(4, 1, 4, shuffle=False), 0) as loader:
        (batch,) = loader.batches(0)
    assert batch.inputs["x"].tolist() == [0, 1, 2, 3]
    assert batch.targets is None


def test_a_data_set_may_collate_itself():
    dataset = Function(4, lambda index: index)
    dataset.collate = lambda samples: (sum(samples), len(samples))
    with PartitionLoader(dataset, Partition(4, 1, 4), 0) as loader:
        (batch,) = loader.batches(0)
    assert (batch.inputs, batch.targets, batch.count) == (6, 4, 4)


def test_pinning_reaches_every_tensor_and_keeps_the_structure(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)  # needs CUDA
    pair = namedtuple("pair", "x y")
    inputs = {"a": torch.tensor(1), "b": [torch.tensor(2), "text"], "c": pair(torch.tensor(3), None)}
    pinned = Batch(inputs, torch.tensor(4), 1, 1, 1, skipped=("x",)).pin_memory()
    assert pinned == Batch(
        {"a": torch.tensor(2), "b": [torch.tensor(3), "text"], "c": pair(torch.tensor(4), None)},
        torch.tensor(5),
        1,
        1,
        1,
        skipped=("x",),
    )


def test_pinning_without_cuda_has_no_effect(recwarn):
    with PartitionLoader(numbers(4), Partition(4, 1, 4), 0, pin_memory=True) as loader:
        (batch,) = loader.batches(0)
    assert batch.inputs.is_pinned() == torch.cuda.is_available()
    assert not recwarn.list


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize("dataset", [Stream(), iter([1, 2, 3])])
def test_a_stream_is_refused(dataset):
    with pytest.raises(InputError, match="no map-style data set"):
        PartitionLoader(dataset, Partition(3, 1, 1), 0)


def test_a_partition_of_another_data_set_is_refused():
    with pytest.raises(InputError, match="has 3 samples, its partition 4"):
        PartitionLoader(numbers(3), Partition(4, 1, 1), 0)


def test_a_wrong_place_is_told_at_once():
    with (
        PartitionLoader(numbers(3), Partition(3, 1, 1), 0) as loader,
        pytest.raises(InputError, match="consumed is 4"),
    ):
        loader.batches(0, consumed=4)


# --- the life of the workers


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def test_signals_for_the_trainer_do_not_end_workers():
    with PartitionLoader(numbers(400), Partition(400, 1, 2), 0, workers=2) as loader:
        batches = loader.batches(0)
        read = [next(batches)]  # the second worker may be starting still
        for pid, number in product(worker_pids(), SIGNALS):
            os.kill(pid, number)
        read += batches
    assert sum(batch.count for batch in read) == 400


def test_the_rank_still_gets_its_signals():
    received = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        with PartitionLoader(numbers(8), Partition(8, 1, 2), 0, workers=1) as loader:
            list(loader.batches(0))
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received == [signal.SIGUSR1]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_killed_worker_is_an_error_of_the_next_batch():
    before = signal.getsignal(signal.SIGCHLD)
    with PartitionLoader(numbers(100), Partition(100, 1, 1), 0, workers=1) as loader:
        batches = loader.batches(0)
        next(batches)
        assert signal.getsignal(signal.SIGCHLD) == before
        (worker,) = multiprocessing.active_children()
        worker.kill()
        worker.join()  # PyTorch's handler would raise here
        with pytest.raises(TrainingError, match=rf"worker of rank 0 \(pid {worker.pid}\) .* code -9"):
            next(batches)


def test_a_worker_that_dies_while_the_rank_waits_is_an_error():
    dataset = Function(9, lambda index: os.kill(os.getpid(), signal.SIGKILL) if index == 2 else index)
    with (
        PartitionLoader(dataset, Partition(9, 1, 1, shuffle=False), 0, workers=1) as loader,
        pytest.raises(TrainingError, match=r"loader worker of rank 0 \(pid \d+\) ended with exit code -9"),
    ):
        list(loader.batches(0))


def test_close_ends_a_worker_that_is_stuck(monkeypatch):
    monkeypatch.setattr(prefetch, "_CLOSE_GRACE_S", 0.3)
    dataset = Function(4, lambda index: time.sleep(600 if index else 0) or index)
    loader = PartitionLoader(dataset, Partition(4, 1, 1, shuffle=False), 0, workers=1)
    next(loader.batches(0))
    assert len(worker_pids()) == 1
    loader.close()
    assert worker_pids() == []
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(loader.batches(0))


def test_a_forgotten_loader_ends_its_workers():
    loader = PartitionLoader(numbers(8), Partition(8, 1, 2), 0, workers=1)
    next(loader.batches(0))
    assert len(worker_pids()) == 1
    del loader
    assert worker_pids() == []


def test_a_program_that_closes_nothing_ends():
    program = """
import torch, multiprocessing
from torch.utils.data import TensorDataset
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition
loader = PartitionLoader(TensorDataset(torch.arange(90)), Partition(90, 1, 2), 0, workers=2)
batches = loader.batches(0)
next(batches)
print(*[child.pid for child in multiprocessing.active_children()])
raise SystemExit(7)
"""
    done = run(command(sys.executable, "-c", program), timeout_s=60)
    assert done.returncode == 7, done.stderr
    for pid in map(int, done.stdout.split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
