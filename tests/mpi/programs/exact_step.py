"""The exact step on real ranks, each value worked out by hand; the engine's name is the argument.

A scalar parameter p with loss g * p has gradient g.
"""

import math
import os
import sys

import pytest
import torch
from torch import nn

from hvdtrain.backends.base import Reduction
from hvdtrain.backends.start import start_backend
from hvdtrain.errors import InputError, TrainingError
from hvdtrain.topology.environ import find_world
from hvdtrain.train.step import Share, Stepper, StepRules
from hvdtrain.train.sync_batchnorm import Aside, synchronise_batchnorm

backend = start_backend(sys.argv[1], find_world(os.environ))
rank, size = backend.rank, backend.size
made = 0


class Weights(nn.Module):
    """Parameters that a loss is linear in."""

    def __init__(self, **values):
        super().__init__()
        for name, value in values.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(value)))

    def forward(self, factors):
        return sum((getattr(self, name) * factor).sum() for name, factor in factors.items())


def stepper(model, optimizer=None, reduction=None, **rules):
    global made
    made += 1
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
    reduction = reduction or Reduction()
    reduction = Reduction(reduction.compression, reduction.kind, reduction.some_unused, f"{made}.")
    return Stepper(backend, backend.distribute(model, optimizer, reduction), StepRules(**rules), f"{made}.")


def take(taker, passes, total):
    """One step of (factors, weight) passes."""
    for number, (factors, weight) in enumerate(passes):
        share = Share(weight, total, number, len(passes))
        taker.begin(share)
        taker.backward(taker.replica.model({k: torch.tensor(v) for k, v in factors.items()}), share)
    return taker.end()


def gradient(taker, name="p"):
    return getattr(taker.replica.module, name).grad


def close(found, wanted):
    assert torch.allclose(torch.as_tensor(found), torch.as_tensor(wanted), rtol=1e-5, atol=1e-6), (
        found,
        wanted,
    )


def check_accumulation():
    # Case E1: rank 0 has 1, 3 and rank 1 has 5, 7: the mean of all four is 4.
    values = [[1.0 + 4 * r + 2 * k for k in range(2)] for r in range(size)]
    mean = sum(map(sum, values)) / (2 * size)
    for total in (2.0 * size, None):
        taker = stepper(Weights(p=0.0))
        take(taker, [({"p": value}, 1) for value in values[rank]], total)
        close(gradient(taker), mean)
        close(taker.replica.module.p.detach(), -mean)
        # A short last window of one pass.
        take(taker, [({"p": values[rank][0]}, 1)], None if total is None else float(size))
        close(gradient(taker), sum(row[0] for row in values) / size)
        take(taker, [({"p": value}, 1) for value in values[rank]], total)
        close(gradient(taker), mean)


def check_weights():
    # Case E3: 5 tokens of gradient 1 and 1 token of gradient 7 on two ranks give 2.
    weights = [5, 1, 0, 2, 4][:size]
    values = [1.0, 7.0, 100.0, 3.0, 2.0][:size]
    wanted = sum(w * g for w, g in zip(weights, values, strict=True)) / sum(weights)
    if size == 2:
        assert wanted == 2.0
    for total in (float(sum(weights)), None):
        taker = stepper(Weights(p=0.0))
        take(taker, [({"p": values[rank]}, weights[rank])], total)
        close(gradient(taker), wanted)
    # Unknown totals that differ between the passes of a step.
    taker = stepper(Weights(p=0.0))
    second = 1 + rank
    end = take(taker, [({"p": values[rank]}, weights[rank]), ({"p": 10.0}, second)], None)
    many = size * (size + 1) / 2
    close(gradient(taker), (wanted * sum(weights) + 10.0 * many) / (sum(weights) + many))
    assert end.total == sum(weights) + many


def check_nothing_at_all():
    taker = stepper(Weights(p=3.0))
    end = take(taker, [({"p": 5.0}, 0)], None)
    assert end.skipped
    assert end.total == 0
    assert taker.replica.module.p.item() == 3.0


