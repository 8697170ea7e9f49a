"""Comparing records: what counts as rounding, and what is found first."""

import json
import math
from dataclasses import asdict

import pytest
import torch

from hvdtrain.config import Job
from hvdtrain.tools.verify.causes import RANDOM, UNKNOWN, explain
from hvdtrain.tools.verify.compare import compare, measure_drift
from hvdtrain.tools.verify.records import Record
from hvdtrain.tools.verify.request import Run
from hvdtrain.train.recorder import RECORD_FACTS, RankShare, fold, step_path

TOLERANCE = 1e-4
NAMES = ("layer.weight", "layer.bias")


class Made:
    """A record of two steps, all of whose parts a test may change before it is written."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size
        draw = torch.Generator().manual_seed(0)
        self.tensors = {}
        for step in range(3):
            for what in ("parameters", "reduced") if step else ("parameters",):
                values = {"layer.weight": torch.randn(30, 20, generator=draw), "layer.bias": torch.ones(20)}
                self.tensors[step, what] = values
            self.tensors[step, "buffers"] = {"seen": torch.tensor(step), "mean": torch.ones(20)}
        self.lr, self.loss, self.skipped = {1: 0.1, 2: 0.1}, {1: 2.0, 2: 1.5}, {1: "", 2: ""}
        self.shares = {step: [RankShare(count=6 // size) for _ in range(size)] for step in (1, 2)}
        for step, shares in self.shares.items():
            for rank, share in enumerate(shares):
                share.indices = tuple(range(10 * step + rank, 10 * step + 6, size))
                share.contents = [100 + index for index in share.indices]
        self.state = {1: {"momentum": [1.0, 1.0]}, 2: {"momentum": [2.0, 1.0]}}
        self.local = {}  # step -> list over ranks of gradients by name
        self.facts = {"batchnorms": [], "random_layers": [], "is_random": False, "mixes_samples": False}
        self.facts |= {"precision": "fp32", "hooked": [], "parameters": list(NAMES), "steps": 2, "size": size}

    def write(self):
        self.folder.mkdir()
        for (step, what), tensors in self.tensors.items():
            torch.save(tensors, step_path(self.folder, step, what))
        for step in (1, 2):
            facts = {"loss": self.loss[step], "lr": [self.lr[step]], "skipped": self.skipped[step]}
            facts |= {"ranks": [asdict(share) for share in self.shares[step]], "state": self.state[step]}
            step_path(self.folder, step, "facts").write_text(json.dumps(facts))
            ranks = self.local.get(step, [self.tensors[step, "reduced"]] * self.size)
            rows = [[gradients[name].double() for name in NAMES] for gradients in ranks]
            local = {
                "norms": torch.stack([torch.stack([value.norm() for value in row]) for row in rows]),
                "largest": torch.stack([torch.stack([value.abs().max() for value in row]) for row in rows]),
                "folds": torch.stack([torch.stack([fold(value) for value in row]) for row in rows]),
            }
            torch.save(local, step_path(self.folder, step, "local"))
        (self.folder / RECORD_FACTS).write_text(json.dumps(self.facts))
        return Record(Run(self.size, "ddp"), self.folder)


@pytest.fixture
def pair(tmp_path):
    """Equal records of 1 and of 2 ranks, not written yet."""
    return Made(tmp_path / "one", 1), Made(tmp_path / "two", 2)


@pytest.fixture
def verdict(pair):
    """Writes both, compares, and explains."""

    def told(job="{batch: {global: 6}, model: m, data: digits, steps: 2}"):
        import yaml

        one, two = (made.write() for made in pair)
        found = compare(one, two, TOLERANCE)
        if found.first is None:
            return found.largest, None
        return found.first, explain(found.first, one, two, Job.model_validate(yaml.safe_load(job)), TOLERANCE)

    return told


def test_rounding_is_equal_and_the_largest_is_told(pair, verdict):
    pair[1].tensors[2, "reduced"]["layer.weight"] *= 1 + 1e-6
    pair[1].tensors[1, "parameters"]["layer.bias"] += 1e-7
    largest, cause = verdict()
    assert cause is None
    assert (largest.step, largest.what, largest.name) == (2, "gradient", "layer.weight")
    assert largest.relative == pytest.approx(1e-6, rel=0.1)


def test_a_gradient_that_is_all_rounding_is_measured_by_the_others(pair, verdict):
    for made, sign in zip(pair, (1, -1), strict=True):
        made.tensors[1, "reduced"]["layer.bias"] = torch.full((20,), sign * 1e-7)
    assert verdict()[1] is None


def test_what_rounding_makes_of_adam_is_no_difference(pair, verdict):
    """A gradient of 1e-9 and one of -1e-9 move a parameter by the whole rate, up or down."""
    for made, sign in zip(pair, (1, -1), strict=True):
        made.tensors[1, "reduced"]["layer.weight"][3, 4] = sign * 1e-9
        made.tensors[1, "parameters"]["layer.weight"][3, 4] += sign * 0.1
    assert verdict()[1] is None


def test_the_same_step_with_a_gradient_that_is_none_of_rounding_is_one(pair, verdict):
    for made, sign in zip(pair, (1, -1), strict=True):
        made.tensors[1, "parameters"]["layer.weight"][3, 4] += sign * 0.1
    found, cause = verdict()
    assert (found.step, found.what, found.name) == (1, "parameter", "layer.weight")
    assert found.absolute == pytest.approx(0.2)
    assert cause.name == "optimizer state"
    assert "norms agree" in cause.evidence


def test_two_nans_are_equal_and_one_is_not(pair, verdict):
    for made in pair:
        made.tensors[1, "reduced"]["layer.bias"][0] = math.nan
    pair[1].tensors[2, "parameters"]["layer.bias"][0] = math.nan
    found, _ = verdict()
    assert (found.step, found.what) == (2, "parameter")


def test_a_parameter_that_one_run_lacks(pair, verdict):
    del pair[1].tensors[0, "parameters"]["layer.bias"]
    found, cause = verdict()
    assert (found.step, found.name, cause.name) == (0, "layer.bias", "initial parameters")
    assert "other tensors" in cause.evidence


def test_the_cause_is_what_comes_first(pair, verdict):
    """All of step 2 differs: the learning rate is told."""
    pair[1].lr[2], pair[1].loss[2] = 0.2, 7.0
    pair[1].tensors[2, "reduced"]["layer.weight"] *= 3
    found, cause = verdict()
    assert (found.step, found.what, found.values) == (2, "learning rate", (0.1, 0.2))
    assert "0.1 on 1 rank with ddp, 0.2 on 2 ranks with ddp" in cause.evidence


def test_samples_that_are_missing_and_doubled(pair, verdict):
    pair[1].shares[1][0].indices = (10, 12, 12)
    found, cause = verdict()
    assert (found.what, cause.name, cause.advice) == ("samples", "sampler", "")
    assert cause.evidence == "samples missing: 14; more than once, or too many: 12"


def test_copies_that_fill_the_last_step(pair, verdict):
    pair[1].shares[2][1].indices += (10,)
    _, cause = verdict("{batch: {global: 6, tail: pad}, model: m, data: digits, steps: 2}")
    assert "tail=pad" in cause.advice


def test_other_values_of_the_same_samples(pair, verdict):
    pair[1].loss[1] = 2.5
    pair[1].shares[1][1].contents = [7, 8, 9]
    _, cause = verdict()
    assert cause.name == "data"
    assert "3 of 6 samples" in cause.evidence
    assert "on rank 1 of 2 ranks" in cause.evidence
    assert "11, 13, 15" in cause.evidence


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"batchnorms": ["norm"], "mixes_samples": True}, "BatchNorm"),
        ({"mixes_samples": True}, "batch statistics"),
        ({"is_random": True}, RANDOM),
        ({"is_random": True, "batchnorms": ["norm"]}, RANDOM),
        ({}, UNKNOWN),
    ],
)
def test_losses_that_differ_with_the_same_parameters_and_samples(pair, verdict, facts, cause):
    pair[1].loss[1] = 2.01
    pair[1].facts |= facts
    found, told = verdict()
    assert (found.step, found.what, told.name) == (1, "loss", cause)
    assert "norm" in told.evidence or "batchnorms" not in facts


def test_a_factor_on_some_of_the_parameters(pair, verdict):
    pair[1].tensors[1, "reduced"]["layer.weight"] *= 1.5
    pair[1].local[1] = [pair[1].tensors[1, "reduced"]] * 2
    found, cause = verdict()
    assert (found.name, cause.name) == ("layer.weight", "averaging")
    assert "1 of 2 parameters" in cause.evidence
    assert "times 1.5" in cause.evidence


def test_a_small_parameter_alone_is_not_taken_for_wrong_weights(pair, verdict):
    """A wrong gradient that hardly counts in the sum of all must not be told by weights that fit the rest."""
    for made in pair:
        made.tensors[1, "reduced"]["layer.bias"] = torch.linspace(0.001, 0.002, 20)
    pair[1].tensors[1, "reduced"]["layer.bias"] = torch.linspace(0.002, 0.001, 20)
    right = pair[0].tensors[1, "reduced"]
    pair[1].local[1] = [right, {**right, "layer.weight": right["layer.weight"] * 2}]
    found, cause = verdict()
    assert (found.name, cause.name) == ("layer.bias", "averaging")
    assert "reduced gradient of layer.bias is not the mean" in cause.evidence


def test_ranks_that_scale_their_own_gradients(pair, verdict):
    right = pair[0].tensors[1, "reduced"]
    draw = torch.Generator().manual_seed(1)
    part = {name: torch.randn(value.shape, generator=draw) for name, value in right.items()}
    ranks = [{name: 0.5 * (right[name] + part[name]) for name in NAMES}]
    ranks += [{name: 0.25 * (right[name] - part[name]) for name in NAMES}]
    pair[1].local[1] = ranks
    pair[1].tensors[1, "reduced"] = {name: (ranks[0][name] + ranks[1][name]) / 2 for name in NAMES}
    _, cause = verdict()
    assert cause.name == "clipping"
    assert "times 2 (rank 0), 4 (rank 1)" in cause.evidence


def test_elements_that_stop_at_one_size(pair, verdict):
    ranks = []
    for seed in (1, 2):
        values = torch.randn(30, 20, generator=torch.Generator().manual_seed(seed)).clamp(-0.5, 0.5)
        ranks.append({"layer.weight": values, "layer.bias": torch.ones(20)})
    pair[1].local[1] = ranks
    pair[1].tensors[1, "reduced"]["layer.weight"] = (ranks[0]["layer.weight"] + ranks[1]["layer.weight"]) / 2
    # Ones in both bias gradients would stop at one size too.
    ranks[0]["layer.bias"] = 1.5 * torch.ones(20)
    ranks[1]["layer.bias"] = 0.5 * torch.ones(20)
    _, cause = verdict()
    assert cause.name == "clipping"
    assert "the largest element of the gradient of layer.weight is at most 0.5" in cause.evidence


def test_a_gradient_that_nothing_explains(pair, verdict):
    right = pair[0].tensors[1, "reduced"]
    ranks = []
    for seed in (1, 2):
        draw = torch.Generator().manual_seed(seed)
        ranks.append({name: torch.randn(value.shape, generator=draw) for name, value in right.items()})
    pair[1].local[1] = ranks
    pair[1].tensors[1, "reduced"] = {name: (ranks[0][name] + ranks[1][name]) / 2 for name in NAMES}
    found, cause = verdict()
    assert (found.what, cause.name) == ("gradient", UNKNOWN)


def test_clipped_gradients_that_differ_where_reduced_ones_agree(pair, verdict):
    for made, factor in zip(pair, (0.5, 0.25), strict=True):
        reduced = made.tensors[1, "reduced"]
        made.tensors[1, "clipped"] = {name: value * factor for name, value in reduced.items()}
    found, cause = verdict()
    assert (found.what, cause.name) == ("clipped gradient", "clipping")


def test_clipped_in_one_run_only(pair, verdict):
    reduced = pair[0].tensors[2, "reduced"]
    pair[0].tensors[2, "clipped"] = {name: value * 0.5 for name, value in reduced.items()}
    found, cause = verdict()
    assert (found.step, found.what, cause.name) == (2, "clipped gradient", "clipping")


def test_ranks_of_one_run_that_are_no_replicas(pair, verdict):
    pair[1].shares[1][1].checksum = 5
    found, cause = verdict()
    assert (found.what, cause.name) == ("replicas", "replicas")
    assert "rank 1 does not hold rank 0's parameters" in cause.evidence


def test_optimizer_state_is_told_by_its_norms(pair, verdict):
    pair[1].tensors[2, "parameters"]["layer.weight"] += 0.01
    pair[1].state[2]["momentum"][0] = 3.0
    _, cause = verdict()
    assert cause.name == "optimizer state"
    assert "momentum of layer.weight has norm 2 and 3" in cause.evidence


def test_buffers(pair, verdict):
    pair[1].tensors[2, "buffers"]["mean"] += 0.1
    found, cause = verdict()
    assert (found.step, found.what, found.name, cause.name) == (2, "buffer", "mean", UNKNOWN)


def test_running_statistics_of_one_rank(pair, verdict):
    for made in pair:
        made.tensors[1, "buffers"]["norm.running_mean"] = torch.ones(4) * made.size
        made.facts["batchnorms"] = ["norm"]
    assert verdict()[1].name == "BatchNorm"


def test_a_step_that_one_run_left_out(pair, verdict):
    pair[1].skipped[2] = "fp16 overflow"
    found, cause = verdict()
    assert (found.what, cause.name) == ("skipped step", UNKNOWN)


def test_a_run_that_ended_early(pair, verdict):
    pair[1].facts["steps"] = 1
    found, cause = verdict()
    assert (found.step, found.what, cause.name) == (2, "number of steps", UNKNOWN)


def test_what_rounding_alone_grows_to_is_allowed(pair, tmp_path):
    control = Made(tmp_path / "control", 1)
    control.tensors[2, "reduced"]["layer.weight"] *= 1.001
    pair[1].tensors[2, "reduced"]["layer.weight"] *= 1.004
    one, two, again = (made.write() for made in (*pair, control))
    drift = measure_drift(one, again, TOLERANCE)
    assert drift == [0.0, 0.0, pytest.approx(0.001, rel=1e-3)]
    assert compare(one, two, TOLERANCE).first is not None
    assert compare(one, two, TOLERANCE, drift).first is None
    assert compare(one, two, TOLERANCE, [0.0, 0.0, 0.0007]).first.name == "layer.weight"


def test_steps_in_which_rounding_alone_grows_large_prove_nothing(pair):
    pair[1].tensors[2, "reduced"]["layer.weight"] *= 1.5
    one, two = (made.write() for made in pair)
    found = compare(one, two, TOLERANCE, [0.0, 0.0, 0.4])
    assert (found.first, found.proven) == (None, 1)
    # Step 1 is within the tolerance, whatever the control run did in it.
    assert compare(one, two, TOLERANCE, [0.0, 0.4, 0.4]).proven == 1
    assert compare(one, two, TOLERANCE).proven == 1
    assert compare(one, one, TOLERANCE).proven == 2


@pytest.mark.parametrize(
    ("layers", "told"), [(["2"], "layer 2 normalises over"), (["1", "2"], "2 layers (1, 2) normalise over")]
)
def test_one_layer_normalises_and_several_normalise(pair, verdict, layers, told):
    for made in pair:
        made.facts |= {"batchnorms": layers, "mixes_samples": True}
    pair[1].loss[1] *= 1.01
    assert told in verdict()[1].evidence
