"""Metrics by hand, against scikit-learn, and on several ranks against one."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    confusion_matrix,
    precision_recall_fscore_support,
    roc_auc_score,
    top_k_accuracy_score,
)

from hvdtrain.errors import InputError, TrainingError
from hvdtrain.train.auroc import Auroc, area_under, log_odds
from hvdtrain.train.confusion import ConfusionMatrix, class_figures
from hvdtrain.train.evaluation import build_evaluation
from hvdtrain.train.metrics import Means, Tally, TopAccuracy, scalars

NAMES = ("accuracy", "top2", "auroc", "confusion", "precision", "recall", "f1")


def samples(num_samples, num_classes, *, decimals=1, seed=0):
    """Scores with many ties, and targets; the last class has none."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_samples, num_classes, generator=generator)
    targets = torch.randint(num_classes - 1, (num_samples,), generator=generator)
    return scores.round(decimals=decimals), targets


def shares(size, outputs, targets):
    """What each rank holds: uneven, and nothing at all for the last of three and more."""
    holders = max(1, size - 1) if size > 2 else size
    ends = [round(len(targets) * (rank / holders) ** 1.5) for rank in range(holders + 1)]
    parts = [slice(ends[rank], ends[rank + 1]) if rank < holders else slice(0, 0) for rank in range(size)]
    return [(outputs[part], targets[part]) for part in parts]


def measured(backend, metric, outputs, targets, batch=7):
    metric.reset()
    for start in range(0, len(targets), batch):
        metric.update(outputs[start : start + batch], targets[start : start + batch])
    return metric.reduced(backend)


@pytest.mark.parametrize("num_classes", [2, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_give_what_one_rank_gives_to_the_last_bit(on_ranks, alone, size, num_classes):
    outputs, targets = samples(101, num_classes)
    if num_classes == 2:
        targets = (outputs[:, 1] + torch.arange(101) % 3 > 1).long()
    expected = measured(alone, build_evaluation(NAMES, num_classes), outputs, targets)
    parts = shares(size, outputs, targets)
    results = on_ranks(
        size,
        lambda backend: measured(backend, build_evaluation(NAMES, num_classes), *parts[backend.rank], 11),
    )
    assert results == [expected] * size
    assert not any(math.isnan(value) for value in scalars(expected).values())


def test_all_figures_against_scikit_learn(alone):
    outputs, targets = samples(200, 4, decimals=5)
    values = measured(alone, build_evaluation(NAMES, 4), outputs, targets)
    predicted = outputs.argmax(dim=1)
    assert values["confusion"] == confusion_matrix(targets, predicted).tolist()
    assert values["accuracy"] == float((predicted == targets).double().mean())
    assert values["top2"] == top_k_accuracy_score(targets, outputs, k=2, labels=range(4))
    assert values["top2"] != values["accuracy"]
    per_class = precision_recall_fscore_support(targets, predicted, zero_division=0)
    macro = precision_recall_fscore_support(targets, predicted, zero_division=0, average="macro")
    for at, name in enumerate(["precision", "recall", "f1"]):
        assert values[f"{name}_per_class"] == pytest.approx(per_class[at].tolist())
        assert values[name] == pytest.approx(macro[at])
    chances = torch.softmax(outputs.double(), dim=1).numpy()
    areas = [roc_auc_score(targets == column, chances[:, column]) for column in range(3)]
    assert values["auroc_per_class"] == [*map(pytest.approx, areas), None]
    assert values["auroc"] == pytest.approx(np.mean(areas))
    assert set(scalars(values)) == {"accuracy", "top2", "auroc", "precision", "recall", "f1"}


def test_a_confusion_matrix_by_hand():
    """Class 0: two of three found, one other taken for it. Class 3 was neither there nor predicted."""
    matrix = torch.tensor([[2, 1, 0, 0], [1, 3, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]])
    assert class_figures(matrix) == {
        "precision": [2 / 3, 3 / 6, 0.0, None],
        "recall": [2 / 3, 3 / 4, 0.0, None],
        "f1": [4 / 6, 6 / 10, 0.0, None],
    }


def test_rows_are_targets_and_columns_predictions(alone):
    matrix = ConfusionMatrix(3)
    matrix.update(torch.tensor([[0.0, 1.0, 0.0], [0.0, 2.0, 1.0]]), torch.tensor([0, 2]))
    assert matrix.matrix(alone).tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 0]]
    assert matrix.reduced(alone)["precision"] == 0.0


