"""What the figures tell: every number against one that is worked out by hand."""

import json

import pytest

from hvdtrain.report.advice_record import parse_advice
from hvdtrain.report.advice_sections import advice_sections, advice_tiles
from hvdtrain.report.batch_note import note_on_batch
from hvdtrain.report.curves import curve_sections
from hvdtrain.report.profile_sections import profile_sections, profile_tiles
from hvdtrain.report.recognise import make_report
from hvdtrain.report.run_record import read_run
from hvdtrain.report.run_sections import run_facts, run_lead, run_state, run_tiles
from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.profile import parse_profile
from tests.unit.report.documents import MEASURED, advice, metric_lines, write_run
from tests.unit.scaling.profiles import profile_document, rank_times


def figures(sections):
    return {figure.key: figure for section in sections for figure in section.figures}


def rows(figure):
    keys = [column.key for column in figure.table.columns]
    return [dict(zip(keys, [cell.value for cell in row], strict=True)) for row in figure.table.rows]


def of_advice(document):
    return figures(advice_sections(parse_advice(Fields(document, "a"))))


def of_profile(**changed):
    return figures(profile_sections(parse_profile(Fields(profile_document(**changed), "p"))))


def tiles(found):
    return {tile.name: (tile.text, tile.detail) for tile in found}


def test_efficiency_and_the_recommended_row():
    figure = of_advice(advice())["efficiency"]
    assert [row["efficiency"] for row in rows(figure)] == [1.0, 0.96, 0.9, 0.5]
    assert figure.table.rows[figure.table.marked][0].value == 4
    assert figure.table.rows[2][1].detail == "85.0 to 95.0 %"
    assert ">4 GPUs: 90 %<" in figure.svg
    assert 'class="dot hollow two"' in figure.svg
    assert "four of five" in figure.legend[1].name


def test_a_batch_that_outgrows_the_problem_has_its_own_line():
    document = advice()
    assert "three" not in {key.look for key in of_advice(document)["efficiency"].legend}
    document["predictions"][3]["effective_efficiency"] = 0.3
    assert "three" in {key.look for key in of_advice(document)["efficiency"].legend}


def test_the_waterfall_goes_down_to_what_is_left():
    figure = of_advice(advice())["waterfall"]
    assert [(row["cause"], row["share"]) for row in rows(figure)] == [
        ("data", 0.1),
        ("straggler", 0.0),
        ("bandwidth", 0.4),
        ("left", 0.5),
    ]
    assert "50.0 % is left; most goes to bandwidth, 40.0 %" in figure.summary
    assert "\u221240.0 %" in figure.svg


def test_cost_against_time_to_finish():
    figure = of_advice(advice())["cost"]
    assert figure.title == "Cost against time to finish"
    assert [round(row["time_s"]) for row in rows(figure)] == [3600, 1875, 1000, 900]
    assert [round(row["cost"], 3) for row in rows(figure)] == [2.0, 2.083, 2.222, 4.0]
    assert (
        "Fastest with 8 GPUs: 15 min, cost 4; with the recommended 4: 16.7 min, cost 2.22" in figure.summary
    )


def test_without_a_price_the_cost_is_gpu_hours():
    document = advice()
    for row in document["predictions"]:
        row["cost"] = row["cost_low"] = row["cost_high"] = None
    figure = of_advice(document)["cost"]
    assert [round(row["gpu_hours"], 3) for row in rows(figure)] == [1.0, 1.042, 1.111, 2.0]


def test_without_a_length_it_is_for_a_million_samples():
    figure = of_advice(MEASURED)["cost"]
    assert figure.title == "GPU-hours against time for a million samples"
    (row,) = rows(figure)
    assert row["time_s"] == pytest.approx(1e6 / 1440)
    assert row["gpu_hours"] == pytest.approx(16 * 1e6 / 1440 / 3600)


def test_samples_a_second_beside_those_without_any_loss():
    figure = of_advice(MEASURED)["throughput"]
    assert rows(figure) == [
        {"gpus": 16, "throughput": 1440.0, "ideal": pytest.approx(1600), "step_time_s": 0.3}
    ]


def test_changes_stand_by_gain():
    figure = of_advice(advice())["what-if"]
    assert [row["gain"] for row in rows(figure)] == [0.25, 0.2]
    assert figure.summary == "A link 2 times as fast would help most: +25.0 %."


def test_measured_rows_stand_with_the_predicted_ones():
    figure = of_advice(MEASURED)["efficiency"]
    assert [(row["gpus"], row["efficiency"]) for row in rows(figure)] == [(1, 1.0), (8, 0.95), (16, 0.9)]
    assert tiles(advice_tiles(parse_advice(Fields(MEASURED, "m"))))["Efficiency there"] == (
        "95.0 %",
        "measured",
    )


def test_no_waterfall_and_no_changes_are_left_out():
    assert {"waterfall", "what-if"}.isdisjoint(of_advice(MEASURED))


def test_shares_of_the_step_are_means_over_ranks():
    ranks = [rank_times(0, load_s=0.1), rank_times(1, wait_s=0.1, host="b")]
    found = {row["part"]: row["share"] for row in rows(of_profile(ranks=ranks)["shares"])}
    assert found["waiting for data"] == pytest.approx(0.25)
    assert found["waiting for slower ranks"] == pytest.approx(0.25)
    assert found["backward"] == pytest.approx(0.3)
    assert sum(found.values()) == pytest.approx(1)
    told = tiles(profile_tiles(parse_profile(Fields(profile_document(ranks=ranks), "p"))))
    assert told["Share of the step that waits"][0] == "50.0 %"


