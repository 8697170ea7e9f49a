"""What a training does between two lives."""

from pathlib import Path

import pytest

from hvdtrain.cli import training
from hvdtrain.cli.restarts import Restarts
from hvdtrain.cli.training import Training
from hvdtrain.jobfile import load_job
from hvdtrain.launch.plan import LaunchPlan
from hvdtrain.launch.restart import Rest, Trail
from hvdtrain.topology.hosts import local_cluster, place


@pytest.mark.parametrize("min_ranks", [None, 1])
def test_a_machine_that_lost_all_gpus_starts_nothing_more(monkeypatch, min_ranks):
    """A batch of ``batch.global`` samples has no share for 0 ranks."""
    monkeypatch.setattr(training, "look_around", lambda _plan, _cluster: Rest(None))
    restarts = Restarts(3, Trail(""), pause=lambda _seconds: None)
    options = {"launcher": "local", "slots": None, "min_ranks": min_ranks}
    lost = Training(load_job(None, []), Path("job.yaml"), None, None, restarts, options)
    plan = LaunchPlan(place(local_cluster(1), 1), (), "python", {}, uses_gpus=True)
    assert lost._next(plan, 1) is None
    assert restarts.why.startswith("0 ranks of 1 can be started")