@pytest.mark.parametrize(
    ("scores", "positive", "area"),
    [
        # Of the 2 * 2 pairs three are in order.
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
        # All equal: every pair counts one half.
        ([1, 1, 1], [0, 1, 0], 0.5),
        # Pairs (2 over 1), (2 = 2), (2 over 0): 2.5 of 3.
        ([1, 2, 2, 0], [0, 0, 1, 0], 2.5 / 3),
        ([3, 2, 1], [0, 0, 1], 0.0),
        ([1, 2], [1, 1], None),
        ([1, 2], [0, 0], None),
        ([], [], None),
    ],
)
def test_areas_by_hand(scores, positive, area):
    assert area_under(np.array(scores, dtype=float), np.array(positive, dtype=bool)) == area


def test_scores_whose_probabilities_round_to_one_keep_their_order(alone):
    """softmax(0, 800) and softmax(0, 900) are both 1.0 in double precision."""
    outputs = torch.tensor([[0.0, 900.0], [0.0, 800.0], [0.0, -900.0], [0.0, -800.0]])
    assert measured(alone, Auroc(2), outputs, torch.tensor([1, 0, 0, 1])) == {"auroc": 0.75}


def test_odds_by_hand():
    outputs = torch.tensor([[1.0, 1.0, 1.0], [math.log(6), math.log(3), 0.0], [0.0, 1000.0, 0.0]])
    odds = log_odds(outputs)
    assert odds[0].tolist() == pytest.approx([math.log(1 / 2)] * 3)
    assert odds[1].tolist() == pytest.approx([math.log(6 / 4), math.log(3 / 7), math.log(1 / 9)])
    assert odds[2].tolist() == pytest.approx([-1000, 1000 - math.log(2), -1000])


def test_scores_are_gathered_in_pieces(on_ranks, alone, monkeypatch):
    outputs, targets = samples(60, 7)
    expected = measured(alone, Auroc(7), outputs, targets)
    # 60 samples of 8 bytes: two classes fit.
    monkeypatch.setattr("hvdtrain.train.auroc._GATHERED_BYTES", 2 * 60 * 8)
    parts = shares(3, outputs, targets)
    results = on_ranks(3, lambda backend: measured(backend, Auroc(7), *parts[backend.rank]))
    assert results == [expected] * 3


@pytest.mark.parametrize("size", [1, 3])
def test_no_samples_anywhere_is_no_number_and_no_error(on_ranks, size):
    nothing = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    for values in on_ranks(size, lambda backend: measured(backend, build_evaluation(NAMES, 3), *nothing)):
        assert all(math.isnan(value) for value in scalars(values).values())
        assert values["confusion"] == [[0] * 3] * 3
        assert values["auroc_per_class"] == values["f1_per_class"] == [None] * 3


def test_samples_that_do_not_count(alone):
    outputs, targets = samples(40, 3)
    counted = torch.arange(40) % 3 > 0
    targets[~counted] = -100  # such as the padding of a batch: no class at all
    evaluation = build_evaluation(NAMES, 3)
    evaluation.update(outputs, targets, counted)
    evaluation.update(outputs, targets, torch.zeros(40, dtype=torch.bool))
    kept = build_evaluation(NAMES, 3)
    kept.update(outputs[counted], targets[counted])
    assert evaluation.reduced(alone) == kept.reduced(alone)


