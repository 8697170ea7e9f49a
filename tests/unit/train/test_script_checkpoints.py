"""``run.resume`` and ``run.checkpoint`` on one rank: what they find again, and what they refuse."""

import logging
import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvdtrain.backends.single import SingleBackend
from hvdtrain.errors import AgreedError, InputError
from hvdtrain.topology.environ import World
from hvdtrain.train import keeper
from hvdtrain.train.locking import lock_directory, unlock
from hvdtrain.train.script import Run
from hvdtrain.train.settings import Settings
from hvdtrain.train.store import stored_in
from hvdtrain.train.waiting import Waiting

DATA = TensorDataset(torch.arange(40.0).reshape(20, 2), torch.arange(20.0))


@pytest.fixture(autouse=True)
def _generators():
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    numpy.random.set_state(before[1])
    torch.set_rng_state(before[2])


class Script:
    """A run with models and a loader of 5 batches."""

    def __init__(self, num_models=1, **settings):
        engine = SingleBackend(World(), torch.device("cpu"))
        self.run = Run(
            engine, Waiting(60, 0, 1, None), logging.getLogger("script"), Settings(**settings), _say
        )
        torch.manual_seed(3)  # as start() seeds
        self.nets = [nn.Linear(2, 1) for _ in range(num_models)]
        self.optimizers = [torch.optim.Adam(net.parameters(), lr=0.1) for net in self.nets]
        pairs = [self.run.distribute(*pair) for pair in zip(self.nets, self.optimizers, strict=True)]
        self.optimizers = [optimizer for _, optimizer in pairs]
        self.loader = self.run.loader(DATA, 4)
        self.seen = []

    def take(self, inputs):
        """A step of all models on a batch."""
        self.seen.append(inputs)
        for net, optimizer in zip(self.nets, self.optimizers, strict=True):
            self.run.step(net(inputs / 40).square().mean() + torch.rand(()) * net.weight.sum(), optimizer)

    def train(self, epochs, stop=None):
        """Trains with a save after each step, up to ``stop`` steps."""
        for _ in self.run.epochs(epochs):
            for inputs, _ in self.run.progress(self.loader):
                self.take(inputs)
                self.run.checkpoint()
                if len(self.seen) == stop:
                    return self.run.close()
        return self.run.close()

    def values(self):
        """All parameters."""
        return torch.cat([value.flatten() for net in self.nets for value in net.parameters()])


def _say(_):
    """Nobody listens."""


@pytest.mark.parametrize("stop", [2, 5, 7])
def test_several_models_and_the_order_of_samples(tmp_path, stop):
    whole = Script(2)
    assert whole.run.resume(tmp_path / "whole") == 0
    whole.train(2)
    begun = Script(2)
    begun.run.resume(tmp_path / "run")
    begun.train(2, stop)
    later = Script(2)
    assert later.run.resume(tmp_path / "run") == stop
    later.train(2)
    seen = [*begun.seen, *later.seen]
    assert all(map(torch.equal, seen, whole.seen))
    assert len(seen) == 10
    assert torch.equal(later.values(), whole.values())
    assert [stored.step for stored in stored_in(tmp_path / "run" / "checkpoints")] == [10, 9]


def test_a_damaged_checkpoint_is_passed_over(tmp_path, caplog):
    begun = Script()
    begun.run.resume(tmp_path)
    begun.train(1, 3)
    (tmp_path / "checkpoints" / "step-3" / "state.pt").write_bytes(b"PK")
    with caplog.at_level(logging.INFO, "script"):
        assert Script().run.resume(tmp_path) == 2
    assert "passed over step-3: state.pt has 2 bytes" in caplog.text


def test_every_so_many_steps(tmp_path):
    script = Script()
    script.run.resume(tmp_path, keep_last=9)
    for inputs, _ in script.loader:
        script.take(inputs)
        script.run.checkpoint(every_steps=2)
    script.run.close()
    assert [stored.step for stored in stored_in(tmp_path / "checkpoints")] == [4, 2]


