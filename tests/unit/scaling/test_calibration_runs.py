"""Which runs are proposed: what they narrow follows from the model, and the cheapest that do are taken."""

import json
import math
import random
from dataclasses import replace
from itertools import combinations, pairwise
from statistics import fmean

import pytest

from hvdtrain.scaling.calibration_learning import Place, figure_errors, learn, waiting_s
from hvdtrain.scaling.calibration_points import MeasuredStep
from hvdtrain.scaling.calibration_runs import (
    FITTED_LINK_SPREAD,
    LEAST_GAIN,
    NEAR_BEST,
    Run,
    Valued,
    make_targets,
    possible_runs,
    propose,
)
from hvdtrain.scaling.calibration_setting import question_of, setting_of
from hvdtrain.scaling.calibration_unknowns import (
    BETWEEN,
    FIGURE_ERROR,
    INSIDE,
    PRIOR,
    UNKNOWNS,
    Belief,
    changes,
    moved,
    step_with,
)
from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.forecast import step_band
from hvdtrain.scaling.network import read_network
from hvdtrain.scaling.profile import parse_profile
from tests.unit.scaling.profiles import profile_document, rank_times

FITS = [
    {"level": level, "library": "mpi", "ranks": 2, "alpha_s": 1e-5, "beta_s_per_byte": beta, "residual": 0.0}
    for level, beta in (("inside", 1e-11), ("between", 4e-10))
]


def question(network="NVLink3+25GbE", node=8, last=64, std_s=0.0, **changed):
    ranks = changed.pop("ranks", [rank_times(std_s=std_s)])
    profile = parse_profile(Fields(profile_document(ranks=ranks, num_gradients=4, **changed), "p.json"))
    return question_of(profile, setting_of(profile, network, node), last)


def network_file(tmp_path, levels=("inside", "between")):
    path = tmp_path / "network.json"
    fits = [fit for fit in FITS if fit["level"] in levels]
    path.write_text(json.dumps({"schema": 1, "kind": "allreduce", "fits": fits}))
    return str(path)


def names(runs):
    return {run.name for run in runs}


def test_a_profile_narrows_by_the_formula():
    asked = question(last=16)  # noise-free ranks: the waiting tells nothing
    one = next(one for one in propose(asked, 1).weighed if one.runs[0].name == "profile-2x2")
    error, _ = figure_errors(0.0, 0.0)
    assert error == pytest.approx(0.02)
    change = changes(asked.job, Place(4, 2).of(asked.network), 4)
    # One figure: C' = 1 - g g' / (e^2 + g' g), by Sherman and Morrison.
    whole = error**2 + sum(g * g for g in change)
    for i, row in enumerate(one.belief.covariance):
        expected = [(i == j) - change[i] * change[j] / whole for j in range(len(change))]
        assert row == pytest.approx(expected, abs=1e-9)


def test_an_allreduce_leaves_a_link_as_well_known_as_a_fitted_one(tmp_path):
    asked = question()
    one = next(one for one in propose(asked, 1).weighed if one.runs[0].name == "allreduce-2x1")
    expected = (FITTED_LINK_SPREAD / asked.network.between.spread) ** 2
    assert one.belief.covariance[BETWEEN][BETWEEN] == pytest.approx(expected)
    assert one.belief.covariance[INSIDE][INSIDE] == pytest.approx(1)
    assert one.tells() == ("link between nodes",)
    assert read_network(network_file(tmp_path), 8).between.spread == pytest.approx(FITTED_LINK_SPREAD)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_cheapest_of_the_sets_that_do_nearly_as_well_is_taken(most):
    asked = question(std_s=0.01)
    proposal = propose(asked, most)
    assert 1 <= len(proposal.chosen.runs) <= most
    singles = {one.runs[0]: one for one in proposal.weighed}
    best = max(one.gain for one in proposal.weighed)
    assert proposal.chosen.gain >= NEAR_BEST * best
    assert proposal.width == pytest.approx(asked.width(PRIOR))
    assert proposal.chosen.gain == pytest.approx(proposal.width - asked.width(proposal.chosen.belief))
    for run in proposal.chosen.runs:  # none of them is there for nothing
        assert len(proposal.chosen.runs) == 1 or singles[run].gain < proposal.chosen.gain
    for pair in combinations(singles, 1):
        cheaper = singles[pair[0]]
        if cheaper.gpu_minutes < proposal.chosen.gpu_minutes:
            assert cheaper.gain < proposal.chosen.gain


def test_more_runs_never_tell_less():
    asked = question(std_s=0.01)
    gains = [propose(asked, most) for most in (1, 2, 3)]
    # The cheapest set that gains nearly what the best one does; the best of more runs has all of fewer in it.
    for fewer, more in pairwise(gains):
        assert more.chosen.gain >= NEAR_BEST * max(fewer.chosen.gain, fewer.best_gain)
        assert len(more.chosen.runs) >= 1
    # Whatever is weighed, no run makes the prediction wider.
    assert all(one.gain >= -1e-9 for one in gains[0].weighed)


