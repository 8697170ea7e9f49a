"""A calibration's folder: states of its runs, predicted beside measured, and what is refused in one line."""

import json
import math

import pytest

from hvdtrain.errors import InputError
from hvdtrain.scaling.advise import Request, advise
from hvdtrain.scaling.calibration_document import proposal_document, reading_document
from hvdtrain.scaling.calibration_results import read_plan, read_results
from hvdtrain.scaling.calibration_runs import propose
from hvdtrain.scaling.calibration_setting import question_of, setting_of
from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.profile import parse_profile
from tests.unit.scaling.profiles import profile_document, rank_times

NETWORK = "NVLink3+25GbE"


def profile(**changed):
    return parse_profile(Fields(profile_document(num_gradients=4, **changed), "p.json"))


def planned(folder, kinds, **changed):
    """A folder with a plan of these runs."""
    one = profile(ranks=[rank_times(std_s=0.005)])
    proposal = propose(question_of(one, setting_of(one, NETWORK, 8), 64), 3)
    document = proposal_document(one, NETWORK, proposal)
    document["runs"] = [
        {"name": f"{kind}-{n}x{g}", "kind": kind, "nodes": n, "ranks_per_node": g} for kind, n, g in kinds
    ]
    folder.mkdir(exist_ok=True)
    plan = {**document, "profile": one.document(), **changed}
    (folder / "calibration.json").write_text(json.dumps(plan))
    return folder


def allreduce(folder, name, levels=(("between", 5e-10),), **changed):
    fits = [
        {
            "level": level,
            "library": "mpi",
            "ranks": 4,
            "alpha_s": 2e-5,
            "beta_s_per_byte": beta,
            "residual": 0.0,
        }
        for level, beta in levels
    ]
    document = {"schema": 1, "kind": "allreduce", "fits": fits, **changed}
    (folder / f"{name}.json").write_text(json.dumps(document))


def profiled(folder, name, hosts, exposed_s=0.03, **changed):
    ranks = [
        rank_times(i, host, exposed_s=exposed_s, wait_s=0.003, std_s=0.005) for i, host in enumerate(hosts)
    ]
    (folder / f"{name}.json").write_text(
        json.dumps(profile_document(ranks=ranks, num_gradients=4, **changed))
    )


RUNS = (("allreduce", 2, 1), ("profile", 2, 2))


@pytest.fixture
def folder(tmp_path):
    return planned(tmp_path / "runs", RUNS)


def test_results_narrow_the_prediction_and_stand_beside_it(folder):
    allreduce(folder, "allreduce-2x1")
    profiled(folder, "profile-2x2", ["a", "a", "b", "b"])
    document = reading_document(read_results(folder), "c.json")
    assert [run["state"] for run in document["runs"]] == ["measured", "measured"]
    assert document["complete"] is True
    assert document["others"] == []
    assert document["narrowed"] is True
    assert document["width"] < document["former_width"]
    row = document["predictions"][-1]
    assert row["gpus"] == 64
    assert row["efficiency_high"] - row["efficiency_low"] < row["former_high"] - row["former_low"]
    bandwidth = document["runs"][0]["compared"][0]
    assert bandwidth["figure"] == "bandwidth between nodes"
    # 25GbE by its name: 3.125 GB/s, of which 55 % are usual; measured 2 GB/s.
    assert bandwidth["predicted"] == pytest.approx(1.71875e9)
    assert bandwidth["measured"] == pytest.approx(2e9)
    assert bandwidth["off"] == pytest.approx(2 / 1.71875 - 1)
    step, work, waiting, communication = document["runs"][1]["compared"]
    assert step["measured"] == pytest.approx(0.133)
    assert (work["predicted"], work["measured"]) == (pytest.approx(0.1), pytest.approx(0.1))
    assert waiting["measured"] == pytest.approx(0.003)
    assert communication["measured"] == pytest.approx(0.03)
    # The predicted parts sum to the predicted step.
    assert sum(one["predicted"] for one in (work, waiting, communication)) == pytest.approx(step["predicted"])


def test_missing_and_unfinished_runs_are_told(folder):
    allreduce(folder, "allreduce-2x1")
    reading = read_results(folder)
    assert [one.state for one in reading.results] == ["measured", "missing"]
    (folder / "profile-2x2.log").write_text("starting\nrank 1 on b ended with 1\n")
    reading = read_results(folder)
    assert reading.results[1].state == "unfinished"
    assert "its log ends: rank 1 on b ended with 1" in reading.results[1].note
    document = reading_document(reading, "c.json")
    assert document["complete"] is False
    assert "without a result: profile-2x2" in document["verdict"]
    # The link alone narrows already.
    assert document["narrowed"] is True


def test_other_files_of_the_folder_are_named(folder):
    allreduce(folder, "allreduce-2x1")
    profiled(folder, "two", ["a", "a"])
    assert read_results(folder).others == ("two.json",)


def test_a_calibrated_profile_is_advice_without_another_word(folder, tmp_path):
    allreduce(folder, "allreduce-2x1")
    profiled(folder, "profile-2x2", ["a", "a", "b", "b"])
    reading = read_results(folder)
    rows = reading_document(reading, "c.json")["predictions"]
    again = parse_profile(Fields(json.loads(json.dumps(reading.profile.document())), "c.json"))
    advice = advise(again, Request(max_gpus=64))
    assert [row.gpus for row in advice.forecast.rows] == [row["gpus"] for row in rows]
    for row, told in zip(advice.forecast.rows, rows, strict=True):
        assert row.efficiency.value == pytest.approx(told["efficiency"])
        assert row.efficiency.low == pytest.approx(told["efficiency_low"])
    assert "calibrated by runs: profile-2x2" in " ".join(advice.notes)
    # The bars of its waterfall still sum to the loss.
    last = advice.forecast.rows[-1]
    kept = again.ranks[0].step_s / last.step_s.value
    assert sum(bar.share for bar in advice.waterfall) == pytest.approx(1 - kept)


