"""Commits to memory: when, what of, and what a new world makes of them."""

import pytest
import torch

from hvdtrain.backends.single import SingleBackend
from hvdtrain.config import CheckpointConfig
from hvdtrain.errors import InputError
from hvdtrain.topology.environ import World
from hvdtrain.train.checkpoint import save_checkpoint
from hvdtrain.train.elastic import Commits, ElasticKeeper, Memory, commit_steps
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.schedule import Position
from hvdtrain.train.store import stored_in

BACKEND = SingleBackend(World(), torch.device("cpu"))
ORDER = {"samples": 100, "group": 0}


class Rank:
    """A model and its optimizer with what a trainer would save of them."""

    def __init__(self):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self):
        self.model(torch.randn(4, 3)).square().sum().backward()
        self.optimizer.step()

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "samples": 7,
            "order": dict(ORDER),
        }

    def momenta(self):
        return [value["momentum_buffer"].clone() for value in self.optimizer.state.values()]


def copied(rank):
    return {name: value.clone() for name, value in rank.model.state_dict().items()}


@pytest.fixture
def rank():
    made = Rank()
    made.step()
    return made


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path)
    run.checkpoints.mkdir()
    return run


def own(value):
    return {"epoch_sums": [value, 1.0], "window": [value, 2.0], "random": torch.zeros(1)}


def restore(memory, run, rank):
    return memory.restore(BACKEND, run, rank.model, rank.optimizer, ORDER)


def test_a_commit_is_taken_up_as_it_was_however_often(run, rank):
    memory = Memory()
    memory.commit(Position(5, 1, 40), rank.state(), [own(1.0), own(2.0)])
    model, momenta = copied(rank), rank.momenta()
    rank.step()
    for _ in range(2):
        fresh = Rank()
        resumed = restore(memory, run, fresh)
        assert resumed.at == Position(5, 1, 40)
        # Two ranks committed, one goes on: it has the sums of both and a random stream of its own.
        assert resumed.own == {"epoch_sums": [3.0, 2.0], "window": [3.0, 4.0]}
        assert resumed.shared["samples"] == 7
        assert resumed.notes == ("going on from step 5, committed in memory by 2 rank(s), with 1",)
        assert all(torch.equal(value, model[name]) for name, value in fresh.model.state_dict().items())
        assert all(map(torch.equal, fresh.momenta(), momenta))
        fresh.step()  # which must not reach into the memory


def test_before_the_first_commit_there_is_nothing(run, rank):
    assert restore(Memory(), run, rank) is None


def saved(run, rank, step):
    state = {**rank.state(), "step": step, "epoch": 0, "consumed": 0, "ranks": [own(1.0)]}
    save_checkpoint(run.checkpoints, step, state)


def test_a_checkpoint_that_is_newer_is_taken_instead(run, rank):
    memory = Memory()
    memory.commit(Position(5, 0, 50), rank.state(), [own(1.0)])
    saved(run, rank, 5)
    assert restore(memory, run, Rank()).at == Position(5, 0, 50)
    rank.step()
    saved(run, rank, 6)
    fresh = Rank()
    assert restore(memory, run, fresh).at == Position(6, 0, 0)
    assert torch.equal(fresh.model[0].weight, rank.model[0].weight)


def test_an_order_that_follows_the_ranks_cannot_change_inside_an_epoch(run, rank):
    memory = Memory()
    memory.commit(Position(5, 0, 50), rank.state(), [own(1.0)])
    with pytest.raises(InputError, match=r"the last commit: data\.sampling sorted 0 samples"):
        memory.restore(BACKEND, run, rank.model, rank.optimizer, {**ORDER, "group": 64})


@pytest.fixture
def keeper(run, rank):
    looks = []

    def make(**config):
        commits = Commits(Memory(), rank.model, 4, lambda: looks.append(commits.memory.at))
        made = ElasticKeeper(BACKEND, CheckpointConfig(**config), run.checkpoints, print, commits)
        return made, commits.memory, looks

    return make


def save(keeper, rank, *places, is_epoch_end=False):
    for at in places:
        if keeper.is_due(at, is_epoch_end=is_epoch_end):
            keeper.save(at, rank.state, own(0.0))


def test_commits_come_more_often_than_checkpoints(run, rank, keeper):
    one, memory, looks = keeper(every_steps=6)
    save(one, rank, *(Position(step, 0, step) for step in range(1, 14)))
    one.finish()
    assert [at.step for at in looks] == [4, 6, 8, 12]  # and only there may ranks go or come
    assert [stored.step for stored in stored_in(run.checkpoints)] == [12, 6]
    assert memory.at == Position(12, 0, 12)


def test_the_end_of_an_epoch_is_committed(run, rank, keeper):
    one, memory, _ = keeper(every_epochs=2)
    save(one, rank, Position(5, 1), is_epoch_end=True)
    assert memory.at == Position(5, 1)
    save(one, rank, Position(10, 2), is_epoch_end=True)
    one.finish()
    assert [stored.step for stored in stored_in(run.checkpoints)] == [10]


def test_a_save_that_was_asked_for_reaches_the_disk(run, rank, keeper):
    """Also at a step that was only committed before, as in the evaluation after it."""
    one, memory, _ = keeper(every_epochs=9)
    save(one, rank, Position(8, 0, 8))
    assert stored_in(run.checkpoints) == []
    one.save(Position(8, 0, 8), rank.state, own(0.0))
    one.finish(must_stand=True)
    assert [stored.step for stored in stored_in(run.checkpoints)] == [8]
    assert memory.at == Position(8, 0, 8)


def test_how_often_to_commit():
    assert commit_steps({}) == 10
    assert commit_steps({"HVDTRAIN_COMMIT_STEPS": "3"}) == 3