def test_runs_are_smaller_than_what_they_predict():
    small = possible_runs(question(last=64))
    assert max(run.place.ranks for run in small) == 16
    assert {run.nodes for run in small} == {1, 2, 4}
    assert names(possible_runs(question(last=8))) == {"profile-1x2", "allreduce-1x2"}
    assert names(possible_runs(question(last=2, node=2))) == {"profile-1x2", "allreduce-1x2"}
    single = possible_runs(question(last=2, node=1))
    assert names(single) == {"profile-2x1", "allreduce-2x1"}
    assert possible_runs(question(last=1)) == []


def test_no_run_on_more_nodes_than_are_predicted():
    assert {run.nodes for run in possible_runs(question(last=16))} == {1, 2}


def test_a_link_that_was_measured_is_not_measured_again(tmp_path):
    both = names(possible_runs(question(network_file(tmp_path))))
    assert not any(name.startswith("allreduce") for name in both)
    inside = names(possible_runs(question(network_file(tmp_path, ["inside"]))))
    assert {name for name in inside if name.startswith("allreduce")} == {"allreduce-2x1"}


def test_where_the_profile_was_taken_is_not_profiled_again():
    ranks = [rank_times(i, "a") for i in range(2)]
    assert "profile-1x2" not in names(possible_runs(question(ranks=ranks)))
    assert "profile-2x1" in names(possible_runs(question(ranks=ranks)))


def test_a_prediction_that_no_run_narrows():
    proposal = propose(question(last=8), 3)
    assert proposal.chosen.runs == ()
    assert proposal.chosen.gain == 0
    assert 0 < proposal.best_gain < LEAST_GAIN
    assert propose(question(last=1), 3).weighed == ()


def test_what_is_known_already_is_not_told_again():
    asked = question()
    first = propose(asked, 1)
    again = propose(replace(asked, belief=Belief(PRIOR.mean, first.chosen.belief.covariance)), 1)
    assert again.width == pytest.approx(first.width - first.chosen.gain)
    assert again.best_gain < 0.5 * first.best_gain


def test_cost_by_hand():
    run = Run("profile", 2, 4, 100, 90.0)
    assert run.name == "profile-2x4"
    assert run.gpu_minutes == pytest.approx(8 * 1.5)
    assert Valued((run, run), PRIOR, 0.0).gpu_minutes == pytest.approx(24)
    runs = {run.name: run for run in possible_runs(question(std_s=0.0))}
    # A minute to start, 3 s to read the data alone, 10 + 50 steps of a little over 100 ms.
    assert runs["profile-1x2"].steps == 50
    assert runs["profile-1x2"].duration_s == pytest.approx(63 + 60 * 0.1, rel=0.01)
    assert runs["allreduce-2x2"].duration_s == pytest.approx(90)
    # Steps that vary by three tenths: 225 of them leave 2 % to chance.
    noisy = {run.name: run for run in possible_runs(question(std_s=0.03))}
    assert noisy["profile-1x2"].steps == 225


def test_runs_of_made_up_truths_narrow_as_expected_and_the_bands_hold():
    asked = question(std_s=0.01, last=32)
    proposal = propose(asked, 3)
    chance = random.Random(17)
    inside, widths, former, now = [], [], [], []
    for _ in range(12):
        truth = [chance.gauss(0, 1) for _ in UNKNOWNS]

        def measured(place, truth=truth):
            step_s = step_with(asked.job, place.of(asked.network), place.ranks, truth).total_s
            step_s *= math.exp(chance.gauss(0, FIGURE_ERROR))
            job, _ = moved(asked.job, asked.network, truth)
            waits = waiting_s(job, place.ranks) + chance.gauss(0, FIGURE_ERROR) * step_s
            return MeasuredStep("run", place.ranks, place.ranks_per_node, step_s, max(0.0, waits), 0.01, 0.01)

        steps = [measured(run.place) for run in proposal.chosen.runs if run.kind == "profile"]
        belief = learn(asked.job, asked.network, steps)
        targets = make_targets(asked.job, asked.network, belief, [target.gpus for target in asked.targets])
        widths.append(replace(asked, targets=targets).width(belief))
        for old, new in zip(asked.targets, targets, strict=True):
            step_s = measured(Place(new.gpus, 8)).step_s
            band = step_band(new.step_s, belief.variance(new.change))
            inside.append(band.low <= step_s <= band.high)
            former.append(abs(math.log(old.step_s / step_s)))
            now.append(abs(math.log(new.step_s / step_s)))
    assert {run.kind for run in proposal.chosen.runs} == {"profile"}
    assert fmean(widths) == pytest.approx(proposal.width - proposal.chosen.gain, rel=0.35)
    assert fmean(inside) >= 0.7  # four of five, of 60
    assert fmean(now) < 0.6 * fmean(former)