def test_the_slowest_rank_is_named_and_marked():
    ranks = [rank_times(0, wait_s=0.04), rank_times(1, forward_s=0.07, host="b")]
    figure = of_profile(ranks=ranks)["ranks"]
    assert figure.summary == "Rank 1 on b has the most own work, 140 ms a step; the mean is 120 ms."
    assert figure.table.marked == 1


def test_of_many_ranks_the_slowest_are_drawn_and_all_are_in_the_table():
    ranks = [rank_times(i, load_s=0.001 * i, wait_s=0.063 - 0.001 * i) for i in range(64)]
    figure = of_profile(ranks=ranks)["ranks"]
    assert "rank 63 on a" in figure.svg
    assert "rank 40 on a" not in figure.svg
    assert "52 other ranks, mean" in figure.svg
    assert len(figure.table.rows) == 64


def test_gradients_that_are_ready_add_up():
    found = rows(of_profile(num_gradients=4, gradient_bytes=400)["gradients"])
    assert [row["bytes"] for row in found] == [100, 200, 300, 400]


def test_memory_is_told_with_what_the_device_has():
    assert of_profile()["memory"].summary == "Its state takes 400 MB, 10 GB of 80 GB at the peak."


@pytest.mark.parametrize(
    ("batch", "noise", "is_past"), [(64, 32, True), (64, 33, False), (64, None, False), (None, 5, False)]
)
def test_a_batch_past_twice_the_noise_scale_is_told(batch, noise, is_past):
    told = note_on_batch(batch, noise)
    assert bool(told) == is_past
    # 32 / (64 + 32)
    assert not told or told.endswith(
        "are 2 times the gradient noise scale of 32; no larger one saves more than 33 % of the steps"
    )


def test_the_notes_of_a_run_and_a_profile_tell_it(tmp_path):
    profile = profile_document(noise_scale={"simple": 10.0, "num_steps": 50})
    run = write_run(tmp_path / "run", metric_lines(noise_scale=20.0))
    (run / "job.yaml").write_text("batch: {global: 80}\n")
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    assert "80 samples a step are 4 times" in make_report(run).notes[0]
    assert "64 samples a step are 6.4 times" in make_report(tmp_path / "profile.json").notes[0]


def test_learning_curves(tmp_path):
    found = figures(curve_sections(read_run(write_run(tmp_path))))
    assert list(found) == ["loss", "accuracy", "rate"]
    assert (
        found["loss"].summary == "Training 1 at first, 0.333 at last; validation 2 at first, 0.667 at last."
    )
    assert [row["validation_accuracy"] for row in rows(found["accuracy"])] == pytest.approx([0.7, 0.85, 0.9])


def test_metrics_of_the_jobs_own_are_drawn_under_its_names(tmp_path):
    found = figures(curve_sections(read_run(write_run(tmp_path, metric_lines(validation_auroc=0.5)))))
    assert found["metric-1"].title == "Validation auroc"


def test_shares_over_time_where_the_run_recorded_parts(tmp_path):
    lines = [{"step": 1, "forward_s": 1, "load_s": 3}, {"step": 2, "forward_s": 1, "load_s": 0}]
    figure = figures(curve_sections(read_run(write_run(tmp_path, lines))))["shares-over-time"]
    assert [row["load_share"] for row in rows(figure)] == [0.75, 0.0]
    assert [row["forward_share"] for row in rows(figure)] == [0.25, 1.0]


def test_tiles_tell_the_last_and_the_best(tmp_path):
    lines = metric_lines()
    lines[-1]["validation_accuracy"] = 0.5
    told = tiles(run_tiles(read_run(write_run(tmp_path, lines, plan={"size": 4}))))
    assert told["Validation accuracy"] == ("50.00 %", "best 85.00 % at step 20")
    assert told["Steps"] == ("30", "in 3 s")


@pytest.mark.parametrize(
    ("status", "state", "lead"),
    [
        ({"state": "done"}, ("done", "good"), ""),
        ({"state": "running", "step": 1200}, ("running at step 1,200", "open"), ""),
        ({"state": "failed", "error": "rank 3 was killed"}, ("failed", "bad"), "rank 3 was killed"),
        ({"state": "preempted", "step": 5, "reason": "SIGTERM"}, ("preempted at step 5", "open"), "SIGTERM"),
        ({"state": 7}, None, ""),
    ],
)
def test_how_a_run_ended(tmp_path, status, state, lead):
    record = read_run(write_run(tmp_path, status=status))
    assert run_state(record) == state
    assert run_lead(record) == lead


def test_facts_of_a_job(tmp_path):
    plan = {"size": 3, "ranks": [{"host": "a"}, {"host": "a"}, {"host": "b"}], "launcher": "srun"}
    write_run(tmp_path, plan=plan)
    (tmp_path / "job.yaml").write_text(
        "model: {name: resnet18}\noptimizer: {name: sgd, lr: 0.1}\nmetrics: []\n"
    )
    found = {fact.key: fact.text for fact in run_facts(read_run(tmp_path)).facts}
    assert found["model"] == "resnet18"
    assert found["lr"] == "0.1"
    assert found["hosts"] == "a (2 ranks), b (1 rank)"
    assert found["launcher"] == "srun"
