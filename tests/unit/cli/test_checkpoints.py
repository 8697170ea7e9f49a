"""``hvdtrain checkpoints``: what it removes and copies, and what it says where it cannot."""

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
    (tmp_path / "model").mkdir()
    with pytest.raises(InputError, match=f"^{tmp_path}/model: cannot be written: Is a directory"):
        invoke(run, "--export", tmp_path / "model")
    with pytest.raises(InputError, match=f"^{tmp_path}/none/model: cannot be written: No such file"):
        invoke(run, "--export", tmp_path / "none" / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "run"]


def test_a_model_that_cannot_be_read_is_named(run, tmp_path):
    """The manifest of one that an older writer made may name no model."""
    folder = run / "checkpoints"
    (folder / ".step-4.1").mkdir()
    (folder / ".step-4.1" / "state.pt").write_bytes(b"state")
    commit(folder / ".step-4.1", folder / "step-4", {"step": 4})
    with pytest.raises(InputError, match=r"step-4/model.safetensors: cannot be read: No such file"):
        invoke(run, "--export", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
