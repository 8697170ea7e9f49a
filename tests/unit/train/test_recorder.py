"""What a rank keeps of its steps, and how a model's forward pass is tried out."""

import json

import pytest
import torch
from torch import nn

from hvdtrain.backends.base import Replica
from hvdtrain.backends.single import SingleBackend
from hvdtrain.data.batch import Batch
from hvdtrain.data.partition import Partition
from hvdtrain.topology.environ import find_world
from hvdtrain.train.probes import probe_forward
from hvdtrain.train.recorder import FOLD, RECORD_FACTS, Recorder, fold, step_path
from hvdtrain.train.step import Share, Stepper, StepRules

CPU = torch.device("cpu")


def test_folds_are_linear_and_tell_rows_apart():
    one, other = torch.randn(2, 40, 50, dtype=torch.float64)
    assert torch.allclose(fold(2 * one - 3 * other), 2 * fold(one) - 3 * fold(other))
    # The gradient of a softmax layer: its rows add up to nothing, which a fold must not show as nothing.
    assert fold(torch.stack([one[0], -one[0]])).norm() > 1
    assert fold(torch.ones(3)).tolist() == [1.0] * 3 + [0.0] * (FOLD - 3)


def test_a_step_is_kept_with_its_samples_and_gradients(tmp_path):
    model = nn.Linear(3, 2)
    backend = SingleBackend(find_world({}), CPU)
    replica = Replica(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model)
    stepper = Stepper(backend, replica, StepRules(clip_norm=0.01))
    recorder = Recorder(backend, stepper, Partition(6, 1, 4, shuffle=False), tmp_path)
    before = model.weight.detach().clone()
    inputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    share = Share(4, 4)
    stepper.begin(share)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    recorder.passed(Batch(inputs, targets, 4, 4, 4), loss)
    stepper.backward(loss, share)
    recorder.stepped(stepper.end())
    recorder.finish({"seed": 1}, 0)

    facts = json.loads(step_path(tmp_path, 1, "facts").read_text())
    (rank,) = facts["ranks"]
    assert (rank["count"], rank["indices"], facts["lr"]) == (4, [0, 1, 2, 3], [0.1])
    assert len(set(rank["contents"])) == 4
    assert facts["loss"] == pytest.approx(loss.item())
    assert len(facts["state"]["momentum_buffer"]) == 2
    kept = {
        what: torch.load(step_path(tmp_path, step, what), weights_only=True)
        for step, what in ((0, "parameters"), (1, "reduced"), (1, "clipped"), (1, "local"))
    }
    assert torch.equal(kept["parameters"]["weight"], before)
    assert torch.allclose(before - 0.1 * kept["clipped"]["weight"], model.weight)
    assert kept["reduced"]["weight"].norm() > kept["clipped"]["weight"].norm()
    assert kept["local"]["norms"][0, 0] == pytest.approx(kept["reduced"]["weight"].norm().item())
    document = json.loads((tmp_path / RECORD_FACTS).read_text())
    assert (document["parameters"], document["steps"], document["seed"]) == (["weight", "bias"], 1, 1)


def test_the_same_sample_has_the_same_checksum_in_another_place(tmp_path):
    from hvdtrain.train.recorder import _checksums

    inputs, targets = torch.randn(3, 2, 2), torch.tensor([5, 6, 7])
    order = [2, 0, 1]
    sums = _checksums(Batch(inputs, targets, 3, 3, 3))
    assert _checksums(Batch(inputs[order], targets[order], 3, 3, 3)) == [sums[i] for i in order]
    assert _checksums(Batch(inputs, targets + 1, 3, 3, 3)) != sums
    pair = ({"ids": inputs, "mask": inputs.bfloat16()}, targets)
    assert len(set(_checksums(Batch(*pair, 3, 3, 3)))) == 3


@pytest.mark.parametrize(
    ("layer", "is_random", "mixes"),
    [
        (nn.ReLU(), False, False),
        (nn.Dropout(0.5), True, False),
        (nn.BatchNorm1d(8), False, True),
        (nn.LayerNorm(8), False, False),
        (nn.Softmax(dim=0), False, True),
    ],
)
def test_how_a_model_behaves_is_tried_out(layer, is_random, mixes):
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))
    found = probe_forward(model, torch.randn(10, 4), CPU, seed=1)
    assert (found.is_random, found.mixes_samples) == (is_random, mixes)
    assert bool(found.batchnorms) == isinstance(layer, nn.BatchNorm1d)
    assert bool(found.random_layers) == isinstance(layer, nn.Dropout)
