"""A script that profiles itself, in this process: what is recorded of its loop, and what is left of it."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hvdtrain.backends.single import SingleBackend
from hvdtrain.scaling.profile import read_profile
from hvdtrain.topology.environ import World
from hvdtrain.train.profile_request import ProfileRequest
from hvdtrain.train.script import Run
from hvdtrain.train.script_profile import ScriptProfile
from hvdtrain.train.settings import Settings
from hvdtrain.train.waiting import Waiting

STEPS, WARM_UP = 4, 2


@pytest.fixture
def profiled(tmp_path):
    """A run with its diary, the file, and what the user was told."""
    settings, notes = Settings(0, 1, "fp32", 600.0), []
    alone = SingleBackend(World(), torch.device("cpu"))
    file = tmp_path / "profile.json"
    diary = ScriptProfile(alone, ProfileRequest(STEPS, WARM_UP, file), settings, notes.append)
    waiting = Waiting(600.0, 0, 1, None)
    run = Run(alone, waiting, logging.getLogger("test"), settings, lambda run: run.diary.finish(), diary)
    yield SimpleNamespace(run=run, diary=diary, file=file, notes=notes)
    run.close()


def distributed(run):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return run.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01))


def num_marks(diary):
    """Stamps of a step that has not ended: on CUDA events, which the driver holds."""
    return len(diary._recorder.clock._marks)


def test_steps_after_the_profile_was_written_leave_nothing_behind(profiled):
    run, diary = profiled.run, profiled.diary
    model, optimizer = distributed(run)
    batches = run.loader(TensorDataset(torch.ones(80, 3)), 4)
    marks = []
    for (inputs,) in batches:
        run.step(model(inputs).sum(), optimizer)
        if profiled.file.exists():
            marks.append(num_marks(diary))
            assert not any(value._post_accumulate_grad_hooks for value in model.parameters())
    assert len(marks) > 5
    assert len(set(marks)) == 1
    profile = read_profile(profiled.file)
    assert (profile.source, profile.steps, profile.global_batch) == ("script", STEPS, 4)
    # Also not of a model that comes later.
    other, its_optimizer = distributed(run)
    for (inputs,) in run.loader(TensorDataset(torch.ones(8, 3)), 4):
        run.step(other(inputs).sum(), its_optimizer)
    assert num_marks(diary) == marks[0]
    assert profiled.notes == []


def test_a_loop_that_asks_for_no_batches_leaves_nothing_behind(profiled):
    run, diary = profiled.run, profiled.diary
    model, optimizer = distributed(run)
    for _ in range(20):
        run.step(model(torch.ones(4, 3)).sum(), optimizer)
        assert num_marks(diary) == 0
    run.close()
    assert profiled.notes == ["no profile: no training loop went over run.loader(...) or run.progress(...)"]
    assert not profiled.file.exists()


def test_a_loop_that_is_too_short_says_so(profiled):
    run = profiled.run
    model, optimizer = distributed(run)
    for (inputs,) in run.loader(TensorDataset(torch.ones(8, 3)), 4):
        run.step(model(inputs).sum(), optimizer)
    run.close()
    assert profiled.notes == ["no profile: the run ended after 2 steps, before enough were timed"]
