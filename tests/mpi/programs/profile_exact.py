"""A profiled training beside a plain one, and a noise scale that is known: ``profile_exact.py BACKEND``."""

import os
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from hvdtrain.backends.base import Reduction
from hvdtrain.backends.start import start_backend
from hvdtrain.data.batch import Batch
from hvdtrain.measure.noise_scale import NoiseRecord
from hvdtrain.measure.profile_pace import Pace, rows_for
from hvdtrain.measure.profile_run import Outlet, RunProfile
from hvdtrain.topology.environ import find_world
from hvdtrain.train.evaluation import Evaluation
from hvdtrain.train.observe import Length
from hvdtrain.train.parts import Parts
from hvdtrain.train.profiling import RunningProfile, record_steps
from hvdtrain.train.stall import Unwatched
from hvdtrain.train.step import Share, Stepper, StepRules
from hvdtrain.train.trainer import Trainer

backend = start_backend(sys.argv[1], find_world(os.environ))
rank, size = backend.rank, backend.size
STEPS = 70


def batches(per_rank, passes):
    torch.manual_seed(1 + rank)
    made = []
    for number in range(STEPS * passes):
        inputs, targets = torch.randn(per_rank, 8), torch.randint(3, (per_rank,))
        total = per_rank * size * passes
        made.append(
            Batch(inputs, targets, per_rank, total, number, number=number % passes, num_passes=passes)
        )
    return made


def train(name, passes, profiled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    stepper = Stepper(backend, backend.distribute(model, optimizer, Reduction(prefix=name)), StepRules(1.0))
    parts = Parts(
        backend=backend,
        stepper=stepper,
        train=None,
        validation=None,
        rate=lambda _step: 0.01,
        length=Length(1, 1 << 60, 1 << 60),
        metrics_every_steps=25,
        sample=torch.zeros(8),
        may_skip=False,
        precision="fp32",
        evaluation=Evaluation(()),
        observer=None,
    )
    tables, figures = [], []
    if profiled:
        recorder = record_steps(stepper, backend, rows_for(size), 5)
        recorder.listener = Unwatched()
        recorder.norms.batch = 4.0 * size * passes
        outlet = Outlet(
            lambda table, _: tables.append(table), lambda _: None, lambda *pair: figures.append(pair)
        )
        hosts = tuple("h" for _ in range(size))
        book = RunProfile(hosts, NoiseRecord(4 * passes, 4 * size * passes), outlet)
        profile = RunningProfile(recorder, Pace(backend, recorder, book.hear), book)
        parts = replace(parts, progress=recorder, recorder=profile, profile=profile)
    Trainer(parts).run_steps(batches(4, passes), 0)
    if profiled:
        parts.profile.finish()
    return model, tables, figures


def check_parameters(passes):
    """Bit for bit, though steps were sampled, hooks came and went and the ranks told their pace."""
    plain, _, _ = train(f"plain{passes}.", passes, profiled=False)
    measured, tables, figures = train(f"profiled{passes}.", passes, profiled=True)
    for a, b in zip(plain.parameters(), measured.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not b._post_accumulate_grad_hooks or sys.argv[1] == "ddp"
    if rank == 0:
        (table,) = tables
        # Up to 20 steps in the first sum and in the last one; one of five is sampled.
        assert table.shape[1:] == (size, 7)
        assert len(table) > 25
        assert (table >= 0).all()
        assert all(value > 0 for name, value in figures if name == "noise_scale")
        assert all(value >= 0 for name, value in figures if name != "noise_scale")


def check_noise_scale():
    """Samples whose gradients have mean m, |m|^2 = 1, and covariance s^2 I of trace 16."""
    dimension, trace, per_rank, steps = 400, 16.0, 4, 160
    draw = torch.Generator().manual_seed(7 + rank)
    model = nn.Linear(dimension, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    replica = backend.distribute(model, optimizer, Reduction(prefix="noise."))
    stepper = Stepper(backend, replica, StepRules(), "noise.")
    recorder = record_steps(stepper, backend, rows_for(size), 1)
    recorder.norms.batch = float(per_rank * size)
    record = NoiseRecord(per_rank, per_rank * size)

    def hear(told):
        for norms in told.norms:
            record.add(norms)

    pace = Pace(backend, recorder, hear)
    share = Share(per_rank, float(per_rank * size))
    recorder.enter("loading")
    for step in range(steps):
        spread = (trace / dimension) ** 0.5
        samples = dimension**-0.5 + spread * torch.randn(per_rank, dimension, generator=draw)
        recorder.enter("forward")
        stepper.begin(share)
        # The gradient of a linear model's mean output is the mean of its inputs.
        loss = replica.model(samples).mean()
        recorder.weigh(per_rank, float(per_rank * size))
        recorder.enter("reduction" if replica.needs_backward else "backward")
        stepper.backward(loss, share)
        recorder.enter("reduction")
        stepper.end()
        pace.stepped()
        recorder.enter("agreement")
        recorder.tick(step)
    pace.finish()
    recorder.close()
    if rank == 0:
        estimate = record.estimate()
        assert estimate.simple == pytest.approx(trace, rel=0.15), estimate
        assert estimate.num_steps >= 80


if size == 2:  # of three summands rounding depends on how a fused buffer is cut
    check_parameters(1)
    check_parameters(2)
check_noise_scale()
backend.close()
print(f"rank {rank} of {size} ok", flush=True)
