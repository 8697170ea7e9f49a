"""What the user sees of a run."""

import io
import re

import pytest

from hvdtrain.cli.progress_view import BarView, LineView, duration, open_view, progress_line

STEP = {
    "event": "step",
    "epoch": 1,
    "epochs": 2,
    "step": 3,
    "steps": 8,
    "samples_per_s": 99.6,
    "left_s": 65.0,
}
EPOCH = {
    "event": "epoch",
    "epoch": 1,
    "epochs": 2,
    "step": 4,
    "epoch_loss": 1.5,
    "validation_loss": 0.5,
    "validation_accuracy": 0.75,
}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599, "59 min 59 s"), (7620, "2 h 07 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_progress_line_says_only_what_is_known():
    assert progress_line(STEP) == "epoch 1/2  step 3/8  100 samples/s  1 min 05 s left"
    known = progress_line(STEP | {"loss": 0.25, "validation_accuracy": 0.5})
    assert known == "epoch 1/2  step 3/8  loss 0.2500  100 samples/s  1 min 05 s left  accuracy 0.5000"


def test_lines_are_told_at_most_once_per_interval():
    stream = io.StringIO()
    view = LineView(3600, stream)
    for event in (
        STEP,
        STEP,
        {"event": "note", "text": "careful"},
        EPOCH,
        {"event": "result", "result": {"a": 1}},
    ):
        view(event)
    assert stream.getvalue().splitlines() == [
        "note: careful",
        "epoch 1/2  step 4  loss 1.5000  validation loss 0.5000  accuracy 0.7500",
    ]
    assert view.result == {"a": 1}
    assert view.started
    eager = LineView(0, stream)
    eager(STEP)
    assert "step 3/8" in stream.getvalue()


@pytest.mark.parametrize(
    ("number", "told"),
    [(1, "job j: 1 rank,.* 1 epoch, 1 step$"), (2, "job j: 2 ranks,.* 2 epochs, 2 steps$")],
)
def test_the_start_counts_in_words(number, told):
    stream = io.StringIO()
    facts = dict.fromkeys(("size", "global_batch", "lr", "parameters", "epochs", "steps"), number)
    LineView(1, stream)({"event": "start", "job": "j", "backend": "single", "device": "cpu", **facts})
    assert re.match(told, stream.getvalue())


class Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_a_reader_that_is_gone_does_not_end_the_run():
    view = LineView(1, Gone())
    view({"event": "note", "text": "nobody hears this"})
    view(EPOCH)
    assert view.started


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end():
    stream = Terminal()
    view = open_view(5.0, stream)
    assert isinstance(view, BarView)
    view(STEP)
    view(EPOCH)
    view.close()
    assert "validation loss 0.5000" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith(("\x1b[2K", "\x1b[?25h")), "the cursor is shown again"
