"""What a run records, and what of an earlier record it does again."""

import json

import pytest

from hvdtrain.train.observe import Length, Observer
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.schedule import Position

LINES = [
    {"step": 4, "loss": 0.4},
    {"step": 5, "loss": 0.5},
    {"step": 5, "validation_loss": 0.9},
    {"step": 6, "loss": 0.6},
]


def kept(folder, start):
    run = RunDirectory(folder)
    run.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in LINES) + '{"step": 7, "lo')
    Observer(run, Length(2, 10, 5), lambda _: None, None, start).close()
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


@pytest.mark.parametrize(
    ("start", "count"),
    [
        # Between two epochs: the evaluation of step 5 is done.
        (Position(5, 1, 0), 3),
        # At the end of an epoch, or inside one: it is yet to come.
        (Position(5, 0, 300), 2),
        (Position(4, 0, 240), 1),
        (Position(7, 1, 120), 4),
        (Position(), 0),
    ],
)
def test_what_is_done_again_is_left_out(tmp_path, start, count):
    assert kept(tmp_path, start) == LINES[:count]


def test_a_run_that_goes_on_tells_where(tmp_path):
    run = RunDirectory(tmp_path)
    observer = Observer(run, Length(2, 10, 5), lambda _: None, None, Position(5, 1, 0))
    observer.started({})
    observer.close()
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["step"], status["epoch"]) == (5, 1)