def check_clipping():
    # Case E4: reduce, then clip. (6, 8) and (-6, 8) give (0, 8), clipped to (0, 1).
    sign = 1.0 if rank % 2 == 0 else -1.0
    across = sum(1 if r % 2 == 0 else -1 for r in range(size)) * 6.0 / size
    norm = math.hypot(across, 8.0)
    taker = stepper(Weights(p=[0.0, 0.0]), clip_norm=1.0)
    end = take(taker, [({"p": [6.0 * sign, 8.0]}, 1)], float(size))
    close(end.norm, norm)
    close(gradient(taker), [across / norm, 8.0 / norm])
    taker = stepper(Weights(p=0.0), clip_norm=1.0)
    end = take(taker, [({"p": 0.8}, 1)], float(size))
    close(end.norm, 0.8)
    close(gradient(taker), 0.8)
    taker = stepper(Weights(p=[0.0, 0.0]), clip_value=0.5)
    take(taker, [({"p": [3.0, -0.25]}, 1)], float(size))
    close(gradient(taker), [0.5, -0.25])


def check_no_number():
    # Case E7: the last rank's loss is NaN in the second step.
    taker = stepper(Weights(p=1.0), on_nan="skip")
    bad = size - 1
    for number in range(4):
        is_bad = number == 1 and rank == bad
        end = take(taker, [({"p": math.nan if is_bad else 1.0}, 1)], float(size))
        if number == 1:
            assert f"rank {bad}" in end.skipped, end
    assert taker.num_skipped == 1
    close(taker.replica.module.p.detach(), 1.0 - 3.0)
    # A finite loss whose gradient is none: 0 * sqrt'(0).
    share = Share(1, float(size))
    taker.begin(share)
    loss = taker.replica.model({"p": torch.tensor(1.0)})
    taker.backward((loss - loss.detach()).abs().sqrt().sum(), share)
    assert "nan" in taker.end().skipped or "inf" in taker.end().skipped
    close(taker.replica.module.p.detach(), -2.0)
    taker = stepper(Weights(p=1.0))
    with pytest.raises(TrainingError, match=f"rank {bad}"):
        take(taker, [({"p": math.inf if rank == bad else 1.0}, 1)], float(size))


def check_branches():
    # Case E8 b: rank 0 uses branch a, the others b, with gradient 2 each.
    model = Weights(a=0.0, b=0.0, frozen=7.0)
    model.frozen.requires_grad_(False)
    optimizer = torch.optim.SGD([model.a, model.b], lr=1.0, momentum=0.9)
    taker = stepper(model, optimizer, Reduction(some_unused=True))
    take(taker, [({"a" if rank == 0 else "b": 2.0}, 1)], float(size))
    close(gradient(taker, "a"), 2.0 / size)
    close(gradient(taker, "b"), 2.0 * (size - 1) / size)
    assert model.frozen.item() == 7.0


def check_sparse():
    for last_rank_uses_it in (True, False):
        torch.manual_seed(0)
        table = nn.Embedding(10, 2, sparse=True)
        model = nn.ModuleDict({"table": table, "scale": Weights(p=1.0)})
        model.forward = lambda rows, model=model: model["scale"](
            {"p": model["table"](rows).sum() if rows is not None else torch.tensor(1.0)}
        )
        taker = stepper(model, torch.optim.SGD(model.parameters(), lr=1.0), Reduction(some_unused=True))
        share = Share(1, float(size))
        is_used = rank < size - 1 or last_rank_uses_it
        before = table.weight.detach().clone()
        taker.begin(share)
        taker.backward(taker.replica.model(torch.tensor([rank, rank, 9]) if is_used else None), share)
        taker.end()
        wanted = torch.zeros(10, 2)
        for other in range(size if last_rank_uses_it else size - 1):
            wanted[other] += 2.0 / size
            wanted[9] += 1.0 / size
        close(before - table.weight.detach(), wanted)


def check_batchnorm():
    # Case E12: one sample on each rank, 1 and 3 on two ranks: mean 2, biased variance 1.
    values = torch.tensor([[1.0 + 2 * r] for r in range(size)] + [[20.0]])
    weights = torch.tensor([[1.0 + r] for r in range(size)] + [[3.0]])
    whole = nn.BatchNorm1d(1)
    reference = whole(values)
    ((reference**2 * weights).sum() / (size + 1)).backward()
    own_rows = [rank, size] if rank == 0 else [rank]  # rank 0 holds two samples
    taker = stepper(synchronise_batchnorm(nn.Sequential(nn.BatchNorm1d(1)), backend))
    share = Share(len(own_rows), size + 1.0)
    taker.begin(share)
    outputs = taker.replica.model(values[own_rows])
    close(outputs, reference[own_rows])
    taker.backward((outputs**2 * weights[own_rows]).mean(), share)
    taker.end()
    layer = taker.replica.module[0]
    close(layer.weight.grad, whole.weight.grad)
    close(layer.bias.grad, whole.bias.grad)
    close(layer.running_mean, whole.running_mean)
    close(layer.running_var, whole.running_var)
    # The last rank holds nothing, the others go on as if it were not there.
    if size > 1:
        share = Share(float(rank < size - 1), size - 1.0)
        taker.begin(share)
        aside = Aside()
        if rank == size - 1:
            aside.add(taker.replica.model)
        outputs = taker.replica.model(values[[rank]])
        aside.end()
        taker.backward(outputs.sum(), share)
        taker.end()
        statistics = backend.gather((layer.running_mean.item(), layer.running_var.item()))
        assert len(set(statistics)) == 1
        kept = 0.9 * whole.running_mean.item() + 0.1 * values[: size - 1].mean().item()
        # A single value has no unbiased variance, and is left out of the running statistics.
        close(layer.running_mean, [kept] if size > 2 else whole.running_mean)