def test_reducing_changes_nothing_and_reset_forgets(alone):
    outputs, targets = samples(30, 3)
    evaluation = build_evaluation(NAMES, 3)
    first = measured(alone, evaluation, outputs, targets)
    assert evaluation.reduced(alone) == first
    assert measured(alone, evaluation, outputs[:10], targets[:10]) != first
    assert measured(alone, evaluation, outputs, targets) == first


def test_of_equal_scores_the_lower_class_comes_first(alone):
    same, targets = torch.zeros(4, 4), torch.arange(4)
    assert [measured(alone, TopAccuracy(4, k), same, targets)[name] for k, name in TOPS] == [0.25, 0.5, 1.0]
    broken = torch.tensor([[0.0, math.nan, 0.0, 0.0]]).repeat(4, 1)
    assert measured(alone, TopAccuracy(4, 4), broken, targets) == {"top4": 0.0}
    assert math.isnan(measured(alone, Auroc(4), broken, targets)["auroc"])
    assert measured(alone, Auroc(4), broken, targets)["auroc_per_class"] == [None] * 4


TOPS = [(1, "accuracy"), (2, "top2"), (4, "top4")]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_scores_of_other_precision(alone, kind):
    outputs, targets = samples(50, 3, decimals=0)
    values = measured(alone, build_evaluation(NAMES, 3), outputs.to(kind), targets.int())
    # Scores of few digits: all kinds hold them as they are.
    assert values == measured(alone, build_evaluation(NAMES, 3), outputs, targets)


@pytest.mark.parametrize(
    ("outputs", "targets", "said"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), "target 3 is no class: legal are 0 to 2"),
        (torch.zeros(2, 3), torch.tensor([-1, 0]), "target -1 is no class"),
        (torch.zeros(2, 4), torch.tensor([0, 1]), r"outputs of shape \(N, 3\).*found \(2, 4\) and \(2,\)"),
        (torch.zeros(2, 3), torch.zeros(2, 1), r"found \(2, 3\) and \(2, 1\)"),
        (torch.zeros(3), torch.tensor([0, 1, 2]), r"found \(3,\) and \(3,\)"),
    ],
)
def test_what_does_not_fit_is_named(outputs, targets, said):
    with pytest.raises(TrainingError, match=said):
        build_evaluation(["confusion"], 3).update(outputs, targets)


@pytest.mark.parametrize(
    ("names", "num_classes", "said"),
    [
        (["top5"], 3, "metrics: top5 of 3 classes; legal: 1 to 3"),
        (["accuracy"], 1, "a metric of 1 classes; legal: 2 or more"),
        (["f1"], None, "metrics: the data does not tell its number of classes"),
        (["collections:OrderedDict"], None, "'OrderedDict' is a OrderedDict, not a torchmetrics.Metric"),
        (["no_such_module_of_mine:f"], 3, "no_such_module_of_mine"),
    ],
)
def test_metrics_that_do_not_fit_the_job(names, num_classes, said):
    with pytest.raises(InputError, match=said):
        build_evaluation(names, num_classes)


def test_figures_of_a_confusion_matrix_by_name():
    with pytest.raises(InputError, match="gives no 'kappa'; legal: confusion, precision, recall, f1"):
        ConfusionMatrix(3, ["kappa"])


def test_no_metrics_take_no_collective(on_ranks):
    assert on_ranks(2, lambda backend: build_evaluation([], None).reduced(backend)) == [{}, {}]


def test_a_mean_is_over_samples_not_over_ranks(on_ranks):
    """Rank 0 holds 5 samples of loss 1, rank 1 one of loss 7, rank 2 none: 12 / 6, not the mean of means."""
    held = [(1.0, 3, 5), (7.0, 1, 1), None]

    def reduce(backend):
        tally = Tally()
        if held[backend.rank]:
            loss, right, count = held[backend.rank]
            tally.add(torch.tensor(loss), torch.tensor(right), count)
        return tally.reduced(backend, "means")

    for means in on_ranks(3, reduce):
        assert (means.loss, means.accuracy, means.count) == (2.0, 4 / 6, 6)
    assert math.isnan(Means.of([0, 0, 0]).loss)
