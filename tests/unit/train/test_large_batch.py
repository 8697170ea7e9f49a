"""LARS and LAMB against values worked out by hand and against the optimizers that they extend."""

import copy
import io
import math

import pytest
import torch

from hvdtrain.errors import InputError, TrainingError
from hvdtrain.train.large_batch import Lamb, Lars


def matrix(*values):
    return torch.nn.Parameter(torch.tensor([values], dtype=torch.float64))


def vector(*values):
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def take(optimizer, *gradients):
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor(gradient, dtype=torch.float64).reshape(parameter.shape)
    optimizer.step()
    return [parameter.detach().flatten().tolist() for parameter in parameters]


def test_lars_by_hand():
    """Two steps of a layer (3, 4), a bias and a layer of zeros."""
    layer, bias, zeros = matrix(3.0, 4.0), vector(1.0), matrix(0.0)
    optimizer = Lars(
        [layer, bias, zeros], lr=2.0, momentum=0.5, weight_decay=0.1, trust_coefficient=0.01, eps=0.0
    )
    # |w| = 5, g = (0, 2): ratio = 0.01 * 5 / (2 + 0.1 * 5) = 0.02, and g + b w = (0.3, 2.4):
    # v = 2 * 0.02 * (0.3, 2.4) = (0.012, 0.096), w = (2.988, 3.904).
    # The bias: v = 2 * 0.25 = 0.5, no ratio and no decay. The zeros: ratio 1, v = 2 * 1.
    first = take(optimizer, [0.0, 2.0], [0.25], [1.0])
    assert first == [pytest.approx([2.988, 3.904]), pytest.approx([0.5]), pytest.approx([-2.0])]
    # Then lr 1 and g = (0.6, 0.8) of norm 1: v = 0.5 * (0.012, 0.096) + 1 * ratio * (g + 0.1 w). The old
    # velocity keeps the rate that it was made with.
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    size = math.hypot(2.988, 3.904)
    ratio = 0.01 * size / (1 + 0.1 * size)
    moved = [2.988 - (0.006 + ratio * (0.6 + 0.2988)), 3.904 - (0.048 + ratio * (0.8 + 0.3904))]
    second = take(optimizer, [0.6, 0.8], [0.25], [0.0])
    # The bias: v = 0.5 * 0.5 + 0.25. The third: |g| = 0, so ratio 1, v = 0.5 * 2 + 1 * 0.1 * -2 = 0.8.
    assert second == [pytest.approx(moved), pytest.approx([0.0]), pytest.approx([-2.8])]


def test_lamb_by_hand():
    """Two steps of a layer (3, 4) and a bias; betas 0.5 and 0.75, decay 0.1, lr 0.1, eps 0."""
    layer, bias = matrix(3.0, 4.0), vector(1.0)
    optimizer = Lamb([layer, bias], lr=0.1, betas=(0.5, 0.75), weight_decay=0.1, eps=0.0)
    # In the first step both averages without their bias are g and g^2: the direction is sign(g) = (1, -1).
    # u = (1 + 0.3, -1 + 0.4) = (1.3, -0.6), |w| = 5: w = (3, 4) - 0.1 * 5 / |u| * u.
    length = math.hypot(1.3, 0.6)
    moved = [3 - 0.5 / length * 1.3, 4 + 0.5 / length * 0.6]
    assert take(optimizer, [2.0, -1.0], [4.0]) == [pytest.approx(moved), pytest.approx([0.9])]
    # g = (1, 1) then: m = 0.5 (1, -0.5) + 0.5 (1, 1) = (1, 0.25), over 1 - 0.25: (4/3, 1/3);
    # v = 0.75 (1, 0.25) + 0.25 (1, 1) = (1, 0.4375), over 1 - 0.5625: (16/7, 1).
    direction = [4 / 3 / math.sqrt(16 / 7), 1 / 3]
    update = [direction[at] + 0.1 * moved[at] for at in (0, 1)]
    scale = 0.1 * math.hypot(*moved) / math.hypot(*update)
    expected = [moved[at] - scale * update[at] for at in (0, 1)]
    # The bias: m = 0.5 * 2 + 0.5 * 1 = 1.5, v = 0.75 * 4 + 0.25 = 3.25.
    bias_moved = 0.9 - 0.1 * (1.5 / 0.75) / math.sqrt(3.25 / 0.4375)
    assert take(optimizer, [1.0, 1.0], [1.0]) == [pytest.approx(expected), pytest.approx([bias_moved])]


def test_lamb_moves_a_layer_of_zeros():
    layer = matrix(0.0, 0.0)
    optimizer = Lamb([layer], lr=0.1, weight_decay=0.1, eps=0.0)
    assert take(optimizer, [2.0, -3.0]) == [pytest.approx([-0.1, 0.1])]
    assert take(optimizer, [0.0, 0.0])[0] != [-0.1, 0.1]
    still = Lamb([matrix(0.0)], eps=1e-6)
    assert take(still, [0.0]) == [[0.0]]


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    ).double()


