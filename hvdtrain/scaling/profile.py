"""profile.json, schema 1: what ``hvdtrain profile`` writes, and ``advise`` and ``report`` read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hvdtrain.errors import InputError
from hvdtrain.scaling.calibration_points import Calibration, parse_calibration
from hvdtrain.scaling.fields import Fields, read_document

_MAKER = "hvdtrain profile"
_MIN_STEPS = 2
_TELLING = ("steps", "ranks", "step_s", "gradients", "loader")  # two of them make a profile, if no good one
_SUM_TOLERANCE = 1e-3  # of the step: what rounding to the file may cost


@dataclass(frozen=True)
class HostRanks:
    """A host and how many ranks ran on it."""

    name: str
    ranks: int


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, of the slowest rank of each step."""

    mean: float
    median: float
    p95: float
    min: float
    max: float


@dataclass(frozen=True)
class RankTimes:
    """Means over the steps of one rank, in seconds; load to other sum to the step.

    ``exposed_s`` is communication that backward did not hide, counted from when all ranks had their
    gradients; ``wait_s`` is waiting for slower ranks until then; ``compute_std_s`` the standard deviation
    over the steps of load, forward, backward and optimizer together.
    """

    rank: int
    host: str
    load_s: float
    forward_s: float
    backward_s: float
    exposed_s: float
    optimizer_s: float
    wait_s: float
    other_s: float
    step_s: float
    compute_std_s: float

    @property
    def busy_s(self) -> float:
        """Seconds of own work of a step."""
        return self.load_s + self.forward_s + self.backward_s + self.optimizer_s + self.other_s


@dataclass(frozen=True)
class ReadyGradient:
    """A gradient's bytes, and when it was ready, in seconds after backward began."""

    bytes: int
    ready_s: float


@dataclass(frozen=True)
class Gradients:
    """What a step reduces, in the order in which backward makes it ready."""

    num_tensors: int
    num_parameters: int
    bytes: int
    ready: tuple[ReadyGradient, ...]


@dataclass(frozen=True)
class FusedBuffer:
    """A buffer that was really reduced."""

    bytes: int
    num_tensors: int


@dataclass(frozen=True)
class Loader:
    """A rank's input pipeline; ``capacity_samples_per_s`` is what it delivers when no step holds it up."""

    num_workers: int
    capacity_samples_per_s: float | None
    cpu_s_per_sample: float | None
    cores_per_rank: float


@dataclass(frozen=True)
class Memory:
    """Bytes of a replica."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    buffers_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Gpu:
    """What the GPU did: its utilisation from 0 to 1, watts, joules a step."""

    utilisation: float
    power_w: float
    energy_j_per_step: float


@dataclass(frozen=True)
class NoiseScale:
    """The simple gradient noise scale in samples, and over how many steps it was taken."""

    simple: float
    num_steps: int


@dataclass(frozen=True)
class Profile:
    """A measured job: see the module's classes; times in seconds, sizes in bytes."""

    job: str
    source: str
    hvdtrain: str
    torch: str
    date: str
    backend: str
    device: str
    device_name: str
    device_memory_bytes: int | None
    size: int
    hosts: tuple[HostRanks, ...]
    precision: str
    compression: str
    global_batch: int
    accumulate: int
    samples_per_epoch: int | None
    epochs: float | None
    total_steps: int | None
    steps: int
    step_s: StepTimes
    ranks: tuple[RankTimes, ...]
    gradients: Gradients
    fused: tuple[FusedBuffer, ...]
    loader: Loader
    memory: Memory
    gpu: Gpu | None
    noise_scale: NoiseScale | None
    samples_per_s: float
    calibration: Calibration | None = None

    def document(self) -> dict[str, Any]:
        """The document that the file holds."""
        document = {"schema": 1, **_plain(asdict(self))}
        if self.calibration is None:
            del document["calibration"]
        return document


def read_profile(path: Path) -> Profile:
    """Reads and checks a profile.

    Raises:
        InputError: The file is empty, no profile, of another schema, of one step, or a value is missing or
            impossible; names file and key.
    """
    return parse_profile(read_document(path, "profile", _MAKER))


def is_profile(values: Mapping[str, Any]) -> bool:
    """Whether a document means to be a profile; it may be a damaged one."""
    return "kind" not in values and sum(key in values for key in _TELLING) > 1


