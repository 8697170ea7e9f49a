"""Where a run goes on: at its very step, with what was measured, on the data that it had.

Whole runs on one rank in this process, five steps to an epoch.
"""

import errno
import json
import os
import random

import numpy
import pytest
import torch

from hvdtrain.backends.single import SingleBackend
from hvdtrain.errors import InputError, Preempted, TrainingError
from hvdtrain.jobfile import load_job
from hvdtrain.topology.environ import World
from hvdtrain.train import keeper
from hvdtrain.train.build import Lookouts, build_trainer
from hvdtrain.train.checkpoint import load_checkpoint
from hvdtrain.train.preemption import Watch
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.store import stored_in

PARTS = """
import torch

class Samples(torch.utils.data.Dataset):
    def __init__(self, count):
        self.inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(5))
        self.targets = (self.inputs.sum(1) > 0).long()
        self.lengths = [index % 7 for index in range(count)]
    def __len__(self):
        return len(self.targets)
    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]

def data(count=50):
    return Samples(count), Samples(20)

def net():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
"""
BASE = [
    "model=resuming_parts:net",
    "data.source=resuming_parts:data",
    "batch.global=10",
    "optimizer.lr=0.05",
    "schedule.name=constant",
    "output.tensorboard=false",
    "checkpoint.keep_last=99",
    "resume=auto",
    "backend=single",
]


@pytest.fixture(autouse=True)
def _parts(tmp_path, monkeypatch):
    (tmp_path / "resuming_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    numpy.random.set_state(before[1])
    torch.set_rng_state(before[2])


def job_of(*overrides):
    return load_job(None, [*BASE, *overrides])


class Stops(Watch):
    """Asks to end after so many steps of the first epoch."""

    def __init__(self, count):
        super().__init__()
        self.left = count

    def is_asked(self):
        self.left -= 1
        return self.left <= 0


def train(folder, *overrides, watch=None):
    """Trains to the end, or until ``watch`` asks to end; returns what training came to."""
    run = RunDirectory(folder)
    for path in (run.logs, run.checkpoints):
        path.mkdir(parents=True, exist_ok=True)
    backend = SingleBackend(World(), torch.device("cpu"))
    lookouts = Lookouts(watch) if watch else None
    trainer = build_trainer(job_of(*overrides), backend, run, lambda _: None, lookouts)
    try:
        outcome = trainer.fit()
        trainer.save_last(outcome)
    finally:
        trainer.close()
    return outcome


def metrics_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.endswith("_s")} for line in lines]


def only(folder, step):
    """Leaves the checkpoint of one step, as if the run had been killed after it."""
    for stored in stored_in(folder / "checkpoints"):
        if stored.step != step:
            stored.path.rename(stored.path.with_name(f"not-{stored.step}"))


