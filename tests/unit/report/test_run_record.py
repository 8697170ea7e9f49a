"""Reading a run directory: what is damaged is told, and the rest is there."""

import json

import pytest

from hvdtrain.errors import InputError
from hvdtrain.report.run_record import read_run
from tests.unit.report.documents import ADVICE, write_run
from tests.unit.scaling.profiles import profile_document


def test_all_of_a_run(tmp_path):
    status = {"schema": 1, "state": "done"}
    run = write_run(tmp_path, status=status, profile=profile_document(), advice=ADVICE, plan={"size": 2})
    (run / "job.yaml").write_text("name: flowers\n")
    record = read_run(run)
    assert record.notes == ()
    assert record.job == {"name": "flowers"}
    assert record.status == status
    assert record.profile.job == "digits"
    assert record.advice.recommended == 4
    assert record.series("validation_loss") == [(10, 2.0), (20, 1.0), (30, pytest.approx(2 / 3))]
    assert record.keys == ["loss", "lr", "validation_loss", "validation_accuracy"]


def test_a_last_line_that_was_cut_short_is_left_out_and_told(tmp_path):
    path = write_run(tmp_path) / "metrics.jsonl"
    path.write_text(path.read_text()[:-20])
    record = read_run(tmp_path)
    assert len(record.lines) == 5
    assert record.notes == ("metrics.jsonl: 1 of 6 lines damaged and left out (the last, cut short)",)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '{"loss": 1}',
        '{"step": -1}',
        '{"step": 1.5}',
        '{"step": true}',
        '{"step": NaN}',
        "\ufffd" * 9,
        "[" * 9999,
    ],
)
def test_a_damaged_line_is_told_with_its_number(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n' + line + '\n{"step": 3, "loss": 1}\n')
    record = read_run(tmp_path)
    assert record.series("loss") == [(1, 2.0), (3, 1.0)]
    assert "1 of 3 lines damaged and left out (the first is line 2)" in record.notes[0]


def test_bytes_that_are_no_text_are_a_damaged_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2}\n\xff\xfe\x00\n')
    assert len(read_run(tmp_path).lines) == 1


@pytest.mark.parametrize("value", ["null", "NaN", "Infinity", "1e999", "true", '"text"', "[1]", "9" * 400])
def test_what_is_no_finite_number_is_a_gap(tmp_path, value):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": {value}, "lr": 0.5}}\n')
    record = read_run(tmp_path)
    assert record.series("loss") == []
    assert record.series("lr") == [(1, 0.5)]


def test_a_loss_that_is_no_number_is_told(tmp_path):
    lines = [{"step": 5, "loss": 1.0}, {"step": 10, "loss": None}, {"step": 15, "loss": None}]
    assert read_run(write_run(tmp_path, lines)).notes == (
        "loss is no finite number in 2 lines, the first at step 10",
    )


def test_lives_of_a_run_add_up(tmp_path):
    lines = [{"step": step, "time_s": time_s} for step, time_s in ((1, 5), (2, 9), (3, 2), (4, 4))]
    assert read_run(write_run(tmp_path, lines)).duration_s == 9 + 4


@pytest.mark.parametrize("name", ["status.json", "plan.json", "job.yaml", "profile.json", "advice.json"])
@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"schema": 7}', "a: [", "- 1"])
def test_a_damaged_file_is_told_and_the_rest_is_read(tmp_path, name, content):
    write_run(tmp_path)
    (tmp_path / name).write_text(content)
    record = read_run(tmp_path)
    assert len(record.lines) == 6
    is_legal = content == '{"schema": 7}' and name in ("status.json", "plan.json", "job.yaml")
    is_nothing = not content and name == "job.yaml"
    assert [name in note for note in record.notes] == ([] if is_legal or is_nothing else [True])


@pytest.mark.parametrize(("content", "word"), [(None, "missing"), ("", "empty"), ("\n\n", "empty")])
def test_no_metrics_yet(tmp_path, content, word):
    (tmp_path / "status.json").write_text(json.dumps({"state": "starting"}))
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    assert read_run(tmp_path).notes == (f"no metrics yet: metrics.jsonl is {word}",)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("failed", "the run failed before it wrote metrics: metrics.jsonl is missing"),
        ("done", "no metrics: metrics.jsonl is missing"),
        ("preempted", "no metrics yet: metrics.jsonl is missing"),
    ],
)
def test_of_a_run_that_ended_nothing_is_still_to_come(tmp_path, state, told):
    (tmp_path / "status.json").write_text(json.dumps({"state": state}))
    assert read_run(tmp_path).notes == (told,)


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "photo.jpg").write_text("")
    with pytest.raises(InputError, match="is no run directory; legal: a folder with status"):
        read_run(tmp_path)
