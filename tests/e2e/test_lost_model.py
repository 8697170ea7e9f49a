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
