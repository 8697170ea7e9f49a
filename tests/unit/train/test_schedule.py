"""Learning rates worked out by hand."""

import math

import pytest

from hvdtrain.config import ScheduleConfig
from hvdtrain.train.schedule import Course, Pace, Position, describe, learning_rate, peak_rate, rate_at


def rates(steps, **options):
    schedule = ScheduleConfig(**options)
    return [learning_rate(schedule, 1.0, step, steps_per_epoch=4, total_steps=12) for step in steps]


def test_warm_up_is_linear_and_its_first_step_moves():
    assert rates(range(5), warmup_epochs=1) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_warm_up_that_ends_inside_a_step_ends_at_the_peak():
    # 0.3 epochs are 1.2 steps: the first step ends at 1 of 1.2, the second begins inside and ends after it.
    assert rates(range(3), warmup_epochs=0.3) == pytest.approx([1 / 1.2, 1.0, 1.0])
    assert rates([0], warmup_epochs=0.01) == [1.0]


def test_cosine_after_warm_up():
    # 8 steps remain after the warm-up of 4: half of them done is half of the peak.
    assert rates([4, 8], name="cosine", warmup_epochs=1) == pytest.approx([1.0, 0.5])
    assert rates([11], name="cosine", warmup_epochs=1) == pytest.approx([(1 + math.cos(math.pi * 7 / 8)) / 2])


def test_final_fraction_is_the_floor():
    assert rates([12], name="cosine", final_fraction=0.1) == pytest.approx([0.1])
    assert rates([6], name="polynomial", power=2, final_fraction=0.2) == pytest.approx([0.2 + 0.8 * 0.25])


def test_steps_drop_by_their_factor():
    assert rates([0, 3, 4, 8], name="step", step_epochs=1, step_factor=0.1) == pytest.approx(
        [1, 1, 0.1, 0.01]
    )


