"""A training that keeps a profile of itself, in this process: what is recorded and what is left of it."""

import json

import pytest

from hvdtrain.backends.single import SingleBackend
from hvdtrain.jobfile import load_job
from hvdtrain.scaling.profile import read_profile
from hvdtrain.topology.environ import World
from hvdtrain.train.build import build_trainer
from hvdtrain.train.observe import Length, Observer
from hvdtrain.train.rundir import RunDirectory, create_run_directory

SETTINGS = (
    "data.source=synthetic",
    "data.shape=[1, 8, 8]",
    "data.classes=10",
    "data.samples=240",
    "data.validation_samples=16",
    "batch.global=8",
    "epochs=2",
    "output.tensorboard=false",
)


@pytest.fixture
def trained(tmp_path):
    """The run directory of a short training, its hooks gone."""
    import torch

    job = load_job(None, SETTINGS)
    run = create_run_directory(job, tmp_path / "run")
    run.begin_writing()
    trainer = build_trainer(job, SingleBackend(World(), torch.device("cpu")), run, lambda _: None)
    outcome = trainer.fit()
    trainer.save_last(outcome)
    trainer.close()
    parameters = trainer._parts.stepper.replica.trained
    assert not any(parameter._post_accumulate_grad_hooks for parameter in parameters)
    return run


def test_it_writes_a_profile_whose_parts_sum(trained):
    profile = read_profile(trained.path / "profile.json")
    assert (profile.source, profile.job, profile.size, profile.backend) == ("train", "digits", 1, "single")
    assert (profile.global_batch, profile.samples_per_epoch, profile.total_steps) == (8, 240, 60)
    (one,) = profile.ranks
    parts = (one.load_s, one.forward_s, one.backward_s, one.exposed_s, one.optimizer_s, one.wait_s)
    assert sum((*parts, one.other_s)) == one.step_s
    assert one.wait_s == 0
    assert min(parts[:3]) > 0
    assert profile.memory.optimizer_bytes > 2 * profile.memory.parameters_bytes - 1  # Adam's two moments
    # The second step was sampled.
    assert len(profile.gradients.ready) == profile.gradients.num_tensors
    assert profile.noise_scale is None


def test_a_figure_that_is_added_goes_into_the_next_line_only(tmp_path):
    run = RunDirectory(tmp_path)
    observer = Observer(run, Length(2, 10, 5), lambda _: None, None)
    observer.add("noise_scale", 12.5)
    for step in (1, 2):
        observer.measured(1, step, {"loss": 0.5})
    observer.close()
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [line.get("noise_scale") for line in lines] == [12.5, None]
