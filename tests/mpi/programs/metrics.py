"""Every metric on real ranks against one rank; the engine's name is the argument.

Each rank also computes alone, on all samples: what the ranks found together must be the same to the
last bit. The last rank of three and more has no samples.
"""

import importlib.util
import math
import os
import sys

import torch

from hvdtrain.backends.single import SingleBackend
from hvdtrain.backends.start import start_backend
from hvdtrain.topology.environ import find_world
from hvdtrain.train.evaluation import Evaluation, build_evaluation
from hvdtrain.train.metrics import Tally, scalars
from hvdtrain.train.torchmetrics_states import TorchMetric

NAMES = ("accuracy", "top2", "auroc", "confusion", "precision", "recall", "f1")

backend = start_backend(sys.argv[1], find_world(os.environ))
rank, size = backend.rank, backend.size
alone = SingleBackend(backend.world, torch.device("cpu"))


def share(tensor):
    """Uneven: rank 0 has the most, the last of three and more has nothing."""
    holders = max(1, size - 1) if size > 2 else size
    ends = [round(len(tensor) * (end / holders) ** 0.5) for end in range(holders + 1)]
    return tensor[ends[rank] : ends[rank + 1]] if rank < holders else tensor[:0]


def measured(engine, evaluation, outputs, targets, batch):
    evaluation.reset()
    for start in range(0, len(targets), batch):
        evaluation.update(outputs[start : start + batch], targets[start : start + batch])
    return evaluation.reduced(engine)


def compare(make, outputs, targets):
    together = measured(backend, make(), share(outputs), share(targets), 9)
    expected = measured(alone, make(), outputs, targets, 64)
    assert together == expected, (together, expected)
    assert not any(math.isnan(value) for value in scalars(together).values())
    assert backend.gather(together) == [together] * size


generator = torch.Generator().manual_seed(3)
for num_classes in (2, 6):
    # Few digits, so that scores are often equal.
    outputs = torch.randn(203, num_classes, generator=generator).round(decimals=1)
    targets = torch.randint(num_classes, (203,), generator=generator)
    compare(lambda: build_evaluation(NAMES, num_classes), outputs, targets)  # noqa: B023 - called at once

# No samples on any rank: no figure, no error, and nobody waits.
nothing = measured(
    backend, build_evaluation(NAMES, 3), torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 1
)
assert all(math.isnan(value) for value in scalars(nothing).values())

# Rank r holds r samples of loss r: the mean over samples is that of the squares over that of the ranks.
tally = Tally()
if rank:
    tally.add(torch.tensor(float(rank)), torch.tensor(1), rank)
means = tally.reduced(backend, "means")
count = size * (size - 1) // 2
assert means.count == count
assert math.isnan(means.loss) if size == 1 else means.loss == sum(r * r for r in range(size)) / count

if importlib.util.find_spec("torchmetrics"):
    from torchmetrics.classification import MulticlassAUROC, MulticlassCohenKappa, MulticlassF1Score

    def theirs():
        """One that adds whole numbers, one that gathers."""
        kinds = {"kappa": MulticlassCohenKappa(6), "f1": MulticlassF1Score(6), "auroc": MulticlassAUROC(6)}
        return Evaluation([TorchMetric(name, metric) for name, metric in kinds.items()])

    compare(theirs, outputs, targets)
backend.close()
print(f"rank {rank} of {size} ok", flush=True)
