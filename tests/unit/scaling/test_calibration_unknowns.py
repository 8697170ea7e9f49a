"""What a prediction does not know: its terms, how runs change what is believed, and the band that follows."""

import math
from dataclasses import replace

import pytest

from hvdtrain.scaling.calibration_setting import setting_of
from hvdtrain.scaling.calibration_unknowns import (
    BETWEEN,
    CONTENTION,
    GROWTH,
    INSIDE,
    LOSSES,
    PRIOR,
    STRAGGLERS,
    UNKNOWNS,
    Belief,
    changes,
    mattering,
    moved,
    step_with,
)
from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.forecast import make_forecast
from hvdtrain.scaling.profile import parse_profile
from hvdtrain.scaling.step import step_at, step_time
from hvdtrain.scaling.whatif import what_ifs
from tests.unit.scaling.profiles import profile_document, rank_times


@pytest.fixture(scope="module")
def setting():
    document = profile_document(ranks=[rank_times(std_s=0.01)], num_gradients=4)
    return setting_of(parse_profile(Fields(document, "p")), "NVLink3+25GbE", 8)


def shifted(**named):
    places = {"inside": INSIDE, "between": BETWEEN, "stragglers": STRAGGLERS, "contention": CONTENTION}
    places |= {"losses": LOSSES, "growth": GROWTH}
    return tuple(next((v for n, v in named.items() if places[n] == i), 0.0) for i in range(len(UNKNOWNS)))


def test_the_band_before_any_run_is_the_sum_of_squares(setting):
    row = make_forecast(setting.job, setting.network, [16]).rows[0]
    change = changes(setting.job, setting.network, 16)
    spread = 1.2816 * math.hypot(*change, 0.02)
    assert row.step_s.high / row.step_s.value == pytest.approx(math.exp(spread))
    # What the model misses: 8 % of the lost share, 1 % of each of the four doublings.
    lost = 1 - step_time(setting.job, setting.network, 1) / row.step_s.value
    assert change[LOSSES] == pytest.approx(0.08 * lost)
    assert change[GROWTH] == pytest.approx(0.04)


def test_a_link_moves_by_its_own_spread(setting):
    _, network = moved(setting.job, setting.network, shifted(between=-1.0))
    factor = math.exp(setting.network.between.spread)
    assert network.between.wire.beta_s == pytest.approx(factor * setting.network.between.wire.beta_s)
    assert network.between.wire.alpha_s == pytest.approx(factor * setting.network.between.wire.alpha_s)
    assert network.inside == setting.network.inside


def test_noise_and_contention_move(setting):
    job, _ = moved(setting.job, setting.network, shifted(stragglers=1.0, contention=1.0))
    assert job.jitter_s == pytest.approx(math.exp(0.4) * setting.job.jitter_s)
    assert job.tail.p95_s == pytest.approx(math.exp(0.4) * setting.job.tail.p95_s)
    assert job.contention == pytest.approx(math.exp(0.7) * setting.job.contention)


def test_what_matters_at_a_number_of_ranks(setting):
    assert mattering(setting.job, setting.network, 1) == ()
    assert mattering(setting.job, setting.network, 2) == (INSIDE, STRAGGLERS, CONTENTION)
    assert mattering(setting.job, setting.network, 16) == (INSIDE, BETWEEN, STRAGGLERS, CONTENTION)
    single = replace(setting.network, gpus_per_node=1)
    assert mattering(setting.job, single, 2) == (BETWEEN, STRAGGLERS, CONTENTION)
    change = changes(setting.job, setting.network, 2)
    assert change[BETWEEN] == 0
    assert change[STRAGGLERS] > 0


def test_one_gpu_depends_on_nothing(setting):
    assert changes(setting.job, setting.network, 1) == (0.0,) * len(UNKNOWNS)


def test_a_step_without_shift_is_the_models(setting):
    step = step_at(setting.job, setting.network, 16)
    assert step_with(setting.job, setting.network, 16, PRIOR.mean) == step


def test_what_was_missed_is_shared_among_the_causes(setting):
    old = step_at(setting.job, setting.network, 16)
    new = step_with(setting.job, setting.network, 16, shifted(growth=5.0))
    # Five standard deviations of 1 % for each of four doublings: a fifth in the logarithm.
    assert new.total_s == pytest.approx(math.exp(0.2) * old.total_s)
    assert new.alone_s == old.alone_s
    more = (new.total_s - old.alone_s) / (old.total_s - old.alone_s)
    for cause, value in old.added_s.items():
        assert new.added_s[cause] == pytest.approx(more * value)


def test_no_step_is_shorter_than_that_of_one_rank(setting):
    step = step_with(setting.job, setting.network, 2, shifted(growth=-1000.0))
    assert step.total_s == pytest.approx(step.alone_s)


def test_no_step_is_shorter_than_that_of_fewer_ranks(setting):
    """A run that grew by less than the model says does not make more ranks wait less for each other."""
    belief = Belief(shifted(growth=-8.0), PRIOR.covariance)
    raw = [step_with(setting.job, setting.network, 2**i, belief.mean).total_s for i in range(7)]
    assert raw != sorted(raw)
    rows = make_forecast(setting.job, setting.network, [2**i for i in range(7)], belief=belief).rows
    steps = [row.step_s.value for row in rows]
    assert steps == sorted(steps)
    for row in rows:
        assert row.step.alone_s + sum(row.step.added_s.values()) == pytest.approx(row.step_s.value)


@pytest.mark.parametrize("shift", [{"growth": 3.0, "losses": 2.0}, {"growth": -8.0}])
def test_what_would_help_is_held_against_the_row(setting, shift):
    """The gain is the ratio of the samples/s that stand there, also with what the model missed."""
    belief = Belief(shifted(**shift), PRIOR.covariance)
    row = make_forecast(setting.job, setting.network, [2**i for i in range(7)], belief=belief).rows[-1]
    found = what_ifs(setting.job, setting.network, 64, None, belief.mean, row.step_s.value)
    assert found
    for one in found:
        assert one.samples_per_s / row.samples_per_s.value == pytest.approx(1 + one.gain)


def test_what_was_missed_where_the_model_loses_nothing_is_a_latency(setting):
    job = replace(setting.job, gradients=(), jitter_s=0.0, tail=None)
    step = step_with(job, setting.network, 2, shifted(growth=10.0))
    assert step.added_s["latency"] == pytest.approx(step.alone_s * math.expm1(0.1))
    assert step.total_s == pytest.approx(sum(step.added_s.values()) + step.alone_s)


def test_variance_and_its_parts():
    covariance = [list(row) for row in PRIOR.covariance]
    covariance[0][0], covariance[1][1], covariance[0][1], covariance[1][0] = 0.5, 0.25, 0.1, 0.1
    belief = Belief(PRIOR.mean, tuple(map(tuple, covariance)))
    change = (0.2, 0.4, 0, 0, 0, 0)
    # 0.04 x 0.5 + 0.16 x 0.25 + 2 x 0.08 x 0.1
    assert belief.variance(change) == pytest.approx(0.076)
    assert sum(belief.parts(change)) == pytest.approx(0.076)
    assert belief.parts(change)[0] == pytest.approx(0.028)


def test_another_network_forgets_the_links_only():
    covariance = tuple(tuple(0.5 if i == j else 0.1 for j in range(6)) for i in range(6))
    belief = Belief((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), covariance).without_links()
    assert belief.mean == (0.0, 0.0, 3.0, 4.0, 5.0, 6.0)
    assert belief.covariance[0] == (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert belief.covariance[2] == (0.0, 0.0, 0.5, 0.1, 0.1, 0.1)
