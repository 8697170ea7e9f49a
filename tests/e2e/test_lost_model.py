"""A gradient that is no finite number, though the loss is one, leaves no checkpoint of the spoilt model."""

JOB = """
model: 'sick:model'
data: digits
batch: {global: 60}
steps: 6
checkpoint: {every_steps: 3, on_failure: continue}
output: {tensorboard: false}
"""
MODEL = """
import torch
from torch import nn

class Sick(torch.autograd.Function):
    num_backward = 0

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        Sick.num_backward += len(gradient) == 30  # not of the one sample that the model is tried with
        return gradient * float("nan") if Sick.num_backward == 6 else gradient

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(64, 8), nn.Linear(8, 10)
        self.register_buffer("largest", torch.tensor(float("inf")))

    def forward(self, images):
        return self.head(Sick.apply(self.first(images.flatten(1))))

def model():
    return Model()
"""


def test_the_last_step_spoils_the_model(tmp_path, hvdtrain):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "sick.py").write_text(MODEL)
    ended = hvdtrain("train", "job.yaml", "-np", 2, "--slots", 2, "--run-dir", "run")
    assert ended.code == 1, ended.err
    told = "step 6: parameter 'first.weight' holds values that are no finite numbers, which is not saved"
    assert told in ended.error
    assert "earlier checkpoints are whole" in ended.error
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept == ["step-3"]


SLOW_DISK = """
import os
import time
import torch
from torch.utils.data import Dataset, Subset
from hvdtrain.train import keeper

save = keeper.save_checkpoint

def save_slowly(*args, **facts):
    time.sleep(6)
    return save(*args, **facts)

keeper.save_checkpoint = save_slowly

class Images(Dataset):
    num_read = 0

    def __len__(self):
        return 80

    def __getitem__(self, index):
        Images.num_read += 1
        is_bad = os.environ["OMPI_COMM_WORLD_RANK"] == "1" and Images.num_read >= 40
        return torch.full((1, 8, 8), float("nan") if is_bad else index / 80), index % 10

def data():
    return Images(), Subset(Images(), range(10))
"""


def test_a_save_in_flight_stands_before_all_ranks_end(tmp_path, hvdtrain):
    """The ranks that have nothing to write wait: the end of one is the end of all."""
    text = JOB.replace("data: digits", "data: 'slow_disk:data'").replace("global: 60", "global: 20")
    text = text.replace("'sick:model'", "{name: digits_cnn, args: {num_classes: 10, channels: 1, width: 4}}")
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "slow_disk.py").write_text(SLOW_DISK)
    ended = hvdtrain("train", "job.yaml", "-np", 2, "--slots", 2, "--run-dir", "run", "--set", "backend=ddp")
    assert ended.code == 1, ended.err
    assert "the loss is no finite number on rank 1" in ended.error
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert kept == ["step-3"]