def model_of(folder, step):
    return (folder / "checkpoints" / f"step-{step}" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("every", ["null", "4"])
def test_a_run_whose_length_ended_inside_an_epoch_goes_on_inside_it(tmp_path, every):
    short, whole = tmp_path / "short", tmp_path / "whole"
    saves = f"checkpoint.every_steps={every}"
    assert train(short, "steps=8", saves).epochs == 2
    (last,) = [stored for stored in stored_in(short / "checkpoints") if stored.step == 8]
    assert (last.facts["epoch"], last.facts["consumed"]) == (1, 30)
    outcome = train(short, "steps=12", saves)
    wanted = train(whole, "steps=12", saves)
    assert model_of(short, 12) == model_of(whole, 12)
    assert (outcome.epochs, outcome.samples) == (wanted.epochs, wanted.samples) == (3, 120)
    assert outcome.validation.loss == wanted.validation.loss
    evaluated = [line["step"] for line in metrics_of(short) if "validation_loss" in line]
    assert evaluated == [5, 10, 12]


def test_a_run_that_is_done_is_done_again_without_a_step(tmp_path):
    first = train(tmp_path / "run", "steps=8")
    before = metrics_of(tmp_path / "run")
    again = train(tmp_path / "run", "steps=8")
    assert (again.steps, again.epochs) == (first.steps, first.epochs) == (8, 2)
    assert (again.train.loss, again.validation.loss) == (first.train.loss, first.validation.loss)
    assert metrics_of(tmp_path / "run") == before


@pytest.mark.parametrize("step", [4, 5, 10])
def test_from_before_inside_and_behind_an_evaluation(tmp_path, step):
    """Step 5 ends an epoch, and its checkpoint was made before the evaluation; step 10 ends the run."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    for path in (folder, whole):
        train(path, "epochs=2", "checkpoint.every_steps=1")
    only(folder, step)
    train(folder, "epochs=2", "checkpoint.every_steps=1")
    assert model_of(folder, 10) == model_of(whole, 10)
    assert metrics_of(folder) == metrics_of(whole)


def test_every_epoch_is_rated_where_every_step_is_saved(tmp_path):
    train(tmp_path / "run", "epochs=3", "checkpoint.every_steps=5", "checkpoint.every_epochs=1")
    found = {stored.step: stored.facts["metrics"] for stored in stored_in(tmp_path / "run" / "checkpoints")}
    wanted = {
        line["step"]: line["validation_loss"]
        for line in metrics_of(tmp_path / "run")
        if "validation_loss" in line
    }
    assert {step: metrics["validation_loss"] for step, metrics in found.items()} == wanted


def test_the_pace_counts_the_seconds_of_the_epoch_that_was_cut(tmp_path):
    train(tmp_path / "run", "epochs=1", "checkpoint.every_steps=1")
    seconds = [
        load_checkpoint(tmp_path / "run" / "checkpoints" / f"step-{step}")["seconds"] for step in (1, 4)
    ]
    assert 0 < seconds[0] < seconds[1]
    only(tmp_path / "run", 4)
    outcome = train(tmp_path / "run", "epochs=1")
    assert outcome.samples == 50
    assert outcome.seconds > seconds[1]


def test_inside_an_epoch_the_data_must_be_what_it_was(tmp_path):
    train(tmp_path / "run", "epochs=2", "checkpoint.every_steps=1")
    for step, consumed in ((4, 40), (5, 50)):
        only(tmp_path / "run", step)
        with pytest.raises(
            InputError, match=rf"step-{step}: the training data had 50 samples .* and has 70 now"
        ):
            train(tmp_path / "run", "epochs=2", "data.args.count=70")
        state = load_checkpoint(tmp_path / "run" / "checkpoints" / f"step-{step}")
        assert state["consumed"] == consumed
        restore(tmp_path / "run")


def test_a_run_that_was_asked_to_end_goes_on_from_there(tmp_path):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    with pytest.raises(Preempted, match="preempted after step 3"):
        train(folder, "epochs=2", watch=Stops(3))
    assert train(folder, "epochs=2").steps == 10
    train(whole, "epochs=2")
    assert model_of(folder, 10) == model_of(whole, 10)


def test_a_run_that_could_not_be_saved_is_not_called_preempted(tmp_path, monkeypatch):
    """No other save is due: what stands is nothing at all."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(keeper, "save_checkpoint", full)
    with pytest.raises(TrainingError, match="asked to end, but step 3 could not be saved"):
        train(tmp_path / "run", "epochs=2", "checkpoint.on_failure=continue", watch=Stops(3))


def restore(folder):
    for path in (folder / "checkpoints").glob("not-*"):
        path.rename(path.with_name(path.name.replace("not", "step")))


def test_between_two_epochs_other_data_is_told(tmp_path):
    train(tmp_path / "run", "epochs=1")
    events = []
    run = RunDirectory(tmp_path / "run")
    backend = SingleBackend(World(), torch.device("cpu"))
    job = job_of("epochs=2", "data.args.count=70")
    trainer = build_trainer(job, backend, run, events.append)
    assert trainer.fit().steps == 5 + 7
    trainer.close()
    told = [event["text"] for event in events if event["event"] == "note"]
    assert "the training data had 50 samples when it was saved and has 70 now" in told


def test_inside_an_epoch_that_is_sorted_by_length_the_group_must_be_what_it_was(tmp_path):
    sampling = ["epochs=1", "data.sampling.name=length", "batch.uneven=split"]
    train(tmp_path / "run", *sampling, "checkpoint.every_steps=1")
    only(tmp_path / "run", 2)
    with pytest.raises(InputError, match=r"data.sampling sorted 10 samples together .* and sorts 5 now"):
        train(tmp_path / "run", *sampling, "batch.global=5")
    fixed = tmp_path / "fixed"
    train(fixed, *sampling, "data.sampling.group=10", "checkpoint.every_steps=1")
    only(fixed, 2)
    train(fixed, *sampling, "data.sampling.group=10", "batch.global=5")


def test_the_order_of_a_plain_shuffle_has_no_group(tmp_path):
    run = train(tmp_path / "run", "epochs=1")
    assert run.steps == 5
    state = load_checkpoint(tmp_path / "run" / "checkpoints" / "step-5")
    assert state["order"] == {"samples": 50, "group": 0}
