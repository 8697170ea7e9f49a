"""``hvdtrain checkpoints``: what it removes and copies, and what it says where it cannot."""

import json
import os

import pytest

from hvdtrain.cli.checkpoints import command
from hvdtrain.errors import InputError
from hvdtrain.train import locking
from hvdtrain.train.locking import unlock
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.store import commit


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    for step in (1, 2, 3):
        beside = folder / f".step-{step}.1"
        beside.mkdir(parents=True)
        (beside / "state.pt").write_bytes(b"state")
        (beside / "model.safetensors").write_bytes(b"model %d" % step)
        commit(beside, folder / f"step-{step}", {"step": step})
    return tmp_path / "run"


def invoke(*words):
    return command.main(list(map(str, words)), standalone_mode=False)


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())


def test_pruning_counts_what_is_whole_to_the_last_byte(run, capsys):
    (run / "checkpoints" / "step-3" / "state.pt").write_bytes(b"STATE")
    (run / "checkpoints" / ".step-0.pruned").mkdir()
    assert invoke(run, "--prune", "1") == 0
    assert names(run) == ["step-2", "step-3"]
    assert capsys.readouterr().out.startswith("removed step-1\nremoved .step-0.pruned\n")


def test_pruning_leaves_a_run_alone_whose_ranks_still_write(run, monkeypatch):
    monkeypatch.setattr(locking, "_RANKS_END_S", 0.2)
    rank = RunDirectory(run)
    rank.begin_writing()
    with pytest.raises(InputError, match="still write"):
        invoke(run, "--prune", "1")
    assert names(run) == ["step-1", "step-2", "step-3"]
    unlock(rank.writer)
    assert invoke(run, "--prune", "1") == 0
    assert names(run) == ["step-3"]


def test_the_newest_model_is_copied(run, tmp_path):
    assert invoke(run, "--export", tmp_path / "model") == 0
    assert (tmp_path / "model").read_bytes() == b"model 3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "run"]


def test_a_target_that_cannot_be_written_is_named(run, tmp_path):
    with pytest.raises(InputError, match=f"^--export: there is no folder {tmp_path}/none"):
        invoke(run, "--export", tmp_path / "none" / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("pipe", "is no regular file; name another"),
        ("folder", "is a folder"),
        ("link", "is no regular file"),
        (
            "photos.yaml",
            "is there already, and no safetensors file; legal: a new file, or an older safetensors",
        ),
        ("run/checkpoints/step-1/model.safetensors", "is the input itself"),
    ],
)
def test_what_is_no_model_is_not_replaced(run, tmp_path, kind, told):
    (tmp_path / "photos.yaml").write_text("name: photos\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    target = tmp_path / kind
    before = target.lstat()
    with pytest.raises(InputError, match=f"^--export: {target} {told}"):
        invoke(run, "--prune", "1", "--export", target)
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert names(run) == ["step-1", "step-2", "step-3"]


def test_what_is_exported_where_is_told(run, tmp_path, capsys):
    target = tmp_path / "model.safetensors"
    target.write_bytes((2).to_bytes(8, "little") + b"{}old")
    assert invoke(run, "--export", target) == 0
    told = capsys.readouterr()
    assert told.out.endswith(f"exported step-3 to {target}\n")
    assert told.err == ""
    (run / "checkpoints" / "step-3" / "state.pt").write_bytes(b"STATE")
    assert invoke(run, "--export", tmp_path / "model.pt", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["exported"] == {"path": str(tmp_path / "model.pt"), "step": 2}
    assert (tmp_path / "model.pt").read_bytes() == b"model 2"
    assert "note: the format is safetensors, which the name model.pt does not tell\n" in told.err
    assert "note: step-3 is damaged and passed over: " in told.err


def test_a_model_that_cannot_be_read_is_named(run, tmp_path):
    """The manifest of one that an older writer made may name no model."""
    folder = run / "checkpoints"
    (folder / ".step-4.1").mkdir()
    (folder / ".step-4.1" / "state.pt").write_bytes(b"state")
    commit(folder / ".step-4.1", folder / "step-4", {"step": 4})
    with pytest.raises(InputError, match=r"step-4/model.safetensors: cannot be read: No such file"):
        invoke(run, "--export", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_whole_is_said_of_what_was_read(run, capsys):
    damaged = run / "checkpoints" / "step-2" / "state.pt"
    damaged.write_bytes(b"STATE")
    assert invoke(run) == 0
    assert "whole" not in capsys.readouterr().out
    assert invoke(run, "--verify") == 3
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[3] for line in lines] == ["whole", "DAMAGED:", "whole"]
    assert invoke(run, "--verify", "--json") == 3
    found = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [one["whole"] for one in found] == [True, False, True]
    assert invoke(run, "--json") == 0
    found = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [one["whole"] for one in found] == [None, None, None]
