"""``hvdtrain verify``: jobs that are right are equal, and of each planted fault it tells the cause."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from hvdtrain.jobfile import load_job
from hvdtrain.tools.verify.causes import RANDOM, explain
from hvdtrain.tools.verify.compare import compare
from hvdtrain.tools.verify.launches import plan_launches
from hvdtrain.tools.verify.records import Record
from hvdtrain.tools.verify.request import Run, make_request

pytestmark = pytest.mark.mpi

PARTS = Path(__file__).parent / "programs" / "planted_faults.py"
# 1,438 samples: an epoch is two steps of 600 and one of 238, which three ranks do not divide.
JOB = """
model: 'planted_faults:model'
data: 'planted_faults:data'
batch: {global: 600}
epochs: 2
optimizer: {name: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0.001}
schedule: {name: cosine, warmup_epochs: 0.5}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("verify")
    shutil.copy(PARTS, made)
    (made / "job.yaml").write_text(JOB)
    sys.path.append(str(made))
    yield made
    sys.path.remove(str(made))


@pytest.fixture(scope="module")
def record(folder):
    """Records a run once, with overrides of the job: ``record(size, "model.args.fault=dropout")``."""
    done = {}

    def recorded(size, *overrides):
        if (size, overrides) not in done:
            job = load_job(folder / "job.yaml", overrides)
            # Two numbers of ranks make a request; only one of them is run here.
            request = make_request(job, [size, size + 1], ["ddp"], steps=3, import_path=[folder])
            launches = plan_launches(request, 8, "local", os.environ)
            place = folder / f"record-{len(done)}"
            place.mkdir()
            launches.record(Run(size, "ddp"), place)
            done[size, overrides] = Record(Run(size, "ddp"), place), request
        return done[size, overrides]

    return recorded


@pytest.fixture
def verdict(record):
    """The first difference of 2 ranks (or more) with a fault from one without it, and its cause."""

    def told(*overrides, size=2, reference=()):
        (one, _), (other, request) = record(1, *reference), record(size, *overrides)
        found = compare(one, other, request.tolerance)
        if found.first is None:
            return None, None
        return found.first, explain(found.first, one, other, request.job, request.tolerance)

    return told


def test_a_right_job_is_equal(hvdtrain, folder, tmp_path):
    """Three numbers of ranks, both engines, two passes a step, clipping, a last step that is uneven."""
    shutil.copy(folder / "job.yaml", tmp_path)
    shutil.copy(PARTS, tmp_path)
    ended = hvdtrain(
        *("verify", "job.yaml", "-np", "1,2,3", "--slots", "3", "--backend", "horovod,ddp", "--steps", "3"),
        *("--json", "--set", "batch.accumulate=2", "--set", "gradients.clip_norm=0.3"),
        env={"TMPDIR": str(tmp_path)},
    )
    assert ended.code == 0, ended.err + ended.out
    document = ended.document
    assert (document["schema"], document["equal"], document["steps"]) == (1, True, 3)
    assert (document["proven_steps"], document["drift"]) == (3, None)
    assert (document["sizes"], document["backend"]) == ([1, 2, 3], ["horovod", "ddp"])
    assert 0 < document["largest"]["relative"] < document["tolerance"] == 1e-4
    assert document["first_difference"] is None
    left = {path.name for path in tmp_path.iterdir()}
    assert "runs" not in left
    assert not any(name.startswith("hvdtrain") for name in left)


def test_the_command_tells_batch_norm_and_how_to_mend_it(hvdtrain, folder, verdict):
    ended = hvdtrain("verify", folder / "job.yaml", "--set", "model.args.fault=batchnorm", "--slots", "2")
    assert ended.code == 3, ended.err + ended.out
    assert "different: step 1, " in ended.out
    assert "likely cause: BatchNorm" in ended.out
    assert "sync_batchnorm: true" in ended.out
    assert verdict(
        "model.args.fault=batchnorm",
        "sync_batchnorm=true",
        size=3,
        reference=("model.args.fault=batchnorm",),
    ) == (None, None)