def test_a_loader_of_the_users_own_at_the_end_of_its_epochs(tmp_path):
    def train(script, stop=None):
        batches = DataLoader(DATA, 4, shuffle=True)
        for epoch in script.run.epochs(3):
            for inputs, _ in script.run.progress(batches):
                script.take(inputs)
            script.run.checkpoint()
            if epoch == stop:
                break
        script.run.close()

    whole, begun, later = Script(), Script(), Script()
    for script, folder, stop in ((whole, "whole", None), (begun, "run", 1), (later, "run", None)):
        torch.manual_seed(7)
        script.run.resume(tmp_path / folder)
        train(script, stop)
    assert len(later.seen) == 5
    assert torch.equal(later.values(), whole.values())
    script = Script()
    script.run.resume(tmp_path / "other")
    inputs, _ = next(batches := script.run.progress(DataLoader(DATA, 4)))
    script.take(inputs)
    with pytest.raises(InputError, match="inside a loop over a loader of your own, whose place is not known"):
        script.run.checkpoint()
    batches.close()


class Coded:
    """Its state wants code."""

    def state_dict(self):
        """A state that cannot be read without code."""
        return {"how": Script}

    def load_state_dict(self, state):
        """Nothing."""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"keep_last": 0}, "run.resume got keep_last 0"),
        ({"signals": "SIGTERM"}, "run.resume got signals='SIGTERM'"),
        ({"signals": ["SIGKILL"]}, "legal: a list of SIGTERM, SIGUSR1, SIGUSR2"),
        ({"schedule": 3}, "run.resume got schedule=int"),
        ({"coded": Coded()}, "the state of coded holds more than tensors and plain values"),
    ],
)
def test_what_cannot_be_kept(tmp_path, given, told):
    script = Script()
    with pytest.raises(InputError) as raised:
        script.run.resume(tmp_path / "run", **given)
    assert told in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_calls_out_of_their_order(tmp_path):
    script = Script()
    with pytest.raises(InputError, match=r"run.checkpoint without run.resume"):
        script.run.checkpoint()
    script.run.resume(tmp_path)
    with pytest.raises(InputError, match=r"run.resume belongs once behind"):
        script.run.resume(tmp_path)
    with pytest.raises(InputError, match=r"every_steps=0"):
        script.run.checkpoint(every_steps=0)
    next(batches := iter(script.loader))
    with pytest.raises(InputError, match="in the middle of a step"):
        script.run.checkpoint()
    batches.close()


def test_another_script_is_refused(tmp_path):
    begun = Script()
    begun.run.resume(tmp_path)
    begun.train(1, 3)
    for script, given, told in (
        (Script(2), {}, "models were 1 when it was saved and are 2 now"),
        (
            Script(),
            {"other": nn.Linear(1, 1)},
            r"objects were \[\] when it was saved and are \['other'\] now",
        ),
        (Script(seed=1), {}, "seed was 0 when it was saved and is 1 now: of the rest of its epoch"),
    ):
        with pytest.raises(InputError, match=told):
            script.run.resume(tmp_path, **given)
        script.run._checkpoints.close()
    wide = Script()
    wide.nets[0].weight = nn.Parameter(torch.zeros(1, 3))
    with pytest.raises(InputError, match=r"step-3: the checkpoint does not fit the script: .*size mismatch"):
        wide.run.resume(tmp_path)


def test_a_folder_in_use_or_none(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/checkpoints: run\.resume: Not a directory"):
        Script().run.resume(tmp_path / "file")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    lock = lock_directory(tmp_path / "run" / "checkpoints")
    try:
        with pytest.raises(InputError, match="still write"):
            Script().run.resume(tmp_path / "run")
    finally:
        unlock(lock)


def test_a_save_that_fails_is_told_in_the_next(tmp_path, monkeypatch):
    def fail(*_args, **_facts):
        raise OSError(28, "No space left on device")

    script = Script()
    script.run.resume(tmp_path)
    monkeypatch.setattr(keeper, "save_checkpoint", fail)
    with pytest.raises(AgreedError, match="No space left on device; earlier checkpoints are whole"):
        script.train(1)
    assert len(script.seen) == 2
