"""How long a run may stand still, and whom the verdict names."""

import pytest

from hvdtrain.config import StallConfig
from hvdtrain.train.stall import Sentinel, verdict_on


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def sentinel(clock, **config):
    return Sentinel(StallConfig(**config), 0, 2, None, clock=clock)


def steps(one, clock, durations, first=1):
    for number, duration in enumerate(durations, first):
        clock.now += duration
        one.tick(number)


def test_the_start_has_a_limit_of_its_own(clock):
    one = sentinel(clock, start_s=50)
    assert one.limit_s == 50
    steps(one, clock, [40])
    assert one.limit_s == 300


def test_the_limit_is_learned_from_the_slowest_step(clock):
    one = sentinel(clock)
    steps(one, clock, [100] + [2.0] * 8)
    assert one.limit_s == 300  # too few steps to tell
    steps(one, clock, [3.0, 2.0])
    assert one.limit_s == 60  # 20 * 3; the first step, with all that is made in it, does not count
    steps(one, clock, [40.0])
    assert one.limit_s == 300  # not 800


def test_fast_steps_do_not_make_it_nervous(clock):
    one = sentinel(clock)
    steps(one, clock, [0.01] * 20)
    assert one.limit_s == 30


def test_what_the_job_says_is_the_limit(clock):
    one = sentinel(clock, step_s=7)
    steps(one, clock, [1.0] * 20)
    assert one.limit_s == 7


def test_a_save_gives_the_next_step_more_time_and_teaches_nothing(clock):
    one = sentinel(clock, save_s=500)
    steps(one, clock, [1.0] * 12)
    assert one.limit_s == 30
    one.extend()
    one.extend()
    assert one.limit_s == 530
    steps(one, clock, [400.0])
    assert one.limit_s == 530  # rank 0 may still be at it, and the others wait for it in the next step
    steps(one, clock, [400.0])
    assert one.limit_s == 30


def report(rank, section, call='job.py", line 3 in forward'):
    head = f"rank {rank}: in {section}, last finished step 7, no progress for 5 s\n"
    watcher = (
        'Current thread 0x07f2 (most recent call first):\n  File "hvdtrain/train/stall.py", line 1 in _x\n'
    )
    engine = (
        'Thread 0x07f1 (most recent call first):\n  File "/x/torch/distributed/c10d.py", line 1 in wait\n'
    )
    return f'{head}{watcher}\n{engine}\nThread 0x07f0 (most recent call first):\n  File "/{call}\n'


@pytest.mark.parametrize(
    ("sections", "size", "told"),
    [
        (
            {0: "reduction", 1: "loading", 2: "reduction"},
            3,
            "rank 1 is silent in loading; ranks 0, 2 are waiting in reduction",
        ),
        (
            {0: "reduction", 1: "agreement"},
            3,
            "rank 2 is silent: no report, stopped or gone; ranks 0, 1 are waiting in",
        ),
        ({1: "reduction"}, 2, "rank 0 is silent: no report"),
        ({0: "start", 1: "start"}, 2, "no single rank is silent: all stand in start"),
        ({0: "reduction", 1: "reduction"}, 2, "no single rank is silent: all stand in reduction"),
        (
            {rank: "loading" if rank > 0 else "reduction" for rank in range(12)},
            12,
            "ranks 1, 2, 3, 4, 5, 6, 7, 8 ...",
        ),
    ],
)
def test_the_verdict(sections, size, told):
    reports = {rank: report(rank, section) for rank, section in sections.items()}
    assert told in verdict_on(reports, size)


@pytest.mark.parametrize(
    "call",
    [
        'x/horovod/torch/mpi_ops.py", line 1282 in synchronize',
        'x/torch/distributed/distributed_c10d.py", line 3025 in all_reduce',
        'x/torch/nn/parallel/distributed.py", line 1613 in _pre_forward',
        'x/hvdtrain/backends/ddp.py", line 120 in wait',
    ],
)
def test_a_collective_inside_another_section_is_waited_in(call):
    """Batch norm over all ranks reduces in the forward pass; DDP makes its buckets before the second one."""
    reports = {0: report(0, "forward", call), 1: report(1, "loading"), 2: report(2, "backward", call)}
    told = "rank 1 is silent in loading; ranks 0, 2 are waiting in a collective of forward"
    assert verdict_on(reports, 3) == told


def test_a_forward_pass_through_ddp_is_no_wait():
    caller = 'File "/x/torch/nn/parallel/distributed.py", line 1 in forward'
    call = f'x/torch/nn/modules/linear.py", line 9 in forward\n  {caller}'
    reports = {0: report(0, "forward", call), 1: report(1, "reduction")}
    assert verdict_on(reports, 2) == "rank 0 is silent in forward; rank 1 is waiting in reduction"


def test_the_first_batch_of_a_loop_has_a_limit_of_its_own(clock):
    """Processes start and caches are cold: what ordinary steps have shown says nothing of it."""
    one = sentinel(clock)
    steps(one, clock, [100.0] + [0.1] * 20)
    assert one.limit_s == 30
    one.begin_loop()
    assert one.limit_s == 300  # as long as nobody knows
    steps(one, clock, [25.0, 0.1])
    assert one.limit_s == 30  # and it taught nothing about steps
    one.begin_loop()
    assert one.limit_s == 500  # 20 * 25
    steps(one, clock, [2.0])
    one.begin_loop()
    assert one.limit_s == 500
    steps(one, clock, [80.0])
    one.begin_loop()
    assert one.limit_s == 900  # not 1600


def test_the_first_loop_of_a_run_shows_how_long_a_first_batch_takes(clock):
    one = sentinel(clock, step_s=5)
    clock.now += 200  # what else there is to do at the start
    one.begin_loop()
    assert one.limit_s == 900
    steps(one, clock, [2.0, 1.0])
    assert one.limit_s == 5
    one.begin_loop()
    assert one.limit_s == 40


def test_the_limit_that_a_job_sets_is_the_least_of_a_first_batch(clock):
    one = sentinel(clock, step_s=5)
    one.begin_loop()
    steps(one, clock, [0.1] * 2)
    one.begin_loop()
    assert one.limit_s == 5


def test_a_loop_that_begins_behind_a_save_waits_for_both(clock):
    one = sentinel(clock, save_s=500, step_s=5)
    one.begin_loop()
    steps(one, clock, [1.0] * 3)
    one.extend()
    assert one.limit_s == 505
    one.begin_loop()
    assert one.limit_s == 520
