"""Saves in the background: what is due, what is kept, what a failure leads to."""

import resource
import signal
import threading

import pytest
import torch

from hvdtrain.backends.single import SingleBackend
from hvdtrain.config import CheckpointConfig
from hvdtrain.errors import TrainingError
from hvdtrain.topology.environ import World
from hvdtrain.train import keeper as module
from hvdtrain.train.checkpoint import load_checkpoint
from hvdtrain.train.keeper import Keeper
from hvdtrain.train.schedule import Position
from hvdtrain.train.store import stored_in

BACKEND = SingleBackend(World(), torch.device("cpu"))


@pytest.fixture
def said():
    return []


def keeper(folder, said, **config):
    return Keeper(BACKEND, CheckpointConfig(**config), folder, said.append)


def save(one, step, value=0.0, **measured):
    state = {"model": {"w": torch.full((3,), value)}, "optimizer": {}}
    one.save(Position(step, 0, step), lambda: state, {"own": step}, measured)


def test_when_a_save_is_due(tmp_path, said):
    one = keeper(tmp_path, said, every_steps=10, every_epochs=2)
    assert [step for step in range(1, 31) if one.is_due(Position(step), is_epoch_end=False)] == [10, 20, 30]
    assert [epoch for epoch in range(1, 6) if one.is_due(Position(5, epoch), is_epoch_end=True)] == [2, 4]
    never = keeper(tmp_path, said)
    assert not never.is_due(Position(10, 2), is_epoch_end=False)
    assert not never.is_due(Position(10, 2), is_epoch_end=True)


def test_training_goes_on_with_the_copy_taken(tmp_path, said, monkeypatch):
    """The writer is held back while the state changes: what it writes is what was."""
    may_write = threading.Event()
    real = module.save_checkpoint

    def slow(*args, **facts):
        may_write.wait(60)
        return real(*args, **facts)

    monkeypatch.setattr(module, "save_checkpoint", slow)
    weight = torch.zeros(3)
    one = keeper(tmp_path, said)
    one.save(Position(1), lambda: {"model": {"w": weight}}, {})
    weight.add_(1)
    may_write.set()
    one.finish()
    assert load_checkpoint(tmp_path / "step-1")["model"]["w"].tolist() == [0, 0, 0]


def test_each_rank_finds_what_is_its_own(tmp_path, said):
    one = keeper(tmp_path, said)
    save(one, 4)
    one.finish()
    state = load_checkpoint(tmp_path / "step-4")
    assert state["ranks"] == [{"own": 4}]
    assert (state["step"], state["epoch"], state["consumed"]) == (4, 0, 4)


def test_the_last_and_the_best_stay(tmp_path, said):
    one = keeper(tmp_path, said, keep_last=1, keep_best="accuracy")
    for step, accuracy in enumerate((0.5, 0.9, 0.7, 0.8), 1):
        save(one, step, validation_accuracy=accuracy, validation_loss=1 - accuracy)
        one.finish()
    assert [stored.step for stored in stored_in(tmp_path)] == [4, 2]


def test_the_best_is_known_where_a_save_of_the_same_step_came_before(tmp_path, said):
    """The end of an epoch is a multiple of every_steps: the second save brings only what was measured."""
    one = keeper(tmp_path, said, keep_last=1, keep_best="accuracy")
    for step, accuracy in ((1, 0.9), (2, 0.5), (3, 0.7)):
        save(one, step)
        save(one, step, validation_accuracy=accuracy)
    one.finish()
    assert [stored.step for stored in stored_in(tmp_path)] == [3, 1]
    assert [stored.facts["metrics"]["validation_accuracy"] for stored in stored_in(tmp_path)] == [0.7, 0.9]


def test_the_best_is_known_where_another_life_of_the_run_saved_the_same_step(tmp_path, said):
    first = keeper(tmp_path, said)
    save(first, 1)
    first.finish()
    second = keeper(tmp_path, said)
    save(second, 1, validation_accuracy=0.9)
    second.finish()
    assert stored_in(tmp_path)[0].facts["metrics"] == {"validation_accuracy": 0.9}


