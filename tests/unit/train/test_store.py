"""Which checkpoints there are, which are whole, which may go."""

import json
import shutil

import pytest

from hvdtrain.train import store
from hvdtrain.train.store import add_metrics, commit, newest_whole, prune, remove_stale, stored_in


def make(folder, step, content=b"state", **facts):
    beside = folder / f".step-{step}.1"
    beside.mkdir(parents=True)
    (beside / "state.pt").write_bytes(content)
    commit(beside, folder / f"step-{step}", {"step": step, **facts})
    return folder / f"step-{step}"


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_newest_first_with_what_the_manifest_tells(tmp_path):
    for step in (9, 10, 100):
        make(tmp_path, step, epoch=step // 10)
    found = stored_in(tmp_path)
    assert [stored.step for stored in found] == [100, 10, 9]
    assert found[0].facts["epoch"] == 10
    assert found[0].num_bytes == 5
    assert not any(stored.fault for stored in found)


def test_a_folder_that_is_not_there_holds_none(tmp_path):
    assert stored_in(tmp_path / "none") == []
    assert newest_whole(tmp_path / "none") == (None, [])


def cut(path):
    (path / "state.pt").write_bytes(b"st")


def change(path):
    (path / "state.pt").write_bytes(b"STATE")


def lose(path):
    (path / "state.pt").unlink()


def unfinish(path):
    (path / "manifest.json").unlink()


def garble(path):
    (path / "manifest.json").write_bytes(b"\xff{")


def empty(path):
    (path / "manifest.json").write_text("{}")


def a_list(path):
    (path / "manifest.json").write_text("[]")


def swap(path):
    other = make(path.parent, 1, b"other")
    shutil.copy(other / "manifest.json", path / "manifest.json")
    shutil.copy(other / "state.pt", path / "state.pt")
    shutil.rmtree(other)


def reach_out(path):
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../../secret"] = {"bytes": 1, "sha256": ""}
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut, "state.pt has 2 bytes, its manifest says 5"),
        (change, "the checksum of state.pt"),
        (lose, "state.pt is missing"),
        (unfinish, "no manifest"),
        (garble, "manifest.json cannot be read"),
        (empty, "manifest.json cannot be read"),
        (a_list, "manifest.json cannot be read"),
        (swap, "its manifest is of step 1"),
        (reach_out, "no file of its own"),
    ],
)
def test_a_damaged_one_is_passed_over_by_name(tmp_path, damage, told):
    # Case F1: the newer one is damaged, a writer left a folder beside it.
    good, bad = make(tmp_path, 100), make(tmp_path, 200)
    damage(bad)
    (tmp_path / ".step-300.77").mkdir()
    chosen, passed_over = newest_whole(tmp_path)
    assert chosen.path == good
    assert [other.path.name for other in passed_over] == ["step-200"]
    assert told in passed_over[0].fault


def test_a_whole_one_of_the_same_step_stays(tmp_path):
    first = make(tmp_path, 5)
    inode = (first / "state.pt").stat().st_ino
    make(tmp_path, 5, b"again")
    assert (first / "state.pt").stat().st_ino == inode
    assert names(tmp_path) == ["step-5"]


def test_a_damaged_one_of_the_same_step_is_replaced(tmp_path):
    cut(make(tmp_path, 5))
    make(tmp_path, 5, b"again")
    assert newest_whole(tmp_path)[0].num_bytes == 5
    assert (tmp_path / "step-5" / "state.pt").read_bytes() == b"again"


def test_the_newest_and_the_chosen_stay(tmp_path):
    for step in range(1, 7):
        make(tmp_path, step)
    removed = prune(tmp_path, 2, {3})
    assert names(tmp_path) == ["step-3", "step-5", "step-6"]
    assert sorted(path.name for path in removed) == ["step-1", "step-2", "step-4"]


def test_damaged_ones_do_not_count_as_the_newest(tmp_path):
    for step in (1, 2, 3):
        make(tmp_path, step)
    cut(tmp_path / "step-3")
    prune(tmp_path, 1)
    assert newest_whole(tmp_path)[0].step == 2


def test_what_killed_writers_left_goes(tmp_path):
    make(tmp_path, 1)
    (tmp_path / ".step-2.123").mkdir()
    (tmp_path / ".step-2.123" / "state.pt").write_bytes(b"half")
    (tmp_path / "notes").mkdir()
    assert remove_stale(tmp_path) == [".step-2.123"]
    assert names(tmp_path) == ["notes", "step-1"]


def test_one_with_a_wrong_checksum_takes_no_whole_ones_place(tmp_path):
    """Its sizes are right: a run went on from the one before, and its next save must not be removed."""
    for step in (70, 71, 72):
        make(tmp_path, step)
    change(tmp_path / "step-72")
    prune(tmp_path, 1)
    assert names(tmp_path) == ["step-71", "step-72"]
    assert newest_whole(tmp_path)[0].step == 71


def test_a_removal_that_is_cut_short_leaves_nothing_that_is_taken_for_a_checkpoint(tmp_path, monkeypatch):
    for step in (1, 2):
        make(tmp_path, step)
    with monkeypatch.context() as patch:
        patch.setattr(store.shutil, "rmtree", lambda *_, **__: None)  # killed before it came to that
        prune(tmp_path, 1)
    assert [stored.step for stored in stored_in(tmp_path)] == [2]
    assert remove_stale(tmp_path) == [".step-1.pruned"]
    assert names(tmp_path) == ["step-2"]


def test_what_is_measured_later_is_told_and_nothing_else_changes(tmp_path):
    path = make(tmp_path, 5, epoch=0, consumed=60, metrics={})
    add_metrics(path, {"validation_loss": 0.5})
    (stored,) = stored_in(tmp_path, whole=True)
    assert not stored.fault
    assert stored.facts["metrics"] == {"validation_loss": 0.5}
    make(tmp_path, 5, b"again", epoch=1, consumed=0, metrics={"validation_loss": 0.25})
    (stored,) = stored_in(tmp_path, whole=True)
    assert (stored.facts["epoch"], stored.facts["consumed"]) == (0, 60)
    assert stored.facts["metrics"] == {"validation_loss": 0.25}
    assert (path / "state.pt").read_bytes() == b"state"
