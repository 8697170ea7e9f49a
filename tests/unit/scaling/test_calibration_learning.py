"""What measured steps say of the unknowns: truths that are made up are found again."""

import json
import math

import pytest

from hvdtrain.errors import InputError
from hvdtrain.scaling.calibration_learning import (
    Place,
    check_same_job,
    learn,
    measured_step,
    sampling_error,
    waiting_s,
)
from hvdtrain.scaling.calibration_points import MeasuredStep
from hvdtrain.scaling.calibration_setting import setting_of
from hvdtrain.scaling.calibration_unknowns import (
    BETWEEN,
    PRIOR,
    STRAGGLERS,
    UNKNOWNS,
    changes,
    moved,
    step_with,
)
from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.profile import parse_profile
from hvdtrain.scaling.step import step_time
from tests.unit.scaling.profiles import profile_document, rank_times


def profile(**changed):
    return parse_profile(Fields(profile_document(num_gradients=4, **changed), "p.json"))


@pytest.fixture(scope="module")
def setting():
    return setting_of(profile(ranks=[rank_times(std_s=0.01)]), "NVLink3+25GbE", 8)


def of_truth(setting, shift, ranks, on_node, factor=1.0):
    """What a run would measure where the unknowns are these, and the step ``factor`` times the model's."""
    place = Place(ranks, on_node)
    job, network = moved(setting.job, place.of(setting.network), shift)
    step_s = factor * step_time(job, network, ranks)
    return MeasuredStep("run", ranks, on_node, step_s, waiting_s(job, ranks), 0.002, 0.002)


def variance(setting, belief, ranks):
    return belief.variance(changes(setting.job, setting.network, ranks, belief.mean))


def truth(at, value):
    return tuple(value if i == at else 0.0 for i in range(len(UNKNOWNS)))


def test_without_runs_nothing_is_learnt(setting):
    assert learn(setting.job, setting.network, []) == PRIOR


def test_a_run_that_agrees_narrows_and_does_not_move(setting):
    belief = learn(setting.job, setting.network, [of_truth(setting, PRIOR.mean, 4, 2)])
    assert max(map(abs, belief.mean)) < 0.05
    for ranks in (2, 4, 16, 64):
        assert variance(setting, belief, ranks) < variance(setting, PRIOR, ranks)
    # Of what a run on one node cannot tell nothing is learnt.
    inside = learn(setting.job, setting.network, [of_truth(setting, PRIOR.mean, 2, 2)])
    assert inside.covariance[BETWEEN][BETWEEN] == pytest.approx(1)


def test_a_slower_link_is_found_and_what_it_means_for_more_nodes(setting):
    shift = truth(BETWEEN, -1.5)  # 25GbE that reaches half of what is usual
    belief = learn(setting.job, setting.network, [of_truth(setting, shift, 4, 2)])
    assert belief.mean[BETWEEN] == pytest.approx(-1.5, abs=0.4)
    for ranks in (16, 64):
        true_s = step_time(*moved(setting.job, setting.network, shift), ranks)
        told_s = step_with(setting.job, setting.network, ranks, belief.mean).total_s
        former_s = step_time(setting.job, setting.network, ranks)
        assert abs(math.log(told_s / true_s)) < 0.2 * abs(math.log(former_s / true_s))
        sigma = math.sqrt(variance(setting, belief, ranks) + 0.02**2)
        assert abs(math.log(told_s / true_s)) < 1.2816 * sigma


def test_waiting_tells_stragglers_from_the_link(setting):
    shift = truth(STRAGGLERS, 2.0)
    belief = learn(setting.job, setting.network, [of_truth(setting, shift, 16, 8)])
    assert belief.mean[STRAGGLERS] > 1.2
    assert abs(belief.mean[BETWEEN]) < 0.3
    assert belief.covariance[STRAGGLERS][STRAGGLERS] < 0.5