def damage(path):
    """Changes the content of a checkpoint and not its size, as a bad disk does."""
    data = bytearray((path / "state.pt").read_bytes())
    data[len(data) // 2] ^= 255
    (path / "state.pt").write_bytes(data)


def test_a_run_that_passed_over_a_damaged_one_keeps_what_it_saves(tmp_path, said):
    first = keeper(tmp_path, said)
    for step in (70, 72):
        save(first, step, validation_accuracy=0.1 * (step - 70))
    first.finish()
    damage(tmp_path / "step-72")
    second = keeper(tmp_path, said, keep_last=1, keep_best="accuracy")
    save(second, 71, validation_accuracy=0.15)
    second.finish()
    assert [stored.step for stored in stored_in(tmp_path)] == [72, 71]
    save(second, 73, validation_accuracy=0.12)
    second.finish()
    # The damaged one has the best value: what is best of the whole ones stays too.
    assert [stored.step for stored in stored_in(tmp_path)] == [73, 72, 71]
    assert load_checkpoint(tmp_path / "step-71")["step"] == 71


def test_what_was_just_saved_stays_beside_a_newer_one(tmp_path, said):
    """A newer one could not be read when the run went on, and can now."""
    first = keeper(tmp_path, said)
    save(first, 72)
    first.finish()
    second = keeper(tmp_path, said, keep_last=1)
    save(second, 71)
    second.finish()
    assert [stored.step for stored in stored_in(tmp_path)] == [72, 71]


def test_a_run_that_is_to_end_does_not_call_a_failed_save_its_checkpoint(tmp_path, said):
    one = keeper(tmp_path, said, on_failure="continue")
    with limited_files(100):
        save(one, 7)
        one.close()
    with pytest.raises(TrainingError, match="asked to end, but step 7 could not be saved"):
        one.finish(must_stand=True)
    assert "could not be saved" in said[0]
    save(one, 8)
    one.finish(must_stand=True)


def test_what_was_measured_of_a_failed_save_does_not_hide_why_it_failed(tmp_path, said):
    one = keeper(tmp_path, said)
    with limited_files(100):
        save(one, 1)
        save(one, 1, validation_accuracy=0.5)
        one.close()
    with pytest.raises(TrainingError, match=r"[Tt]oo large"):
        one.finish()


def test_a_failed_save_stops_the_run_and_spares_the_old_one(tmp_path, said):
    one = keeper(tmp_path, said)
    save(one, 1, 1.0)
    one.finish()
    with limited_files(100):
        save(one, 2, 2.0)
        one.close()
    assert one.has_failed()
    with pytest.raises(TrainingError, match=r"could not be saved: .*[Tt]oo large"):
        one.heed()
    assert load_checkpoint(tmp_path / "step-1")["model"]["w"].tolist() == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_run_that_is_to_go_on_tells_and_saves_again(tmp_path, said):
    one = keeper(tmp_path, said, on_failure="continue")
    with limited_files(100):
        save(one, 1)
        one.close()
    one.heed()
    assert "could not be saved" in said[0]
    assert not one.has_failed()
    save(one, 1)
    one.finish()
    assert load_checkpoint(tmp_path / "step-1")


def test_what_a_killed_writer_left_is_removed_and_told(tmp_path, said):
    (tmp_path / ".step-3.99").mkdir()
    keeper(tmp_path, said)
    assert ".step-3.99" in said[0]
    assert list(tmp_path.iterdir()) == []


class limited_files:  # noqa: N801
    """No file of this process grows beyond a size; the error of a full disk, from the real system."""

    def __init__(self, size):
        self.size = size

    def __enter__(self):
        self.old = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.old[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.old)
        signal.signal(signal.SIGXFSZ, self.handler)


@pytest.mark.parametrize("on_failure", ["stop", "continue"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_lost_is_never_saved(tmp_path, said, on_failure, value):
    """Its buffers may hold what they like; what was saved before stays."""
    one = Keeper(BACKEND, CheckpointConfig(on_failure=on_failure), tmp_path, said.append, ["a", "w", "count"])
    model = {
        "a": torch.zeros(2),
        "running": torch.tensor([torch.inf]),
        "w": torch.zeros(3, dtype=torch.bfloat16),
    }
    model["count"] = torch.tensor(1)
    one.save(Position(1), lambda: {"model": model}, {})
    one.finish()
    model["w"][1] = value
    one.save(Position(2), lambda: {"model": model}, {})
    with pytest.raises(TrainingError, match="step 2: parameter 'w' holds values that are no finite numbers"):
        one.finish()
    assert [stored.step for stored in stored_in(tmp_path, whole=True) if not stored.fault] == [1]
    assert list(tmp_path.glob(".step-*")) == []
