"""Noise scale, steps, samples and cost to a target by hand; stragglers; the laws that know no mechanism."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import InputError
from hvdtrain.scaling import laws
from hvdtrain.scaling import statistics as s
from hvdtrain.scaling.straggling import Tail, excess_of_max, smooth_max


def test_the_noise_scale_by_hand():
    # |G|^2 = (64*1.5 - 8*5)/56 = 1; S = (5 - 1.5)/(1/8 - 1/64) = 32
    assert s.noise_scale([(5.0, 1.5)], 8, 64) == pytest.approx(32.0)


def test_the_noise_scale_is_a_ratio_of_averages():
    # |G|^2: 1 and (64*2 - 8*9)/56 = 1; S: 32 and 7/0.109375 = 64; 48/1, not the mean of ratios of other pairs
    assert s.noise_scale([(5.0, 1.5), (9.0, 2.0)], 8, 64) == pytest.approx(48.0)


def test_the_noise_scale_of_drawn_gradients():
    chance = random.Random(3)
    dims, sigma, small, big = 50, 2.0, 4, 64
    mean = [0.3] * dims
    pairs = []
    for _ in range(400):
        norms = []
        for batch in (small, big):
            noise = sigma / math.sqrt(batch)
            norms.append(sum((m + chance.gauss(0, noise)) ** 2 for m in mean))
        pairs.append(tuple(norms))
    assert s.noise_scale(pairs, small, big) == pytest.approx(sigma**2 / 0.3**2, rel=0.1)


def test_no_signal_is_an_infinite_scale_and_no_noise_is_none():
    assert s.noise_scale([(8.0, 1.0)], 1, 8) == math.inf
    assert s.noise_scale([(1.0, 1.0)], 1, 8) == 0.0
    for pairs, small, big in (([], 1, 2), ([(1.0, 1.0)], 2, 2)):
        with pytest.raises(InputError):
            s.noise_scale(pairs, small, big)


def test_steps_samples_time_and_cost_by_hand():
    assert s.steps_to_target(1000, 256, 128) == 3000
    assert s.samples_to_target(100_000, 256, 128) == 150_000
    assert s.least_steps(3000, 128, 256) == 1000
    # E at B_crit is 2 E_min, at half of it 1.5
    assert s.extra_samples(256, 128, 256) == pytest.approx(2 / 1.5 - 1)
    assert s.time_to_target(3000, 0.5) == 1500
    assert s.cost_to_target(8, 2.0, 1800) == 8.0


@given(batch=st.floats(1, 1e6), crit=st.floats(1, 1e6))
def test_steps_times_batch_are_the_samples(batch, crit):
    least = 1000.0
    samples = s.samples_to_target(least * crit, crit, batch)
    assert s.steps_to_target(least, crit, batch) * batch == pytest.approx(samples)


def test_the_slowest_of_normal_ranks():
    assert excess_of_max(1) == 0
    assert excess_of_max(2) == pytest.approx(0.5642, abs=1e-4)
    # tabulated: 1.4236 of 8, 1.7660 of 16, 2.5076 of 100
    assert [excess_of_max(p) for p in (8, 16, 100)] == pytest.approx([1.4236, 1.7660, 2.5076], rel=0.01)
    assert excess_of_max(4096) < math.sqrt(2 * math.log(4096))


def test_the_slowest_of_skewed_ranks():
    tail = Tail(p95_s=0.02, max_s=0.05, ranks=1)
    # of 13.51 ranks the median of the slowest is the 95th percentile: 0.95 = 0.5^(1/13.51)
    assert tail.excess(13) < 0.02 < tail.excess(14)
    # of 2: the quantile 0.7071, log(0.5/0.2929)/log(10) of the way
    assert tail.excess(2) == pytest.approx(0.02 * math.log10(0.5 / (1 - 0.5**0.5)))
    assert (tail.excess(1), tail.excess(10**6)) == (0.0, 0.05)
    assert Tail(0.02, 0.05, ranks=4).excess(8) == pytest.approx(tail.excess(2))
    # exponential noise of mean 1: its 95th percentile is ln 10 above its median, and skewed
    assert Tail(math.log(10), 9.0, 1).is_skewed(1.0)
    assert not Tail(1.645, 4.0, 1).is_skewed(1.0)


def test_a_smooth_maximum():
    assert smooth_max(0.0, 0.0) == 0
    assert smooth_max(2.0, 0.0) == 2
    assert smooth_max(1.0, 1.0) == pytest.approx(2**0.25)


def test_laws_by_hand():
    assert laws.efficiency(6679, 8, 872, 1) == pytest.approx(0.9574, abs=1e-4)
    assert laws.amdahl(0.1, 10) == pytest.approx(1 / 0.19)
    assert laws.gustafson(0.1, 10) == pytest.approx(9.1)
    assert laws.karp_flatt(laws.amdahl(0.1, 10), 10) == pytest.approx(0.1)


def test_the_scalability_law_finds_what_made_the_rows():
    law = laws.ScalabilityLaw(100.0, 0.02, 0.001)
    found = laws.fit_scalability_law([(p, law.throughput(p)) for p in (1, 2, 4, 8, 16)])
    assert (found.rate, found.contention, found.coherency) == pytest.approx((100.0, 0.02, 0.001), rel=1e-6)
    assert laws.fit_scalability_law([(8, 800.0)]).throughput(16) == pytest.approx(1600)
    two = laws.fit_scalability_law([(1, 100.0), (8, 400.0)])
    assert (two.throughput(8), two.coherency) == (pytest.approx(400), 0)
    assert laws.fit_scalability_law([(1, 100.0), (2, 250.0)]).contention == 0
