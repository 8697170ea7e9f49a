"""What becomes of the metrics of a run that goes on."""

import json

import pytest

from hvdtrain.train.metric_lines import drop_after
from hvdtrain.train.schedule import Position


@pytest.fixture
def metrics(tmp_path):
    return tmp_path / "metrics.jsonl"


def line(step, **more):
    return json.dumps({"step": step, **more}) + "\n"


def test_what_is_done_again_is_left_out(metrics):
    metrics.write_text(line(1) + line(2) + line(2, validation_loss=1.0) + line(3))
    assert drop_after(metrics, Position(2, 1, 0)) == ""
    assert metrics.read_text() == line(1) + line(2) + line(2, validation_loss=1.0)
    # Inside an epoch the evaluation of its step comes again.
    assert drop_after(metrics, Position(2, 0, 20)) == ""
    assert metrics.read_text() == line(1) + line(2)


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b"\0\0\0\0", b"\xff\xfe{", b'{"step": 3}\n{'])
def test_a_last_line_that_was_cut_short_is_left_out_and_told(metrics, torn):
    metrics.write_bytes((line(1) + line(2)).encode() + torn)
    assert drop_after(metrics, Position(2, 0, 20)) == (
        "metrics.jsonl: its last line was cut short and is left out"
    )
    assert metrics.read_text() == line(1) + line(2)
    assert not metrics.with_name("metrics.unreadable").exists()
    assert drop_after(metrics, Position(2, 0, 20)) == ""


def test_a_last_line_that_only_lacks_its_end_stays(metrics):
    metrics.write_text(line(1) + line(2).rstrip())
    assert drop_after(metrics, Position(2, 0, 20)) == ""
    assert metrics.read_text() == line(1) + line(2)


def test_lines_that_are_none_are_kept_beside_it(metrics):
    strange = [b"\x80\x81", b"[1]", b'{"loss": 1}', b'{"step": "2"}', b'{"step": true}', b"[" * 100_000]
    metrics.write_bytes(line(1).encode() + b"\n".join(strange) + b"\n" + line(2).encode())
    told = drop_after(metrics, Position(2, 0, 20))
    assert told == "metrics.jsonl: 6 lines that cannot be read went to metrics.unreadable"
    assert metrics.read_text() == line(1) + line(2)
    assert metrics.with_name("metrics.unreadable").read_bytes().splitlines() == strange


def test_no_file_and_an_empty_one(metrics):
    assert drop_after(metrics, Position()) == ""
    metrics.write_text("")
    assert drop_after(metrics, Position()) == ""
    assert metrics.read_text() == ""
