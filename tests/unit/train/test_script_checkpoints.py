"""``run.resume`` and ``run.checkpoint`` on one rank: what they find again, and what they refuse."""

import hashlib
import json
import logging
import os
import random
import signal

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

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

    def __init__(self, num_models=1, has_other=False, **settings):
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
        self.other = self.run.loader(DATA, 5) if has_other else None
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


def validate(script):
    """With a loader of the user's own."""
    with torch.random.fork_rng():  # a DataLoader draws from it
        for _ in script.run.progress(DataLoader(DATA, 10)):
            pass


def look(script):
    """At the first batch."""
    next(iter(script.loader))


def nothing(_):
    """Nothing."""


@pytest.mark.parametrize(
    ("before", "inside", "stop"),
    [
        (look, nothing, 2),
        (look, nothing, 7),
        *((validate, nothing, stop) for stop in (2, 5, 10)),
        *((nothing, validate, stop) for stop in (2, 5, 7)),
    ],
)
def test_loops_without_steps_are_no_part_of_the_course(tmp_path, before, inside, stop):
    def train(folder, stop=None):
        script = Script()
        script.run.resume(folder)
        for _ in script.run.epochs(2):
            before(script)
            for inputs, _ in script.run.progress(script.loader):
                script.take(inputs)
                inside(script)
                script.run.checkpoint()
                if len(script.seen) == stop:
                    script.run.close()
                    return script
            script.run.checkpoint()
        script.run.close()
        return script

    whole, begun, later = (
        train(tmp_path / name, stop) for name, stop in (("whole", 0), ("run", stop), ("run", 0))
    )
    seen = [*begun.seen, *later.seen]
    assert len(seen) == len(whole.seen) == 10
    assert all(map(torch.equal, seen, whole.seen))
    assert torch.equal(later.values(), whole.values())


def test_a_second_loop_over_training_data_is_refused_where_a_save_is_due(tmp_path):
    script = Script(has_other=True)
    script.run.resume(tmp_path)
    for _ in script.run.epochs(2):
        for loader in (script.loader, script.other):
            for inputs, _ in script.run.progress(loader):
                script.take(inputs)
                if loader is script.other:
                    script.run.checkpoint(every_steps=1000)  # which it never is
                    with pytest.raises(InputError, match="inside a second loop over training data of one"):
                        script.run.checkpoint()
        script.run.checkpoint()
    script.run.close()
    later = Script(has_other=True)
    assert later.run.resume(tmp_path) == 18
    later.train(2)
    assert later.seen == []


@pytest.mark.parametrize("stop", [2, 3, 6])
def test_loaders_side_by_side_go_on_where_they_were(tmp_path, stop):
    """4 steps an epoch, as many as the shorter loader has batches."""

    def train(script, stop=None):
        for _ in script.run.epochs(3):
            for (inputs, _), (others, _) in zip(script.loader, script.other, strict=False):
                script.take(inputs)
                script.seen.append(others)
                script.run.checkpoint()
                if len(script.seen) == 2 * (stop or -1):
                    return script.run.close()
        return script.run.close()

    whole = Script(has_other=True)
    whole.run.resume(tmp_path / "whole")
    train(whole)
    begun = Script(has_other=True)
    begun.run.resume(tmp_path / "run")
    train(begun, stop)
    later = Script(has_other=True)
    assert later.run.resume(tmp_path / "run") == stop
    train(later)
    seen = [*begun.seen, *later.seen]
    assert len(seen) == len(whole.seen)
    assert all(map(torch.equal, seen, whole.seen))


class Odd(nn.Linear):
    """Holds what no checkpoint can."""

    def get_extra_state(self):
        return numpy.float64(1).reshape(1)

    def set_extra_state(self, state):
        """It is not needed."""


