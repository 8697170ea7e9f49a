"""The measuring itself, with sums of our own in a crew of one; real ranks are tested in tests/mpi."""

import pytest
import torch

from hvdtrain.measure.allreduce import Series, WrongSumError, measure_allreduce
from hvdtrain.measure.allreduce_crew import Crew
from hvdtrain.measure.allreduce_request import AllreduceRequest
from hvdtrain.topology.environ import World


class Alone:
    """A channel of one rank."""

    def gather(self, value):
        return [value]

    def close(self):
        pass


class OwnSum(Crew):
    """A crew whose allreduce is a given function, and whose hosts are those that are named."""

    def __init__(self, add_up, hosts=("a",), rank=0):
        super().__init__(World(rank=rank, size=len(hosts)), torch.device("cpu"), Alone())
        self.hosts = list(hosts)
        self.add_up = add_up
        self.opened = []

    def group(self, library, ranks=()):
        from contextlib import nullcontext

        self.opened.append((library, ranks))
        return nullcontext(self.add_up)


def measure(crew, **request):
    events = []
    rows = measure_allreduce(crew, AllreduceRequest(**request), events.append)
    return rows, events


def test_each_size_is_reduced_once_to_look_and_then_repeated():
    calls = []
    crew = OwnSum(lambda values, name: calls.append((name, values.nbytes, float(values[0]))))
    rows, events = measure(crew, sizes=(8, 16), libraries=("torch",), repeat=4)
    first = [("bench.float32.8", 8, 1.0)] + [("bench.float32.8", 8, 0.0)] * 6  # 2 to warm up, 4 to time
    assert calls[:7] == first
    assert [name for name, _, _ in calls[7:]] == ["bench.float32.16"] * 7
    assert [(row.bytes, row.repetitions, row.ranks, row.level) for row in rows] == [
        (8, 4, 1, "inside"),
        (16, 4, 1, "inside"),
    ]
    assert [event["event"] for event in events] == ["row", "row"]


@pytest.mark.parametrize(
    "spoil", [lambda values: values.mul_(2), lambda values: values[-1].fill_(float("nan"))]
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_wrong_sum_ends_the_measurement(spoil, dtype):
    crew = OwnSum(lambda values, _: spoil(values))
    with pytest.raises(
        WrongSumError, match=f"torch gave a wrong sum, not 1 for as many ones, in 8 B of {dtype}"
    ):
        measure(crew, sizes=(8,), libraries=("torch",), dtypes=(dtype,))


def test_times_are_what_the_columns_come_from(monkeypatch):
    """Each call of the sum takes a second of this clock more than the one before: 1, 2, 3 ..."""
    clock = {"now": 0.0, "calls": 0}
    monkeypatch.setattr("hvdtrain.measure.allreduce.time.perf_counter", lambda: clock["now"])

    def add_up(values, _):
        clock["calls"] += 1
        clock["now"] += clock["calls"]

    (row,), _ = measure(OwnSum(add_up), sizes=(8,), libraries=("torch",), repeat=5, limit_s=1000)
    # Calls 1 to 3 are not timed; of 4 to 8 the median is 6, and 95 % are at most 7.8.
    assert (row.time_s, row.min_s, row.p95_s) == (6.0, 4.0, pytest.approx(7.8))
    assert row.algbw_gb_s == pytest.approx(8 / 6 / 1e9)


def test_large_sizes_of_the_usual_range_are_left_out_when_time_is_over(monkeypatch):
    clock = {"now": 0.0}
    monkeypatch.setattr("hvdtrain.measure.allreduce.time.perf_counter", lambda: clock["now"])

    def add_up(values, _):
        clock["now"] += values.nbytes * 1e-3  # 8 B take 8 ms

    rows, events = measure(OwnSum(add_up), libraries=("torch",), repeat=3, limit_s=10)
    # 6 calls of 8, 32, 128 and 512 B take 4.1 s; of 2,048 B they would take 12.3 s more.
    assert [row.bytes for row in rows] == [8, 32, 128, 512]
    assert events[-1]["text"] == "torch float32: 2 KiB and above are left out: the time limit of 10 s"


def test_the_ranks_of_the_fullest_host_are_measured_apart():
    crew = OwnSum(lambda values, _: None, hosts=["a", "b", "b", "c", "b", "c", "c"])
    assert crew.neighbours == (1, 2, 4)
    assert OwnSum(None, hosts=["a", "a"]).neighbours == ()
    assert OwnSum(None, hosts=["a", "b"]).neighbours == ()
    assert Series("mpi", "float32", (1, 2, 4)).size_of(crew) == 3
    assert Series("mpi", "float32").size_of(crew) == 7


def test_horovod_comes_last_and_is_not_taken_apart_without_mpi():
    crew = OwnSum(lambda values, _: values.fill_(3), hosts=["a", "b", "b"])
    with pytest.raises(WrongSumError):  # of the two neighbours it should be 2
        measure(crew, sizes=(8,), libraries=("horovod", "torch"))
    assert crew.opened == [("torch", ()), ("torch", (1, 2))]
    crew.opened.clear()
    measure(crew, sizes=(8,), libraries=("horovod",))
    assert crew.opened == [("horovod", ())]