@pytest.mark.parametrize("steps_per_epoch", [3, 7, 10, 42, 49])
@pytest.mark.parametrize("step_epochs", [0.1, 0.2, 0.3, 0.7, 3])
def test_each_drop_comes_at_the_first_step_that_begins_after_it(steps_per_epoch, step_epochs):
    schedule = ScheduleConfig(name="step", step_epochs=step_epochs, step_factor=0.5)
    tenths = round(step_epochs * 10)
    for step in range(5 * steps_per_epoch):
        found = learning_rate(schedule, 1.0, step, steps_per_epoch=steps_per_epoch, total_steps=1000)
        assert found == 0.5 ** (step * 10 // (steps_per_epoch * tenths))


@pytest.mark.parametrize(
    ("options", "peak"),
    [
        ({}, 0.1),
        ({"scaling": "linear", "base_batch": 256}, 3.2),  # Goyal et al.: 0.1 at 256, 3.2 at 8192
        ({"scaling": "sqrt", "base_batch": 512}, 0.4),
        ({"scaling": "linear", "base_batch": 16384}, 0.05),
    ],
)
def test_the_peak_grows_with_the_global_batch_only_where_it_is_told_to(options, peak):
    assert peak_rate(ScheduleConfig(**options), 0.1, 8192) == pytest.approx(peak, rel=1e-15)


def test_positions_in_epochs():
    pace = Pace(num_samples=100, global_batch=30)
    assert [pace.num_steps(), pace.num_steps(50), pace.num_steps(100)] == [4, 2, 0]
    assert [pace.epochs_done(2, consumed) for consumed in (0, 30, 90, 100)] == [2, 2.3, 2.9, 3]
    assert [pace.epochs_after(0, 0, steps) for steps in (0, 3, 4, 5, 9)] == [0, 0.9, 1, 1.3, 2.3]
    # 50 samples were used under another batch: two steps end this epoch.
    assert [pace.epochs_after(1, 50, steps) for steps in (1, 2, 3)] == [1.8, 2, 2.3]
    dropping = Pace(num_samples=100, global_batch=30, drops_tail=True)
    assert [dropping.epochs_after(0, 0, steps) for steps in (2, 3, 4)] == [0.6, 1, 1.3]
    assert Pace(num_samples=10, global_batch=64).step_epochs == 1


@pytest.mark.parametrize("drops_tail", [False, True])
def test_the_end_of_a_run_is_the_same_from_each_of_its_positions(drops_tail):
    pace, steps = Pace(num_samples=1438, global_batch=35, drops_tail=drops_tail), 100
    end = pace.epochs_after(0, 0, steps)
    for done in range(steps + 1):
        epoch, in_epoch = divmod(done, pace.num_steps())
        assert pace.epochs_after(epoch, in_epoch * 35, steps - done) == end


CURVES = [
    {"name": "cosine", "warmup_epochs": 1.5, "final_fraction": 0.01},
    {"name": "polynomial", "power": 2, "warmup_epochs": 1.5},
    {"name": "step", "step_epochs": 1, "step_factor": 0.3},
]


@pytest.mark.parametrize("options", CURVES)
def test_another_world_goes_on_at_the_same_place_of_the_curve(options):
    """From 32 samples a step to 64; the raw step would stand for twice as many epochs from then on."""
    schedule = ScheduleConfig(**options)
    before, after = Pace(num_samples=1024, global_batch=32), Pace(num_samples=1024, global_batch=64)
    for epoch, consumed in [(2, 0), (2, 512), (7, 960)]:
        done = [pace.epochs_done(epoch, consumed) for pace in (before, after)]
        found = [
            rate_at(schedule, 1.0, at, step_epochs=pace.step_epochs, total_epochs=10)
            for at, pace in zip(done, (before, after), strict=True)
        ]
        assert found[0] == found[1] < 1
    raw = learning_rate(
        schedule, 1.0, 7 * before.num_steps(), steps_per_epoch=after.num_steps(), total_steps=160
    )
    assert raw != rate_at(schedule, 1.0, 7, step_epochs=after.step_epochs, total_epochs=10)


@pytest.mark.parametrize("options", CURVES)
def test_steps_that_are_all_alike_have_the_rate_of_their_position(options):
    schedule = ScheduleConfig(**options)
    pace = Pace(num_samples=1024, global_batch=32)
    for step in range(320):
        position = pace.epochs_done(step // 32, step % 32 * 32)
        at = rate_at(schedule, 0.1, position, step_epochs=pace.step_epochs, total_epochs=10)
        assert at == learning_rate(schedule, 0.1, step, steps_per_epoch=32, total_steps=320)


LENGTHS = [{"epochs": 6}, {"epochs": None, "steps": 230}]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("options", CURVES)
def test_a_run_that_goes_on_has_the_rates_of_one_that_never_stopped(options, length):
    """1,438 samples in batches of 35 end in a step of 3: positions by samples, not by steps."""
    schedule, pace = ScheduleConfig(**options), Pace(num_samples=1438, global_batch=35)
    whole = Course(schedule, 0.1, pace, **length)
    for step in range(0, 230, 13):
        epoch, in_epoch = divmod(step, 42)
        resumed = Course(schedule, 0.1, pace, **length, start=Position(step, epoch, in_epoch * 35))
        assert [resumed(later) for later in range(step, 230)] == [whole(later) for later in range(step, 230)]


@pytest.mark.parametrize("options", CURVES)
def test_a_change_of_world_scales_the_peak_and_keeps_the_place(options):
    """8 ranks of 16 samples go on as 2 ranks of 16: the fourth part of the batch, and of the rate."""
    schedule = ScheduleConfig(**options, scaling="linear", base_batch=128)
    before = Course(schedule, 0.4, Pace(2048, 128), epochs=10)
    # After 3 epochs of 16 steps and 8 steps of the fourth, 1024 samples.
    after = Course(schedule, 0.4, Pace(2048, 32), epochs=10, start=Position(56, 3, 1024))
    assert (before.peak, after.peak) == (0.4, 0.1)
    assert after.epochs_done(56) == before.epochs_done(56) == 3.5
    assert after(56) == pytest.approx(before(56) / 4, rel=1e-15)
    # The run ends 6.5 epochs of 64 steps later, at the end of the curve.
    assert after.epochs_done(56 + 416) == before.epochs_done(160) == 10


def test_a_length_in_steps_ends_with_the_curve_in_any_world():
    schedule = ScheduleConfig(name="polynomial")
    after = Course(schedule, 1.0, Pace(100, 10), None, steps=40, start=Position(20, 2, 50))
    # 20 steps are left: 5 of this epoch, 10 of the next and 5 more.
    assert after.total_epochs == 4.5
    assert after(39) == pytest.approx(0.1 / 4.5)


def described(lr, ranks, total_epochs=90, **options):
    pace = Pace(num_samples=1_281_167, global_batch=8192)
    return describe(ScheduleConfig(**options), lr, ranks=ranks, pace=pace, total_epochs=total_epochs)


def test_what_is_applied_is_told():
    # 1,281,167 images are 156.4 steps an epoch: five epochs of warm-up end in step 782.
    assert described(0.1, 256, name="cosine", scaling="linear", base_batch=256, warmup_epochs=5) == (
        "learning rate: global batch 8192 on 256 ranks, base 0.1 at batch 256, "
        "peak 3.2 = 0.1 * 8192/256 (scaling linear); warm-up over 5 epochs (782 steps); "
        "then cosine to 0 of the peak at epoch 90"
    )
    assert described(0.1, 1) == (
        "learning rate: global batch 8192 on 1 rank, peak 0.1 = lr as it stands (scaling none); "
        "no warm-up; then constant"
    )
    assert "peak 0.4 = 0.1 * sqrt(8192/512) (scaling sqrt)" in described(
        0.1, 2, scaling="sqrt", base_batch=512
    )
    assert described(1, 2, name="step", step_factor=0.5).endswith("then times 0.5 every 30 epochs")
    assert described(1, 2, name="polynomial", power=2, final_fraction=0.1).endswith(
        "then polynomial of power 2 to 0.1 of the peak at epoch 90"
    )


@pytest.mark.parametrize(("epochs", "is_cut"), [(1, True), (4.5, True), (5, False), (6, False)])
def test_a_warm_up_that_outlasts_the_run_is_told(epochs, is_cut):
    told = described(1, 2, epochs, name="cosine", warmup_epochs=5)
    never = f"the warm-up of 5 epochs is longer than the run of {epochs:g}: the peak rate is never reached"
    assert told.endswith(f"warm-up over 5 epochs (782 steps); {never}") == is_cut
    assert ("then cosine" in told) != is_cut


def test_a_warm_up_as_long_as_the_run_reaches_the_peak_in_its_last_step():
    schedule = ScheduleConfig(warmup_epochs=2)
    assert learning_rate(schedule, 1.0, 7, steps_per_epoch=4, total_steps=8) == 1.0