def test_a_model_that_could_not_be_read_again_is_refused_before_any_step(tmp_path):
    script = Script()
    script.run.distribute(net := Odd(2, 1), torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(InputError, match="the state of model 2 holds more than tensors and plain values"):
        script.run.resume(tmp_path)


def test_models_that_are_trained_one_after_the_other(tmp_path):
    """The second model first: no save is left out, and a request to end is heard in its steps."""

    def train(script, asked_at=None):
        for _ in script.run.epochs(3):
            for inputs, _ in script.run.progress(script.loader):
                script.seen.append(inputs)
                if len(script.seen) == asked_at:
                    os.kill(os.getpid(), signal.SIGUSR1)
                script.run.step(script.nets[1](inputs / 40).square().mean(), script.optimizers[1])
                script.run.checkpoint(every_steps=4)
        script.run.close()

    script = Script(2)
    script.run.resume(tmp_path, keep_last=9)
    with pytest.raises(SystemExit) as raised:
        train(script, asked_at=9)
    assert raised.value.code == 75
    assert [stored.step for stored in stored_in(tmp_path / "checkpoints")] == [9, 8, 4]
    later = Script(2)
    assert later.run.resume(tmp_path, keep_last=9) == 9
    train(later)
    assert len(later.seen) == 6
    assert [stored.step for stored in stored_in(tmp_path / "checkpoints")] == [12, 9, 8, 4]


def test_who_is_asked_behind_the_last_step_is_heard_too(tmp_path):
    script = Script()
    script.run.resume(tmp_path)
    for inputs, _ in script.run.progress(script.loader):
        script.take(inputs)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as raised:
        script.run.checkpoint()
    assert raised.value.code == 75


def test_a_save_between_the_steps_of_one_batch(tmp_path):
    script = Script(2)
    script.run.resume(tmp_path, keep_last=9)
    inputs, _ = next(batches := iter(script.loader))
    for net, optimizer in zip(script.nets, script.optimizers, strict=True):
        script.run.step(net(inputs).mean(), optimizer)
        script.run.checkpoint()
        script.run.checkpoint()  # nothing happened since
    batches.close()
    script.run.close()
    assert [stored.step for stored in stored_in(tmp_path / "checkpoints")] == [2, 1]


def set_rate(script, rate):
    for group in script.optimizers[0].param_groups:
        group["lr"] = rate


def test_a_rate_that_was_computed_with_numpy(tmp_path):
    begun = Script()
    begun.run.resume(tmp_path)
    set_rate(begun, 0.1 * numpy.cos(0.3))
    begun.train(1, 3)
    later = Script()
    assert later.run.resume(tmp_path) == 3
    [group] = later.optimizers[0].param_groups
    assert (type(group["lr"]), group["lr"]) == (float, float(0.1 * numpy.cos(0.3)))


def test_a_save_that_could_not_be_read_again_is_refused(tmp_path):
    first = Script()
    set_rate(first, numpy.array([0.1]))
    told = r"the state of optimizer 1 \(Adam\) holds more .*param_groups\[0\]\.lr is a numpy\.ndarray"
    with pytest.raises(InputError, match=told):
        first.run.resume(tmp_path)
    script = Script()
    script.run.resume(tmp_path)
    for inputs, _ in script.loader:
        script.take(inputs)
        if len(script.seen) == 2:
            set_rate(script, numpy.array([0.1]))
            script.run.checkpoint()
            break
        script.run.checkpoint()
    with pytest.raises(AgreedError) as raised:
        script.run.close()
    assert str(raised.value) == (
        "a checkpoint could not be saved: the state holds more than tensors and plain values: "
        "optimizer[0].param_groups[0].lr is a numpy.ndarray; earlier checkpoints are whole"
    )


def test_a_checkpoint_that_wants_code_is_passed_over(tmp_path, caplog):
    begun = Script()
    begun.run.resume(tmp_path)
    begun.train(1, 3)
    newest = tmp_path / "checkpoints" / "step-3"
    state = torch.load(newest / "state.pt", weights_only=True)
    torch.save({**state, "script": {**state["script"], "seed": numpy.float64(0)}}, newest / "state.pt")
    manifest = json.loads((newest / "manifest.json").read_text())
    data = (newest / "state.pt").read_bytes()
    manifest["files"]["state.pt"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (newest / "manifest.json").write_text(json.dumps(manifest))
    later = Script()
    with caplog.at_level(logging.INFO, "script"):
        assert later.run.resume(tmp_path) == 2
    [told] = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert told.startswith("passed over step-3, kept under another name: it cannot be read again: ")
    assert told.endswith("holds more than tensors and plain values: it wants numpy._core.multiarray.scalar")
    later.train(1, 1)  # its save of step 3 is one that can be read
    assert Script().run.resume(tmp_path) == 3
    assert (tmp_path / "checkpoints" / "unreadable-step-3").is_dir()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA)


@pytest.mark.parametrize(
    ("data", "before", "now", "told"),
    [
        (DATA, {}, {"shuffle": False}, "shuffle was True when it was saved and is False now"),
        (DATA, {}, {"batch_size": 2}, ""),
        (Stream(), {"workers": 2}, {"workers": 3}, "workers was 2 when it was saved and is 3 now"),
        (Stream(), {"workers": 1}, {}, ""),
        (Stream(), {}, {"batch_size": 2}, "batch was 4 when it was saved and is 2 now"),
    ],
)
def test_inside_an_epoch_its_order_must_be_as_it_was(tmp_path, data, before, now, told):
    def begin(given):
        script = Script()
        loader = script.run.loader(data, **{"batch_size": 4, **given})
        script.run.resume(tmp_path)
        return script, loader

    script, loader = begin(before)
    for inputs, _ in loader:
        script.take(inputs)
        script.run.checkpoint()
        break
    script.run.close()
    if told:
        with pytest.raises(InputError, match=told):
            begin(now)
    else:
        begin(now)


def test_a_step_of_the_optimizer_that_was_given_is_refused():
    script = Script()
    # As Horovod does it: another object over the same parameters.
    given = torch.optim.Adam(script.nets[0].parameters(), lr=0.1)
    script.run._own_steps.refuse(given, script.optimizers[0])
    for optimizer in (given, script.optimizers[0]):
        with pytest.raises(InputError, match=r"optimizer.step\(\) was called outside of run.step"):
            optimizer.step()