def test_two_runs_tell_more_than_one(setting):
    runs = [of_truth(setting, PRIOR.mean, 2, 2), of_truth(setting, PRIOR.mean, 4, 2)]
    one, both = (learn(setting.job, setting.network, some) for some in (runs[:1], runs))
    assert variance(setting, both, 64) < variance(setting, one, 64)


def test_a_run_that_lies_far_off_leaves_less_known_than_one_that_agrees(setting):
    agrees, off = (
        learn(setting.job, setting.network, [of_truth(setting, PRIOR.mean, 2, 2, factor)])
        for factor in (1.0, 1.5)
    )
    # The step that was measured is where it was measured, and what it means for others is less sure.
    usual = step_time(setting.job, Place(2, 2).of(setting.network), 2)
    told = step_with(setting.job, setting.network, 2, off.mean).total_s
    assert told == pytest.approx(1.5 * usual, rel=0.1)
    assert variance(setting, off, 8) > variance(setting, agrees, 8)


def test_figures_of_a_measured_step_by_hand():
    base = profile(ranks=[rank_times(std_s=0.01)])  # a step of 100 ms, 50 of them
    ranks = [rank_times(0, wait_s=0.02, std_s=0.03), rank_times(1, exposed_s=0.02, std_s=0.04)]
    other = profile(ranks=ranks)
    step = measured_step("r", other, base)
    assert (step.ranks, step.ranks_per_node) == (2, 2)
    assert step.step_s == pytest.approx(0.12)
    assert step.wait_s == pytest.approx(0.01)
    assert sampling_error(base) == pytest.approx(0.1 / math.sqrt(50))
    # Root mean square of 30 and 40 ms over 120 ms, and the base's tenth, both over the root of 50 steps.
    noise = math.sqrt((0.0009 + 0.0016) / 2) / 0.12
    assert step.step_error == pytest.approx(math.hypot(noise, 0.1) / math.sqrt(50))
    assert step.wait_error == pytest.approx(math.sqrt(math.pi / 2 - 1) * 0.01 / 0.12 / math.sqrt(50))


TWO = [rank_times(0), rank_times(1)]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ranks": [rank_times()]}, "r.json: is a profile of one rank; profile the job on more ranks"),
        ({"ranks": TWO, "job": "faces"}, "another job: job is faces, that of the calibrated one digits"),
        ({"ranks": TWO, "device_name": "V100"}, "device_name is V100, that of the calibrated one H200"),
        ({"ranks": TWO, "gradient_bytes": 4000}, "gradients.bytes is 4000"),
        ({"ranks": TWO, "global_batch": 64}, "a rank takes 32 samples a step, that of the calibrated"),
    ],
)
def test_profiles_of_other_jobs_are_refused(changed, told):
    with pytest.raises(InputError) as caught:
        check_same_job(profile(**changed), profile(), "r.json")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_step_faster_than_any_of_one_rank_is_a_contradiction():
    ranks = [rank_times(i, forward_s=0.01) for i in range(2)]
    with pytest.raises(InputError) as caught:
        check_same_job(profile(ranks=ranks), profile(), "r.json")
    assert "contradicts the profile: 2 ranks took 80 ms a step, less than the shortest of 1, 100 ms" in str(
        caught.value
    )
    check_same_job(profile(ranks=TWO), profile(), "r.json")  # as fast is none


def test_a_calibration_is_read_strictly():
    steps = [{"name": "a", "ranks": 2, "ranks_per_node": 3, "step_s": 1, "wait_s": 0}]
    document = {"network": None, "measured": [], "gpus_per_node": 8, "steps": steps}
    with pytest.raises(InputError, match=r"calibration\.steps\[0\]\.ranks_per_node is 3 of 2 ranks"):
        profile(calibration=document)
    with pytest.raises(InputError, match=r"calibration\.measured must be a list of files"):
        profile(calibration={**document, "measured": "x"})
    read = profile(calibration={**document, "steps": []})
    assert read.document()["calibration"] == {**document, "steps": []}
    assert "calibration" not in json.loads(json.dumps(profile().document()))
