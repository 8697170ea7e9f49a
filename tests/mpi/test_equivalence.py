"""N ranks train like one, with each engine: the same parameters up to the order of summation."""

import pytest
import torch

from hvdtrain.train.checkpoint import load_checkpoint

pytestmark = pytest.mark.mpi

# 1,438 training samples are 41 global batches of 35 and a last one of 3: at 5 ranks two of them
# hold no sample of it, at 2 and 3 ranks the batches differ in size. With some seeds rounding, which depends
# on the size of a rank's batch, turns a unit of the network on or off (seed 3: at 3 ranks, on either engine).
JOB = """
name: equal
model: {name: digits_cnn, args: {width: 8}}
data: digits
batch: {global: 35, uneven: split}
epochs: 1
optimizer: {name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.001}
schedule: {name: cosine, warmup_epochs: 0.2}
seed: 4
output: {tensorboard: false}
"""


@pytest.fixture
def trained(hvdtrain, tmp_path):
    """Trains the job and returns the parameters and the result."""
    (tmp_path / "job.yaml").write_text(JOB)

    def train(size, backend, *more):
        run_dir = tmp_path / f"{backend}-{size}"
        words = ["-np", size, "--slots", size, "--run-dir", run_dir, "--set", f"backend={backend}"]
        ended = hvdtrain("train", "job.yaml", *words, "--json", *more)
        assert ended.code == 0, ended.err
        (folder,) = (run_dir / "checkpoints").glob("step-*")
        return load_checkpoint(folder)["model"], ended.document

    return train


def test_all_engines_and_sizes_give_the_same_parameters(trained):
    reference, expected = trained(1, "single")
    assert (expected["steps"], expected["backend"], expected["size"]) == (42, "single", 1)
    for backend, size in [("horovod", 2), ("ddp", 2), ("horovod", 3), ("horovod", 5), ("ddp", 5)]:
        parameters, result = trained(size, backend)
        assert (result["steps"], result["backend"], result["size"]) == (42, backend, size)
        assert result["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert result["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-9)
        for name, value in reference.items():
            difference = (parameters[name] - value).abs().max()
            assert torch.allclose(parameters[name], value, rtol=1e-4, atol=1e-5), (
                backend,
                size,
                name,
                difference,
            )


PARTS = """
import torch
class Odd(torch.nn.Module):
    # One layer is frozen, one is never used, one buffer is of a type that Horovod cannot carry.
    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.Linear(64, 32)
        self.frozen.requires_grad_(False)
        self.unused = torch.nn.Linear(3, 3)
        self.norm = torch.nn.LayerNorm(32)
        self.head = torch.nn.Linear(32, 10)
        self.register_buffer("mask", torch.arange(32) % 5 != 0)
    def forward(self, images):
        return self.head(self.norm(self.frozen(images.flatten(1)) * self.mask))
"""


@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_frozen_and_unused_parameters(hvdtrain, tmp_path, backend):
    """Weight decay acts on what no step used: its gradient is zero on every engine."""
    (tmp_path / "parts.py").write_text(PARTS)
    text = JOB.replace("{name: digits_cnn, args: {width: 8}}", "'parts:Odd'")
    (tmp_path / "job.yaml").write_text(text.replace("sgd, lr: 0.05, momentum: 0.9", "adamw, lr: 0.01"))
    states = []
    for size, engine in [(1, "single"), (2, backend)]:
        words = ["-np", size, "--slots", size, "--run-dir", tmp_path / engine, "--set", f"backend={engine}"]
        ended = hvdtrain("train", "job.yaml", *words, "--set", "optimizer.weight_decay=0.1")
        assert ended.code == 0, ended.err
        (folder,) = (tmp_path / engine / "checkpoints").glob("step-*")
        states.append(load_checkpoint(folder)["model"])
    for name, value in states[0].items():
        assert torch.allclose(states[1][name].float(), value.float(), rtol=1e-3, atol=1e-4), name
    torch.manual_seed(4)
    fresh = torch.nn.Linear(64, 32).weight
    assert torch.equal(states[1]["frozen.weight"], fresh)


@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_fp16_compression_changes_little_but_something(trained, backend):
    exact, _ = trained(2, backend)
    rounded, _ = trained(2, backend, "--set", "tuning.compression=fp16", "--overwrite")
    differences = [float((exact[name] - rounded[name]).abs().max()) for name in exact]
    assert 0 < max(differences) < 0.01
