"""What is recorded and told of ranks that failed."""

import json
from types import SimpleNamespace

from hvdtrain.cli.bench_ranks import MeasuringError, tell_failure
from hvdtrain.cli.ends import _in_a_line, failed, settle
from hvdtrain.jobfile import load_job
from hvdtrain.launch.outcome import JobOutcome, RankEnd
from hvdtrain.train.rundir import create_run_directory

TRACEBACK = ("Traceback (most recent call last):", '  File "x.py", line 1', "RuntimeError: boom")


def outcome(*last_words):
    return JobOutcome(1, 2, RankEnd(1, "h", 1, 0.0, tail=last_words, last_words=last_words))


def test_what_is_told_begins_with_who_tells_it(capsys):
    head = "hvdtrain: rank 1 on host h failed: exit code 1"
    end = failed(outcome(*TRACEBACK), None)
    assert end.text.splitlines() == [head, *TRACEBACK]
    assert end.error.splitlines()[0] == "rank 1 on host h failed: exit code 1"
    assert tell_failure(MeasuringError(outcome(*TRACEBACK)), as_json=False) == 1
    assert capsys.readouterr().err.splitlines() == [head, *TRACEBACK]


def test_the_status_of_a_run_tells_why_it_failed(tmp_path):
    run = create_run_directory(load_job(None, []), tmp_path / "run")
    for words, told in ((TRACEBACK, ": RuntimeError: boom"), ((), "")):
        run.write_status("running")
        settle(outcome(*words), run, SimpleNamespace(started=True))
        status = json.loads((run.path / "status.json").read_text())
        assert status["state"] == "failed"
        assert status["error"] == f"rank 1 on host h failed: exit code 1{told}"


def test_an_error_of_ours_is_told_once():
    own = "hvdtrain: error: step 5: the loss is no finite number on rank 0"
    outcome = JobOutcome(1, 2, RankEnd(0, "h", 1, 1.0, tail=(own,), last_words=(own,)))
    told = _in_a_line(outcome, failed(outcome, None))
    assert told == "step 5: the loss is no finite number on rank 0"
