"""What a script trains with, as a checkpoint holds it, and its way back on all ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.backends.tensors import put_together, taken_apart
from hvdtrain.errors import InputError
from hvdtrain.train.course import Course
from hvdtrain.train.feeding import Loader, ReadingPlace
from hvdtrain.train.plain import UnreadableError, check_readable
from hvdtrain.train.randomness import restore_random_state
from hvdtrain.train.step import Stepper

_NUMBERED = re.compile(r"(\d+)/")


@dataclass(frozen=True)
class Held:
    """What a run of a script holds.

    Attributes:
        steppers: Of its models, in the order in which they were distributed.
        loaders: Of its training data.
        course: Where it is.
        objects: What else the user wants to find again, by name.
        seed: Of the order of samples.
    """

    steppers: Sequence[Stepper]
    loaders: Sequence[Loader]
    course: Course
    objects: Mapping[str, Any]
    seed: int

    @property
    def consumed(self) -> int:
        """Samples of the epoch that the ranks have used, where a loader is inside of it."""
        return next((loader.place.consumed for loader in self.loaders if loader.place.is_inside), 0)

    def state(self) -> dict[str, Any]:
        """What rank 0 saves for all."""
        return {
            "model": {
                f"{_prefix(number)}{name}": value
                for number, stepper in enumerate(self.steppers)
                for name, value in stepper.replica.module.state_dict().items()
            },
            "optimizer": [stepper.replica.optimizer.state_dict() for stepper in self.steppers],
            "scaler": [stepper.scaler.state_dict() for stepper in self.steppers],
            "counts": [(stepper.step, stepper.num_skipped) for stepper in self.steppers],
            "objects": {name: held.state_dict() for name, held in self.objects.items()},
            "script": {
                "place": self.course.next_place(),
                "steps": self.course.num_steps,
                "loaders": [(loader.place.num_passed, loader.place.consumed) for loader in self.loaders],
                "seed": self.seed,
                "orders": [dict(loader.order) for loader in self.loaders],
            },
        }

    def trained_names(self) -> list[str]:
        """Names in ``model`` of what must be finite numbers."""
        return [
            f"{_prefix(number)}{name}"
            for number, stepper in enumerate(self.steppers)
            for name, value in stepper.replica.module.named_parameters()
            if value.requires_grad
        ]

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuses a state of other parts, before any of them is changed.

        Raises:
            InputError: Says what differs.
        """
        script = state.get("script")
        if not isinstance(script, Mapping):
            raise InputError("it is no checkpoint of a script: hvdtrain train made it")
        for what, saved, now in (
            ("models", len(state["optimizer"]), len(self.steppers)),
            ("training loaders", len(script["loaders"]), len(self.loaders)),
            ("objects", sorted(state["objects"]), sorted(self.objects)),
        ):
            if saved != now:
                raise InputError(f"{what} were {saved} when it was saved and are {now} now")
        self._check_orders(script)

    def _check_orders(self, script: Mapping[str, Any]) -> None:
        """Refuses to go on inside of an epoch whose samples come in another order now."""
        for number, (_, consumed) in enumerate(script["loaders"]):
            if not consumed:
                continue
            # Checkpoints of older versions tell the number of samples alone.
            order = script["orders"][number] if "orders" in script else {"samples": script["samples"][number]}
            saved = {"seed": script["seed"], **{what: one for what, one in order.items() if one is not None}}
            own = {"seed": self.seed, **self.loaders[number].order}
            for what in saved.keys() & own.keys():
                if saved[what] != own[what]:
                    raise InputError(
                        f"{what} was {saved[what]} when it was saved and is {own[what]} now: of the rest of "
                        "its epoch samples would be lost or read twice"
                    )

    def take_in(self, state: Mapping[str, Any]) -> None:
        """Puts what was saved into the parts of now.

        Raises:
            ValueError, RuntimeError, KeyError: They do not fit.
        """
        for number, stepper in enumerate(self.steppers):
            stepper.replica.module.load_state_dict(_own(state["model"], number))
            stepper.replica.optimizer.load_state_dict(state["optimizer"][number])
            if stepper.scaler.is_enabled() and state["scaler"][number]:
                stepper.scaler.load_state_dict(dict(state["scaler"][number]))
            stepper.step, stepper.num_skipped = state["counts"][number]
        for name, held in self.objects.items():
            held.load_state_dict(state["objects"][name])
        script = state["script"]
        loop, epoch = script["place"]
        self.course.go_on(loop, epoch, script.get("steps", max(step for step, _ in state["counts"])))
        for loader, (num_passed, consumed) in zip(self.loaders, script["loaders"], strict=True):
            loader.place = ReadingPlace(num_passed, consumed)

    def check_readable(self) -> None:
        """Refuses, before any step, what could be saved but not read again.

        Raises:
            InputError: Names it.
        """
        for number, stepper in enumerate(self.steppers):
            _check_state(f"model {number + 1}", stepper.replica.module.state_dict())
            kind = type(stepper.replica.optimizer).__name__
            _check_state(f"optimizer {number + 1} ({kind})", stepper.replica.optimizer.state_dict())
        for name, held in self.objects.items():
            _check_state(name, held.state_dict())


def check_objects(objects: Mapping[str, Any]) -> None:
    """Refuses objects that have no state.

    Raises:
        InputError: With the object's name.
    """
    for name, held in objects.items():
        if not (hasattr(held, "state_dict") and hasattr(held, "load_state_dict")):
            raise InputError(
                f"run.resume got {name}={type(held).__name__}",
                legal="an object with state_dict and load_state_dict",
            )


def _check_state(name: str, state: Any) -> None:
    try:
        check_readable(state, f"the state of {name}", is_copied=False)
    except UnreadableError as error:
        do = "leave it out of run.resume, or give it a state_dict of plain values"
        raise InputError(str(error), do=do) from None


def hand_out(backend: Backend, found: dict[str, Any] | str | None) -> dict[str, Any] | None:
    """Gives all ranks the state that rank 0 read; collective.

    Args:
        backend: How bytes move.
        found: On rank 0 the state, or why there is none to use, or None where there is nothing.

    Returns:
        The state, its ``own`` what this rank saved; None where there is nothing.

    Raises:
        InputError: It cannot be used.
    """
    tensors: list[torch.Tensor] = []
    ranks = found.pop("ranks") if isinstance(found, dict) else []
    told, ranks = backend.broadcast((taken_apart(found, tensors), ranks))
    if isinstance(told, str):
        raise InputError(told)
    if told is None:
        return None
    own = tensors if backend.rank == 0 else None
    state: dict[str, Any] = put_together(told, backend.device, own, backend.broadcast_tensor)
    # Of another number of ranks nobody can take up the streams: they stay as they begin.
    state["own"] = ranks[backend.rank] if len(ranks) == backend.size else {}
    state["num_ranks"] = len(ranks)
    return state


def take_up_random(state: Mapping[str, Any], device: torch.device) -> None:
    """Puts this rank's generators where they were when it saved, in the same number of ranks."""
    if "random" in state["own"]:
        restore_random_state(state["own"]["random"], device)


def _prefix(number: int) -> str:
    """Of the names of a model; no module's own name holds it."""
    return f"{number}/" if number else ""


def _own(model: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The values of one model by their own names."""
    matched = {name: _NUMBERED.match(name) for name in model}
    return {
        name[match.end() :] if match else name: model[name]
        for name, match in matched.items()
        if (int(match[1]) if match else 0) == number
    }