def check_a_loss_over_nothing():
    """0/0 over no tokens on the last rank: it adds nothing, and is no reason to stop."""
    taker = stepper(Weights(p=1.0))
    is_empty = size > 1 and rank == size - 1
    share = Share(0 if is_empty else 2, None)
    taker.begin(share)
    loss = taker.replica.model({"p": torch.tensor(3.0)})
    taker.backward(loss * float("nan") if is_empty else loss.reshape(1), share)
    end = taker.end()
    assert not end.skipped
    close(gradient(taker), 3.0)


def check_left_windows():
    """A step that was left after its first pass leaves nothing behind."""
    taker = stepper(Weights(p=0.0))
    share = Share(1, 2.0 * size, 0, 2)
    taker.begin(share)
    taker.backward(taker.replica.model({"p": torch.tensor(100.0)}), share)
    take(taker, [({"p": 1.0}, 1), ({"p": 3.0}, 1)], 2.0 * size)
    close(gradient(taker), 2.0)


def check_statistics_of_a_step_left_out():
    torch.manual_seed(0)
    taker = stepper(nn.Sequential(nn.BatchNorm1d(1)), on_nan="skip")
    share = Share(2, 2.0 * size)
    taker.begin(share)
    bad = rank == size - 1
    outputs = taker.replica.model(torch.tensor([[1.0], [math.nan if bad else 2.0]]))
    taker.backward(outputs.sum(), share)
    assert taker.end().skipped
    layer = taker.replica.module[0]
    close(layer.running_mean, [0.0])
    assert layer.num_batches_tracked == 0


def check_frozen_later():
    model = Weights(a=0.0, b=0.0)
    model.b.requires_grad_(False)
    taker = stepper(model)
    model.b.requires_grad_(True)
    with pytest.raises(InputError, match="trains 2 parameters"):
        taker.begin(Share(1, float(size)))


def check_modes_of_samples_that_do_not_count():
    model = nn.Sequential(nn.BatchNorm1d(1), nn.BatchNorm1d(1))
    model.train()
    model[1].eval()  # frozen by the user
    aside = Aside()
    aside.add(model)
    seen = []
    model[0].register_forward_pre_hook(lambda layer, _: seen.append(layer.training))
    before = model[0].running_mean.clone()
    model(torch.tensor([[5.0], [7.0]]))
    assert seen == [False]
    assert [part.training for part in model.modules()] == [True, True, False]
    close(model[0].running_mean, before)
    aside.end()
    model(torch.tensor([[5.0], [7.0]]))
    assert seen == [False, True]


def check_optimizer_state_of_rank_0_alone():
    # Case E10: what rank 0 has, all have; what only another rank found is gone.
    for holds in (0, size - 1):
        model = Weights(p=[1.0, 1.0])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if rank == holds:
            model({"p": torch.tensor([1.0, 2.0])}).backward()
            optimizer.step()
            optimizer.zero_grad()
        taker = stepper(model, optimizer)
        take(taker, [({"p": [1.0, 1.0]}, 1)], float(size))
        values = backend.gather(taker.replica.module.p.tolist())
        assert all(value == values[0] for value in values), values
        steps = backend.gather(float(taker.replica.optimizer.state[model.p]["step"]))
        assert steps == [2.0 if holds == 0 else 1.0] * size


