"""Whether a finished run is asked for more than it did."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.jobfile import load_job
from hvdtrain.train.done import result_of

RESULT = {
    "accuracy": 0.9,
    "loss": 0.1,
    "samples_per_s": 1.0,
    "steps": 12,
    "epochs": 2,
    "size": 1,
    "backend": "ddp",
}
STATUS = {"state": "done", "result": RESULT}


def job(length):
    return load_job(None, [length])


@pytest.mark.parametrize(
    ("earlier", "now", "is_more"),
    [
        ("epochs=2", "epochs=2", False),
        ("epochs=2", "epochs=1", False),
        ("epochs=2", "epochs=3", True),
        ("epochs=2", "steps=12", False),
        ("epochs=2", "steps=13", True),
        ("steps=12", "steps=5", False),
        ("steps=12", "epochs=1", False),
        ("steps=12", "epochs=2", True),
    ],
)
def test_without_a_checkpoint_only_more_is_refused(tmp_path, earlier, now, is_more):
    if is_more:
        with pytest.raises(InputError, match="done after 12 steps, and has no checkpoint to go on from"):
            result_of(tmp_path, STATUS, job(earlier), job(now))
    else:
        assert result_of(tmp_path, STATUS, job(earlier), job(now)) == {**RESULT, "run_dir": str(tmp_path)}