def train(network, optimizer, steps, start=0):
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(16, 6, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


class Flat(torch.nn.Module):
    """The same network whose parameters all have one dimension: no layer-wise rate anywhere."""

    def __init__(self):
        super().__init__()
        self.network = model()
        self.flat = torch.nn.ParameterList(
            torch.nn.Parameter(parameter.detach().flatten()) for parameter in self.network.parameters()
        )
        self.shapes = {name: parameter.shape for name, parameter in self.network.named_parameters()}
        self.network.requires_grad_(False)

    def parameters(self, recurse=True):
        return iter(self.flat)

    def forward(self, inputs):
        values = {
            name: flat.view(shape) for (name, shape), flat in zip(self.shapes.items(), self.flat, strict=True)
        }
        return torch.func.functional_call(self.network, values, (inputs,))


def test_without_its_ratio_lars_is_sgd_with_momentum():
    ours, theirs = Flat(), Flat()
    lars = Lars(ours.parameters(), lr=0.1, momentum=0.9)
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    assert torch.allclose(train(ours, lars, 20), train(theirs, sgd, 20), rtol=1e-12, atol=1e-15)


def test_a_ratio_of_one_is_sgd_with_momentum_and_decay():
    """A weight of 2, gradient 1, decay 0.5, c 1: the ratio is 1 * 2 / (1 + 0.5 * 2) = 1."""
    ours, theirs = matrix(2.0), matrix(2.0)
    lars = Lars([ours], lr=0.1, momentum=0.9, weight_decay=0.5, trust_coefficient=1.0, eps=0.0)
    sgd = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.5)
    assert take(lars, [1.0]) == [pytest.approx(take(sgd, [1.0])[0], rel=1e-15)]


def test_without_its_ratio_lamb_is_adamw_without_decay():
    ours, theirs = Flat(), Flat()
    lamb = Lamb(ours.parameters(), lr=0.01, eps=1e-8, weight_decay=0.1)
    adamw = torch.optim.AdamW(theirs.parameters(), lr=0.01, eps=1e-8, weight_decay=0.0)
    assert torch.allclose(train(ours, lamb, 20), train(theirs, adamw, 20), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_a_step_scales_with_its_layer(kind):
    """What the papers are about: the gradient's size does not matter, the weights' size does."""
    moved = []
    for size, slope in [(1.0, 1.0), (1.0, 1000.0), (10.0, 1.0)]:
        layer = matrix(3.0 * size, 4.0 * size)
        take(kind([layer], lr=0.1, eps=0.0), [0.6 * slope, 0.8 * slope])
        moved.append(float((layer - torch.tensor([[3.0, 4.0]]) * size).detach().norm()) / size)
    assert moved == pytest.approx([moved[0]] * 3, rel=1e-12)
    assert moved[0] > 0


@pytest.mark.parametrize(
    "make", [lambda p: Lars(p, lr=5.0, momentum=0.9, weight_decay=0.01), lambda p: Lamb(p, weight_decay=0.01)]
)
def test_state_goes_through_a_file_and_training_goes_on_as_if_nothing_happened(make):
    whole = model()
    expected = train(whole, make(whole.parameters()), 8)
    network = model()
    first = make(network.parameters())
    train(network, first, 5)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make(network.parameters())
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(train(network, second, 3, start=5), expected)


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_a_group_has_options_of_its_own(kind):
    """The first group goes without exclusion: its bias is adapted and decays."""
    free, excluded, frozen = vector(3.0, 4.0), vector(3.0, 4.0), matrix(1.0)
    optimizer = kind(
        [{"params": [free], "exclude_1d": False}, {"params": [excluded, frozen], "lr": 0.5}],
        lr=0.1,
        weight_decay=0.1,
    )
    free.grad, excluded.grad = torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    optimizer.step()
    assert frozen.tolist() == [[1.0]], "no gradient, no step"
    assert excluded.tolist() == pytest.approx([2.5, 3.5], rel=1e-5)
    like = matrix(3.0, 4.0)
    assert free.tolist() == pytest.approx(
        take(kind([like], lr=0.1, weight_decay=0.1), [1.0, 1.0])[0], rel=1e-12
    )


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_a_closure_is_called_once_with_gradients_and_before_the_step(kind):
    layer, calls = matrix(3.0, 4.0), []

    def closure():
        calls.append(layer.detach().clone())
        layer.grad = None
        loss = layer.square().sum()
        loss.backward()
        return loss.item()

    assert kind([layer]).step(closure) == 25.0
    assert [call.tolist() for call in calls] == [[[3.0, 4.0]]]
    assert layer.tolist() != [[3.0, 4.0]]


def test_only_options_of_the_groups_count_when_an_engine_wraps_the_optimizer():
    """Horovod makes a new object of a subclass from the parameter groups alone."""
    layer = matrix(3.0, 4.0)
    first = Lars([layer], lr=3.0, momentum=0.9, weight_decay=0.1, trust_coefficient=0.02, exclude_1d=False)
    wrapped = type("Lars", (Lars,), {})(copy.copy(first.param_groups))
    assert wrapped.state_dict() == first.state_dict()


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = Lamb(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TrainingError, match="Lamb does not take sparse gradients"):
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (Lars, {"lr": -1.0}, "Lars: lr is -1.0"),
        (Lars, {"lr": math.nan}, "Lars: lr is nan"),
        (Lars, {"momentum": 1.0}, "Lars: momentum is 1.0; legal: 0 to below 1"),
        (Lars, {"trust_coefficient": -0.1}, "trust_coefficient is -0.1"),
        (Lamb, {"betas": (0.9, 1.0)}, r"betas\[1\] is 1.0"),
        (Lamb, {"weight_decay": math.inf}, "Lamb: weight_decay is inf"),
    ],
)
def test_values_out_of_range(kind, options, said):
    with pytest.raises(InputError, match=said):
        kind([matrix(1.0)], **options)
