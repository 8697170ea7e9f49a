"""The noise scale of problems whose own is known, and when a batch is called too large."""

import numpy as np
import pytest

from hvdtrain.measure.noise_scale import NoiseRecord, Norms


def record(noise, steps, size=4, per_rank=8, seed=0):
    """Norms of ranks whose samples have gradients of mean 1 and trace of covariance ``noise``."""
    rng = np.random.default_rng(seed)
    dimension, found = 400, NoiseRecord(per_rank, per_rank * size)
    mean = np.full(dimension, dimension**-0.5)
    for _ in range(steps):
        spread = (noise / dimension / per_rank) ** 0.5
        ranks = mean + spread * rng.standard_normal((size, dimension))
        found.add(Norms(float((ranks**2).sum(axis=1).mean()), float((ranks.mean(axis=0) ** 2).sum())))
    return found


@pytest.mark.parametrize("noise", [2.0, 20.0, 200.0])
def test_a_known_noise_scale(noise):
    estimate = record(noise, 100).estimate()
    assert estimate.simple == pytest.approx(noise, rel=0.1)
    assert estimate.num_steps == 100


def test_by_hand():
    """B_s = 1, B_b = 2: |G|^2 = 2 * 3 - 4 = 2, S = (4 - 3)/(1 - 1/2) = 2."""
    found = NoiseRecord(1, 2)
    for _ in range(5):
        found.add(Norms(4.0, 3.0))
    assert found.estimate().simple == 1.0


def test_nothing_is_said_of_few_steps_or_of_one_rank():
    assert record(2.0, 4).estimate() is None
    alone = NoiseRecord(8, 8)
    for _ in range(50):
        alone.add(Norms(1.0, 1.0))
    assert alone.estimate() is None


def test_noise_that_drowns_the_signal_has_no_scale():
    found = NoiseRecord(1, 2)
    for _ in range(10):
        found.add(Norms(4.0, 2.0))  # |G|^2 = 0
    assert found.estimate() is None


def test_norms_that_are_no_numbers_are_left_out():
    found = record(2.0, 10)
    found.add(Norms(float("inf"), 1.0))
    found.add(Norms(1.0, float("nan")))
    assert found.estimate().num_steps == 10


def test_old_steps_are_forgotten():
    found = record(2.0, 100)
    for norms in record(200.0, 100, seed=1)._norms:
        found.add(norms)
    assert found.estimate().simple == pytest.approx(200.0, rel=0.1)
    assert found.estimate().num_steps == 100


def test_a_report_counts_as_many_times_as_it_has_steps():
    """Of twelve steps nine with the norms 4 and 3, three with 8 and 5: their means are 5 and 3.5."""
    found = NoiseRecord(1, 2)
    found.add(Norms(4.0, 3.0, 3))
    assert found.estimate() is None  # three steps
    found.add(Norms(8.0, 5.0, 3))
    found.add(Norms(4.0, 3.0, 6))
    # |G|^2 = 2 * 3.5 - 5 = 2, S = (5 - 3.5)/(1 - 1/2) = 3
    assert found.estimate().simple == pytest.approx(1.5)
    assert found.estimate().num_steps == 12


def test_enough_reports_are_kept_to_see_how_they_spread():
    found = NoiseRecord(1, 2)
    for number in range(50):
        found.add(Norms(4.0, 3.0, 15))
        assert found.estimate().num_steps == 15 * min(20, number + 1)
    for _ in range(100):
        found.add(Norms(4.0, 3.0))
    assert found.estimate().num_steps == 100


def test_few_reports_of_many_steps_tell_no_verdict():
    """However alike seven means are, and however many steps are in them: the eighth may be another."""
    found = NoiseRecord(8, 32)
    for _ in range(7):
        found.add(Norms(1.2, 1.06, 15))
        assert found.verdict() == ""
    found.add(Norms(1.2, 1.06, 15))
    assert found.verdict() != ""


def told_in_a_training(rng, noise, count, size=2, per_rank=8, dimension=12, reports=60):
    """Whether a verdict comes in a training that asks after each report, as every training does."""
    mean, spread = dimension**-0.5, (noise / dimension / per_rank) ** 0.5
    own = mean + spread * rng.standard_normal((reports, count, size, dimension))
    small = (own**2).sum(axis=3).mean(axis=(1, 2))
    big = (own.mean(axis=2) ** 2).sum(axis=2).mean(axis=1)
    found = NoiseRecord(per_rank, per_rank * size)
    for pair in zip(small.tolist(), big.tolist(), strict=True):
        found.add(Norms(*pair, count))
        if found.verdict():
            return True
    return False


@pytest.mark.parametrize("count", [1, 15])
def test_at_the_border_a_verdict_is_rare_and_well_past_it_certain(count):
    """The border: a noise scale of half the global batch, which is 16. Each is one training of 200."""
    rng = np.random.default_rng(count)
    wrong = sum(told_in_a_training(rng, 8.0, count) for _ in range(200))
    assert wrong < 0.05 * 200
    assert all(told_in_a_training(rng, 1.0, count) for _ in range(20))


def test_a_batch_that_is_clearly_past_the_noise_scale_is_told():
    told = record(2.0, 100).verdict()  # the global batch is 32
    assert told.startswith(
        "your batch is past what this problem can use: the gradient's noise scale is about "
    )
    assert "the global batch 32" in told
    assert record(2.0, 19).verdict() == ""  # too few steps
    assert record(20.0, 100).verdict() == ""  # past it, and not clearly
    assert record(200.0, 100).verdict() == ""