def check_models_that_differ():
    # Case E15: other order, shape or count.
    if size == 1:
        return
    for build, told in (
        (lambda: Weights(a=0.0, b=0.0) if rank == 0 else Weights(b=0.0, a=0.0), "'a'"),
        (lambda: Weights(a=[0.0] * (1 + min(rank, 1))), r"shape \(2,\)"),
        (lambda: Weights(a=0.0) if rank == 0 else Weights(a=0.0, extra=0.0), "'extra'"),
    ):
        with pytest.raises(InputError, match=f"rank 1.*{told}"):
            stepper(build())


def check_refusals():
    model = Weights(p=0.0)
    with pytest.raises(InputError, match="LBFGS"):
        stepper(model, torch.optim.LBFGS(model.parameters()))
    if backend.name != "single":
        with pytest.raises(InputError, match="bf16"):
            stepper(model, reduction=Reduction("bf16"))
    if backend.name == "ddp" or (backend.name == "horovod" and size & (size - 1)):
        with pytest.raises(InputError, match="dasum"):
            stepper(model, reduction=Reduction(kind="adasum"))


def check_mixed_precision():
    # An overflow on one rank leaves the step out on all and halves the scale on all.
    taker = stepper(Weights(p=1.0), precision="fp16", clip_norm=100.0)
    first = taker.scaler.get_scale()
    huge = 1e38 if rank == size - 1 else 1.0
    end = take(taker, [({"p": huge}, 1)], float(size))
    assert "overflow" in end.skipped, end
    assert taker.replica.module.p.item() == 1.0
    assert taker.scaler.get_scale() == first / 2
    end = take(taker, [({"p": 3.0}, 1)], float(size))
    assert not end.skipped
    close(end.norm, 3.0)  # unscaled
    close(taker.replica.module.p.detach(), -2.0)
    assert set(backend.gather(taker.scaler.get_scale())) == {first / 2}


def check_compression():
    taker = stepper(Weights(p=0.0), reduction=Reduction("fp16"))
    take(taker, [({"p": 1.0 + rank}, 1)], float(size))
    assert abs(gradient(taker).item() - (size + 1) / 2) < 0.05


def check_zero_grad():
    taker = stepper(Weights(p=0.0))
    for to_none in (True, False):
        take(taker, [({"p": 2.0}, 1)], float(size))
        taker.replica.optimizer.zero_grad(set_to_none=to_none)
        assert (gradient(taker) is None) is to_none


def check_adasum():
    if backend.name != "horovod" or size & (size - 1) or sys.argv[2:] != ["mpirun"]:
        return
    # Adasum of equal steps is that step (Maleki et al. 2020, arXiv:2006.02924).
    taker = stepper(Weights(p=[0.0, 0.0]), reduction=Reduction(kind="adasum"))
    take(taker, [({"p": [1.0, 2.0]}, 1)], float(size))
    close(taker.replica.module.p.detach(), [-1.0, -2.0])
    # A short step: rank 0 holds two samples, the others one. Each rank's own mean is what is combined.
    taker = stepper(Weights(p=[0.0, 0.0]), reduction=Reduction(kind="adasum"))
    take(taker, [({"p": [1.0, 2.0]}, 2 if rank == 0 else 1)], size + 1.0)
    close(taker.replica.module.p.detach(), [-1.0, -2.0])
    take(taker, [({"p": [1.0, 2.0]}, 1)] * 2, 2.0 * size)
    close(taker.replica.module.p.detach(), [-2.0, -4.0])
    with pytest.raises(TrainingError, match=r"ranks? 0"):
        take(taker, [({"p": [math.nan, 2.0]}, 1)], float(size))


def check_two_models():
    """A generator's loss goes through the discriminator without a trace in it."""
    first, second = stepper(Weights(g=1.0)), stepper(Weights(d=2.0))
    share = Share(1, float(size))
    for _ in range(2):
        first.begin(share), second.begin(share)
        made_up = first.replica.model({"g": torch.tensor(1.0)})
        second.backward(second.replica.model({"d": made_up.detach()}), share, alone=False)
        second.end()
        first.begin(share), second.begin(share)
        loss = second.replica.model({"d": first.replica.model({"g": torch.tensor(1.0 + rank)})})
        before = gradient(second, "d").clone()
        first.backward(loss, share, alone=False)
        close(gradient(second, "d"), before)
        d = second.replica.module.d.item()
        first.end()
        close(gradient(first, "g"), d * (size + 1) / 2)


for name, check in list(globals().items()):
    if name.startswith("check_"):
        check()
        torch.manual_seed(0)
backend.close()
sys.stdout.write(f"rank {rank} of {size} ok\n")
