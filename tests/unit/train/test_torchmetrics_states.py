"""Real metrics of torchmetrics over several ranks against one."""

import math

import pytest
import torch

from hvdtrain.errors import InputError
from hvdtrain.train.evaluation import Evaluation, build_evaluation
from hvdtrain.train.torchmetrics_states import TorchMetric

torchmetrics = pytest.importorskip("torchmetrics")
classification = pytest.importorskip("torchmetrics.classification")


def samples():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(90, 4, generator=generator), torch.randint(4, (90,), generator=generator)


OUTPUTS, TARGETS = samples()


def of_column(metric):
    """A regression metric fed with the first score against the second."""

    class OfColumn(type(metric)):
        def update(self, outputs, targets):
            super().update(outputs[:, 0], outputs[:, 1] + targets)

    metric.__class__ = OfColumn
    return OfColumn()


class Extremes(torchmetrics.Metric):
    """States whose defaults must not count on a rank without samples; ``middle`` is 2 on all others."""

    def __init__(self):
        super().__init__()
        self.add_state("largest", torch.tensor(99.0), "max")
        self.add_state("smallest", torch.tensor(-99.0), "min")
        self.add_state("middle", torch.tensor(0.0), "mean")

    def update(self, outputs, targets):
        first = self.update_count <= 1
        self.largest = outputs.max() if first else torch.maximum(self.largest, outputs.max())
        self.smallest = outputs.min() if first else torch.minimum(self.smallest, outputs.min())
        self.middle = torch.tensor(2.0)

    def compute(self):
        return torch.stack([self.largest, self.smallest, self.middle])


METRICS = {
    "sum": lambda: classification.MulticlassF1Score(4),
    "sum of a matrix": lambda: classification.MulticlassCohenKappa(4),
    "cat": lambda: classification.MulticlassAUROC(4),
    "several values": lambda: classification.MulticlassRecall(4, average=None),
    "no reduction": lambda: of_column(torchmetrics.PearsonCorrCoef()),
    "max, min, mean": lambda: Extremes(),
    "wrapped": lambda: torchmetrics.ClasswiseWrapper(classification.MulticlassStatScores(4, average=None)),
    "computed from two": lambda: classification.MulticlassRecall(4) + classification.MulticlassAccuracy(4),
}


def fed(backend, metric, ranks_with_samples):
    """The samples dealt out in turn to the first ranks, in batches of 8."""
    metric = TorchMetric("it", metric)
    metric.reset()
    if backend.rank < ranks_with_samples:
        mine = slice(backend.rank, None, ranks_with_samples)
        for outputs, targets in zip(OUTPUTS[mine].split(8), TARGETS[mine].split(8), strict=True):
            metric.update(outputs, targets)
    return metric.reduced(backend)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(("size", "ranks_with_samples"), [(1, 1), (2, 2), (3, 2), (3, 1), (5, 5)])
def test_ranks_give_what_torchmetrics_gives_alone(on_ranks, name, size, ranks_with_samples):
    alone = METRICS[name]()
    alone.update(OUTPUTS, TARGETS)
    computed = alone.compute()
    if isinstance(computed, dict):
        expected = {f"it_{key}": value.tolist() for key, value in computed.items()}
    else:
        expected = {"it": computed.tolist()}
    results = on_ranks(size, lambda backend: fed(backend, METRICS[name](), ranks_with_samples))
    assert results == [results[0]] * size
    assert results[0].keys() == expected.keys()
    for key, value in expected.items():
        assert results[0][key] == pytest.approx(value, rel=1e-5)


def test_sums_of_whole_numbers_are_equal_to_the_last_bit(on_ranks, alone):
    expected = fed(alone, METRICS["sum of a matrix"](), 1)
    results = on_ranks(3, lambda backend: fed(backend, METRICS["sum of a matrix"](), 3))
    assert results == [expected] * 3


def test_reducing_leaves_the_metric_as_it_was(on_ranks):
    def twice(backend):
        metric = TorchMetric("it", METRICS["cat"]())
        metric.update(OUTPUTS[backend.rank :: 2], TARGETS[backend.rank :: 2])
        first = metric.reduced(backend)
        assert metric.reduced(backend) == first
        metric.reset()
        metric.update(OUTPUTS[:20], TARGETS[:20])
        return first != metric.reduced(backend)

    assert on_ranks(2, twice) == [True, True]


@pytest.mark.parametrize("name", METRICS)
def test_no_samples_anywhere(on_ranks, name):
    for values in on_ranks(2, lambda backend: fed(backend, METRICS[name](), 0)):
        assert values.keys() == {"it"}
        assert math.isnan(values["it"])


def test_its_own_synchronisation_stays_off(on_ranks, monkeypatch):
    """Where torch.distributed is up, torchmetrics would gather what is already the sum of all ranks."""
    monkeypatch.setattr(torchmetrics.Metric, "_sync_dist", lambda *_, **__: pytest.fail("synchronised twice"))
    monkeypatch.setattr("torchmetrics.metric.jit_distributed_available", lambda: True)
    on_ranks(2, lambda backend: fed(backend, METRICS["sum"](), 2))


def test_samples_that_do_not_count(alone):
    metric, counted = TorchMetric("it", METRICS["sum"]()), torch.arange(90) < 50
    metric.update(OUTPUTS, TARGETS, counted)
    metric.update(OUTPUTS, TARGETS, torch.zeros(90, dtype=torch.bool))
    only = TorchMetric("it", METRICS["sum"]())
    only.update(OUTPUTS[:50], TARGETS[:50])
    assert metric.reduced(alone) == only.reduced(alone)


def test_beside_metrics_of_ours(alone):
    ours = build_evaluation(["f1", "auroc"], 4)
    ours.update(OUTPUTS, TARGETS)
    theirs = Evaluation(
        [
            TorchMetric("f1", classification.MulticlassF1Score(4, average="macro")),
            TorchMetric("auroc", classification.MulticlassAUROC(4)),
        ]
    )
    theirs.update(OUTPUTS, TARGETS)
    found, expected = ours.reduced(alone), theirs.reduced(alone)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_a_factory_in_a_job(tmp_path, monkeypatch, alone):
    (tmp_path / "metrics_of_mine.py").write_text(
        "from torchmetrics.classification import MulticlassCohenKappa\n"
        "def kappa():\n    return MulticlassCohenKappa(4)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    evaluation = build_evaluation(["metrics_of_mine:kappa"], None)
    evaluation.update(OUTPUTS, TARGETS)
    alone_metric = classification.MulticlassCohenKappa(4)
    alone_metric.update(OUTPUTS, TARGETS)
    assert evaluation.reduced(alone) == {"kappa": float(alone_metric.compute())}


def test_a_collection_is_refused():
    collection = torchmetrics.MetricCollection([classification.MulticlassF1Score(4)])
    with pytest.raises(InputError, match=r"MetricCollection, not a torchmetrics\.Metric; give the metrics"):
        TorchMetric("all", collection)
