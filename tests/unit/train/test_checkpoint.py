"""A checkpoint is whole or is none."""

import hashlib
import json

import numpy
import pytest
import torch
from safetensors.torch import load_file

from hvdtrain.train.checkpoint import Snapshot, load_checkpoint, save_checkpoint
from hvdtrain.train.plain import UnreadableError


def test_what_is_saved_comes_back(tmp_path):
    state = {"model": {"w": torch.arange(3.0)}, "optimizer": {"state": {}, "groups": [1]}, "step": 7}
    folder = save_checkpoint(tmp_path, 7, state)
    assert folder.name == "step-7"
    loaded = load_checkpoint(folder)
    assert torch.equal(loaded["model"]["w"], state["model"]["w"])
    assert (loaded["optimizer"], loaded["step"]) == (state["optimizer"], 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-7"]
    assert (tmp_path / "latest").read_text() == "step-7\n"


def test_a_damaged_file_is_noticed(tmp_path):
    folder = save_checkpoint(tmp_path, 1, {"step": 1})
    data = (folder / "state.pt").read_bytes()
    (folder / "state.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"state.pt has \d+ bytes, its manifest says"):
        load_checkpoint(folder)


def test_a_missing_manifest_is_no_checkpoint(tmp_path):
    folder = save_checkpoint(tmp_path, 1, {"step": 1})
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match="no manifest"):
        load_checkpoint(folder)


def test_a_failed_save_leaves_the_old_one(tmp_path):
    save_checkpoint(tmp_path, 1, {"step": 1})
    with pytest.raises(UnreadableError, match=r"the state holds more than tensors.*: step is a function"):
        save_checkpoint(tmp_path, 1, {"step": lambda: None})
    assert load_checkpoint(tmp_path / "step-1")["step"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-1"]


def test_a_file_that_wants_code_is_not_run(tmp_path):
    folder = save_checkpoint(tmp_path, 1, {"step": 1})
    torch.save({"step": print}, folder / "state.pt")
    manifest = json.loads((folder / "manifest.json").read_text())
    data = (folder / "state.pt").read_bytes()
    manifest["files"]["state.pt"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UnreadableError) as raised:
        load_checkpoint(folder)
    told = f"{folder}/state.pt: holds more than tensors and plain values: it wants print"
    assert str(raised.value) == told


def test_other_tools_read_the_model(tmp_path):
    weight = torch.arange(4.0)
    model = {
        "w": weight,
        "tied": weight,
        "count": torch.tensor(3),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }
    folder = save_checkpoint(tmp_path, 1, {"model": model})
    read = load_file(folder / "model.safetensors")
    assert read.keys() == model.keys()
    assert torch.equal(read["tied"], weight)
    assert (folder / "model.safetensors").stat().st_mode == (folder / "state.pt").stat().st_mode


def test_a_snapshot_is_a_copy_in_the_same_memory(tmp_path):
    weight, snapshot = torch.zeros(3), Snapshot()
    state = {"model": {"w": weight}, "optimizer": {"state": {0: (weight, 5)}, "lr": 0.1}}
    first = snapshot.take(state)
    weight.add_(1)
    assert first["model"]["w"].tolist() == [0, 0, 0]
    assert first["optimizer"] == {"state": {0: (first["optimizer"]["state"][0][0], 5)}, "lr": 0.1}
    second = snapshot.take(state)
    assert second["model"]["w"].tolist() == [1, 1, 1]
    assert second["model"]["w"].data_ptr() == first["model"]["w"].data_ptr()


def test_numbers_of_numpy_come_back_as_pythons(tmp_path):
    given = {
        "lr": numpy.float64(0.5),
        numpy.int64(3): [numpy.array(2), numpy.bool_(True)],
        "pair": (numpy.float32(1),),
    }
    state = load_checkpoint(save_checkpoint(tmp_path, 1, Snapshot().take({"optimizer": given})))
    assert state["optimizer"] == {"lr": 0.5, 3: [2, True], "pair": (1.0,)}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"groups": [{"lr": numpy.arange(2)}]}, r"optimizer\.groups\[0\]\.lr is a numpy\.ndarray"),
        ({"lr": numpy.float64(1)}, r"optimizer\.lr is a numpy\.float64"),
        ({"state": {3: range(2)}}, r"optimizer\.state\[3\] is a range"),
        ({range(2): 1}, r"a key of \.?optimizer is a range"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path, value, told):
    with pytest.raises(UnreadableError, match=told):
        save_checkpoint(tmp_path, 1, {"optimizer": value})
    assert list(tmp_path.iterdir()) == []