def test_advice_for_another_network_keeps_what_is_not_the_links(folder):
    profiled(folder, "profile-2x2", ["a", "a", "b", "b"])
    calibrated = read_results(folder).profile
    other = advise(calibrated, Request(network="NVLink3+100GbE", max_gpus=64))
    plain = advise(profile(ranks=[rank_times(std_s=0.005)]), Request(network="NVLink3+100GbE", max_gpus=64))
    new, old = (one.forecast.rows[-1] for one in (other, plain))
    assert new.step.added_s["bandwidth"] == pytest.approx(old.step.added_s["bandwidth"], rel=0.2)
    assert new.step_s.high / new.step_s.low < old.step_s.high / old.step_s.low


def test_a_run_that_ran_elsewhere_counts_where_it_ran(folder):
    profiled(folder, "profile-2x2", ["a"] * 4, exposed_s=0.002)
    result = read_results(folder).results[1]
    assert (result.step.ranks, result.step.ranks_per_node) == (4, 4)
    assert "ran on 1 node with up to 4 ranks, not as planned" in result.note
    allreduce(folder, "allreduce-2x1", [("inside", 1e-11)])
    result = read_results(folder).results[0]
    assert "the link between nodes was not measured" in result.note


def test_ranks_that_were_slower_by_themselves_are_told(folder):
    ranks = [rank_times(i, "ab"[i // 2], forward_s=0.09, exposed_s=0.03) for i in range(4)]
    (folder / "profile-2x2.json").write_text(json.dumps(profile_document(ranks=ranks, num_gradients=4)))
    result = read_results(folder).results[1]
    assert "a rank's own work was +60 % off: this machine or its load was another" in result.note


def test_a_second_calibration_goes_on_from_the_first(folder, tmp_path):
    allreduce(folder, "allreduce-2x1")
    profiled(folder, "profile-2x2", ["a", "a", "b", "b"])
    first = read_results(folder)
    second = planned(tmp_path / "more", [("profile", 1, 8)], profile=first.profile.document())
    profiled(second, "profile-1x8", ["a"] * 8, exposed_s=0.002)
    reading = read_results(second)
    assert [one.name for one in reading.profile.calibration.steps] == ["profile-2x2", "profile-1x8"]
    assert reading.profile.calibration.network == NETWORK
    document = reading_document(reading, "c.json")
    assert document["former_width"] == pytest.approx(reading_document(first, "c.json")["width"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "profile-2x2.json: the file is empty"),
        ("{", "is no profile: it is no JSON"),
        ("[1]", "is no profile: it holds no JSON object"),
        ('{"schema": 2}', "schema 2 of a profile; legal: schema 1"),
        ('{"schema": 1, "kind": "allreduce"}', "this is a network file"),
        (json.dumps(profile_document(ranks=[rank_times(i) for i in range(2)], job="x")), "of another job"),
        (json.dumps(profile_document()), "is a profile of one rank"),
        (
            json.dumps(profile_document(ranks=[rank_times(i, forward_s=0.001) for i in range(2)])),
            "contradicts the profile",
        ),
    ],
)
def test_results_that_are_none_are_refused(folder, text, told):
    (folder / "profile-2x2.json").write_text(text)
    with pytest.raises(InputError) as caught:
        read_results(folder)
    assert told in str(caught.value)
    assert "profile-2x2.json" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"fits": []}, "fits is empty: the network file has no fit"),
        ({"kind": "x"}, "kind is not allreduce"),
        ({"schema": 3}, "schema 3 of a network file"),
    ],
)
def test_networks_that_are_none_are_refused(folder, changed, told):
    allreduce(folder, "allreduce-2x1", **changed)
    with pytest.raises(InputError, match=r"allreduce-2x1\.json") as caught:
        read_results(folder)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kind": "advice"}, "kind is not calibration"),
        ({"schema": 9}, "schema 9 of a calibration"),
        ({"runs": [{"name": "../x", "kind": "profile", "nodes": 1, "ranks_per_node": 2}]}, "a file's name"),
        ({"runs": [{"name": "x", "kind": "dance", "nodes": 1, "ranks_per_node": 2}]}, "allreduce, profile"),
        ({"runs": [{"name": "x", "kind": "profile", "nodes": 0, "ranks_per_node": 2}]}, "runs[0].nodes"),
        ({"profile": None}, "profile must be an object"),
        ({"runs": []}, "no run has a result yet: the plan has no run"),
    ],
)
def test_plans_that_are_none_are_refused(tmp_path, changed, told):
    folder = planned(tmp_path / "runs", RUNS, **changed)
    with pytest.raises(InputError) as caught:
        read_results(folder)
    assert told in str(caught.value)


def test_folders_that_are_none_are_refused(tmp_path, folder):
    for path, told in (
        (tmp_path / "nothing", "there is no such folder"),
        (tmp_path, "holds no calibration.json"),
        (folder, "no run has a result yet: allreduce-2x1 missing; profile-2x2 missing"),
    ):
        with pytest.raises(InputError) as caught:
            read_results(path)
        assert told in str(caught.value)
    assert read_plan(folder).network == NETWORK
    assert math.isclose(read_plan(folder).profile.ranks[0].step_s, 0.1)