def parse_profile(fields: Fields) -> Profile:
    """Checks a document; ``read_profile`` says which errors it raises."""
    if fields.values.get("kind") == "allreduce":
        raise fields.wrong("kind", "is allreduce: this is a network file", do="give it as --network FILE")
    if not is_profile(fields.values):
        raise InputError(f"is no profile of {_MAKER}", where=fields.file, do=f"write one with {_MAKER}")
    steps = fields.count("steps")
    if steps < _MIN_STEPS:
        told = "holds one step: nothing is known of how steps vary" if steps else "holds no step"
        raise fields.wrong(
            "steps", f"is {steps}: the profile {told}", do="profile at least 20 steps (--steps 20)"
        )
    size = fields.count("size", 1)
    ranks = tuple(_rank(one) for one in fields.objects("ranks"))
    if len(ranks) != size:
        raise fields.wrong("ranks", f"has {len(ranks)} entries for size {size}")
    hosts = tuple(HostRanks(one.text("name"), one.count("ranks", 1)) for one in fields.objects("hosts"))
    if sum(host.ranks for host in hosts) != size:
        raise fields.wrong("hosts", f"hold {sum(host.ranks for host in hosts)} ranks, size is {size}")
    step = fields.object("step_s")
    names = ("mean", "median", "p95", "min", "max")
    return Profile(
        **{
            key: fields.text(key)
            for key in ("job", "source", "hvdtrain", "torch", "date", "backend", "device")
        },
        **{key: fields.text(key) for key in ("device_name", "precision", "compression")},
        device_memory_bytes=fields.maybe_count("device_memory_bytes", 1),
        size=size,
        hosts=hosts,
        global_batch=fields.count("global_batch", 1),
        accumulate=fields.count("accumulate", 1),
        samples_per_epoch=fields.maybe_count("samples_per_epoch", 1),
        epochs=fields.maybe_number("epochs"),
        total_steps=fields.maybe_count("total_steps", 1),
        steps=steps,
        step_s=StepTimes(**{name: step.number(name, 1e-9) for name in names}),
        ranks=ranks,
        gradients=_gradients(fields.object("gradients")),
        fused=tuple(
            FusedBuffer(one.count("bytes", 1), one.count("num_tensors")) for one in fields.objects("fused")
        ),
        loader=_loader(fields.object("loader")),
        memory=_memory(fields.object("memory")),
        gpu=_gpu(fields.maybe_object("gpu")),
        noise_scale=_noise_scale(fields.maybe_object("noise_scale")),
        samples_per_s=fields.number("samples_per_s", 1e-9),
        calibration=parse_calibration(fields.maybe_object("calibration")),
    )


def _rank(fields: Fields) -> RankTimes:
    names = ("load_s", "forward_s", "backward_s", "exposed_s", "optimizer_s", "wait_s", "other_s", "step_s")
    times = {name: fields.number(name) for name in (*names, "compute_std_s")}
    step, parts = times["step_s"], sum(times[name] for name in names[:-1])
    if step <= 0 or abs(parts - step) > _SUM_TOLERANCE * step:
        raise fields.wrong("step_s", f"is {step:g}, but its parts sum to {parts:g}")
    if step - times["exposed_s"] - times["wait_s"] <= 0:
        raise fields.wrong(
            "step_s", f"is {step:g}, all of it waiting and communication: the rank does nothing"
        )
    return RankTimes(fields.count("rank"), fields.text("host"), **times)


def _gradients(fields: Fields) -> Gradients:
    ready = tuple(ReadyGradient(one.count("bytes"), one.number("ready_s")) for one in fields.objects("ready"))
    if any(after.ready_s < before.ready_s for before, after in pairwise(ready)):
        raise fields.wrong("ready", "is not in the order in which the gradients are ready")
    return Gradients(
        fields.count("num_tensors"), fields.count("num_parameters"), fields.count("bytes", 1), ready
    )


def _loader(fields: Fields) -> Loader:
    return Loader(
        fields.count("num_workers"),
        fields.maybe_number("capacity_samples_per_s", 1e-9),
        fields.maybe_number("cpu_s_per_sample"),
        fields.number("cores_per_rank", 1e-9),
    )


def _memory(fields: Fields) -> Memory:
    sizes = {
        f"{name}_bytes": fields.count(f"{name}_bytes")
        for name in ("parameters", "gradients", "optimizer", "buffers")
    }
    return Memory(**sizes, peak_bytes=fields.maybe_count("peak_bytes"))


def _gpu(fields: Fields | None) -> Gpu | None:
    if fields is None:
        return None
    utilisation = fields.number("utilisation")
    if utilisation > 1:
        raise fields.wrong("utilisation", f"is {utilisation:g}", "from 0 to 1")
    return Gpu(utilisation, fields.number("power_w"), fields.number("energy_j_per_step"))


def _noise_scale(fields: Fields | None) -> NoiseScale | None:
    return None if fields is None else NoiseScale(fields.number("simple"), fields.count("num_steps", 1))


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON reads them back."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
