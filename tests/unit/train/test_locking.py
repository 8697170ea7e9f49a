"""Who holds a run directory, and how long the next life of a job waits for the last one's rank 0."""

import multiprocessing
import time

import pytest

from hvdtrain.config import StallConfig
from hvdtrain.errors import InputError
from hvdtrain.train.locking import RESTART, await_last_life, lock_directory, unlock

SECOND_LIFE = {RESTART: "1"}


def hold(path, held, let_go):
    """Holds the directory until it is told to let go, as the rank of an earlier life does."""
    lock = lock_directory(path)
    held.set()
    let_go.wait(60)
    unlock(lock)


@pytest.fixture
def holder(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, let_go = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path, held, let_go))
    process.start()
    assert held.wait(60)
    yield let_go
    let_go.set()
    process.join(60)


def test_next_life_waits_until_the_last_one_lets_go(tmp_path, holder, monkeypatch):
    monkeypatch.setattr("hvdtrain.train.locking._RANKS_END_S", 0.2)
    told = []

    def tell(text):
        told.append(text)
        holder.set()

    await_last_life(SECOND_LIFE, [tmp_path, tmp_path / "checkpoints"], StallConfig(), tell)
    assert told == [f"a rank of the last life still holds {tmp_path}: waiting at most 450 s for it"]
    unlock(lock_directory(tmp_path))  # it can be taken now


@pytest.mark.parametrize("env", [{}, {RESTART: "0"}])
def test_first_life_waits_for_nobody(tmp_path, holder, env):
    await_last_life(env, [tmp_path], StallConfig(), pytest.fail)
    with pytest.raises(InputError, match="a run is going on in this directory"):
        lock_directory(tmp_path)


def test_wait_ends_where_the_last_life_does_not(tmp_path, holder):
    """The others of this life wait for no longer than start_s."""
    before = time.monotonic()
    await_last_life(SECOND_LIFE, [tmp_path], StallConfig(start_s=1.0), lambda _: None)
    assert time.monotonic() - before >= 0.5
    with pytest.raises(InputError):
        lock_directory(tmp_path)


def test_nothing_is_waited_for_where_nobody_is(tmp_path):
    await_last_life(SECOND_LIFE, [tmp_path, tmp_path / "none"], StallConfig(), pytest.fail)
