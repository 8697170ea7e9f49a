"""A training as a rank of somebody's launch: what it takes over from earlier lives, and what it tells."""

import io
import json
import sys
from pathlib import Path

import pytest

from hvdtrain.cli.joined import Relay, check_join, follow_on, relayed
from hvdtrain.cli.progress_view import LineView
from hvdtrain.errors import InputError
from hvdtrain.jobfile import load_job
from hvdtrain.topology.environ import World

OPTIONS = {"run_dir": None, "overwrite": False}
BARE = {
    "dry_run": False,
    "slots": None,
    "launcher": "auto",
    "max_restarts": 0,
    "min_ranks": None,
    "elastic": False,
    "max_ranks": None,
    "commit_steps": None,
    "num_ranks": None,
}


@pytest.mark.parametrize(
    ("environ", "given", "resume", "run_dir", "overwrite"),
    [
        ({}, None, "never", None, True),
        ({"HVDTRAIN_RESTART": "0"}, "x", "never", Path("x"), True),
        # where a batch script wants it
        ({"HVDTRAIN_RUN_DIR": "/r"}, None, "never", Path("/r"), True),
        ({"HVDTRAIN_RUN_DIR": "/r"}, "x", "never", Path("x"), True),
        # a life that told nothing of its directory begins as the first one did
        ({"HVDTRAIN_RESTART": "1"}, "x", "never", Path("x"), True),
        ({"HVDTRAIN_RESTART": "1", "HVDTRAIN_RUN_DIR": "/r"}, "x", "auto", Path("/r"), False),
    ],
)
def test_what_an_earlier_life_left(environ, given, resume, run_dir, overwrite):
    options = {"run_dir": Path(given) if given else None, "overwrite": True}
    job, path, overwrites = follow_on(load_job(None, []), options, environ)
    assert (job.resume, path, overwrites) == (resume, run_dir, overwrite)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_restarts": 2}, "--max-restarts inside a launch by srun: .*hvdtrain run --max-restarts"),
        ({"dry_run": True}, "--dry-run inside a launch by srun: the ranks run already; omit --dry-run"),
        ({"num_ranks": 3}, "-np 3 inside a launch of 2 ranks by srun"),
    ],
)
def test_what_only_the_launch_can_do(changes, message):
    world = World(rank=0, size=2, launcher="srun")
    check_join(world, {**BARE, "num_ranks": 2})
    with pytest.raises(InputError, match=message):
        check_join(world, {**BARE, **changes})


def told(capfd):
    lines = [line for line in capfd.readouterr().out.split("\n") if line.startswith("\x1ehvdtrain ")]
    return [json.loads(line.removeprefix("\x1ehvdtrain ")) for line in lines]


@pytest.mark.parametrize("overwrites", [False, True])
def test_the_launch_hears_where_and_how_far(capfd, monkeypatch, overwrites):
    monkeypatch.setattr(sys, "__stdout__", sys.stdout)
    relay = Relay(LineView(0.0, io.StringIO()), overwrites=overwrites)
    place, note = {"event": "run", "path": "/r"}, {"event": "note", "text": "x"}
    relay(place)
    relay(note)
    assert told(capfd) == ([] if overwrites else [place])
    step = {
        "event": "step",
        "epoch": 1,
        "epochs": 1,
        "step": 1,
        "steps": 2,
        "samples_per_s": 1.0,
        "left_s": 1.0,
    }
    relay(step)
    relay(step)
    assert told(capfd) == ([place] if overwrites else []) + [step, step]


def test_nobody_is_told_where_nobody_listens():
    view = LineView(0.0, io.StringIO())
    assert relayed(view, False, {}) is view
    assert isinstance(relayed(view, False, {"HVDTRAIN_RESTART": "0"}), Relay)