def test_dropout(verdict):
    found, cause = verdict("model.args.fault=dropout", reference=("model.args.fault=dropout",))
    assert (found.step, found.what, cause.name) == (1, "loss", RANDOM)
    assert "layer layer" in cause.evidence


def test_a_data_set_that_gives_ranks_other_samples(verdict):
    found, cause = verdict("data.args.fault=sampler")
    assert (found.step, cause.name) == (1, "sampler")
    assert "on rank 1 of 2 ranks" in cause.evidence
    asked, given = map(int, re.search(r"for (\d+) it gives (\d+)", cause.evidence).groups())
    assert given == asked + 1
    assert "300 of 600" in cause.evidence


def test_a_data_set_whose_values_depend_on_the_rank(verdict):
    found, cause = verdict("data.args.fault=noise")
    assert (found.step, cause.name) == (1, "data")
    assert "300 of 600 samples" in cause.evidence


def test_random_augmentation_is_equal_on_any_number_of_ranks(hvdtrain, folder, tmp_path):
    """Each sample's random numbers are those of its place in the epoch, whoever reads it."""
    ended = hvdtrain(
        *("verify", folder / "job.yaml", "-np", "1,2,3", "--slots", "3", "--backend", "ddp", "--steps", "3"),
        *("--set", "data.args.fault=augmented", "--set", "data.workers=1", "--json"),
        env={"TMPDIR": str(tmp_path)},
    )
    assert ended.code == 0, ended.err + ended.out
    assert ended.document["equal"]


def test_gradients_that_grow_with_the_ranks(verdict):
    found, cause = verdict("model.args.fault=averaging")
    assert (found.step, found.what, cause.name) == (1, "gradient", "averaging")
    assert "all parameters" in cause.evidence
    assert "times 2, the number of ranks" in cause.evidence


def test_ranks_that_count_alike_in_an_uneven_step(verdict):
    found, cause = verdict("model.args.fault=by_ranks", size=3)
    assert (found.step, found.what, cause.name) == (3, "gradient", "averaging")
    assert "80, 79, 79 samples" in cause.evidence


def test_gradients_clipped_before_the_reduction(verdict):
    clipped = "model.args.fault=clipping"
    found, cause = verdict(clipped, reference=(clipped,))
    assert (found.step, found.what, found.name, cause.name) == (1, "gradient", "first.weight", "clipping")
    assert "a hook" in cause.evidence
    assert "0.01" in cause.evidence


def test_a_learning_rate_that_depends_on_the_ranks(verdict):
    found, cause = verdict("model.args.fault=learning_rate")
    assert (found.step, cause.name) == (1, "learning rate")
    assert found.values[0] == pytest.approx(2 * found.values[1])


def test_initial_parameters_that_depend_on_the_ranks(verdict):
    found, cause = verdict("model.args.fault=initial")
    assert (found.step, found.name, cause.name) == (0, "first.weight", "initial parameters")


def test_optimizer_state_that_depends_on_the_ranks(verdict):
    found, cause = verdict("model.args.fault=optimizer")
    assert (found.step, found.what, cause.name) == (2, "parameter", "optimizer state")
    assert "momentum_buffer" in cause.evidence


def test_a_run_that_fails_is_told_with_its_traceback_and_leaves_nothing(hvdtrain, folder, tmp_path):
    ended = hvdtrain(
        *("verify", folder / "job.yaml", "-np", "1", "--backend", "single,ddp", "--json"),
        *("--set", "model.args.fault=broken"),
        env={"TMPDIR": str(tmp_path)},
    )
    assert ended.code == 1
    assert ended.err.count("RuntimeError: the model broke") == 1
    assert ended.document["error"].startswith("1 rank with single: rank 0 ")
    assert not any(path.name.startswith("hvdtrain") for path in tmp_path.iterdir())
