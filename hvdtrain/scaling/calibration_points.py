"""What calibration runs told of a profile: measured steps on more ranks, and the network they ran on."""

from __future__ import annotations

from dataclasses import dataclass

from hvdtrain.scaling.fields import Fields


@dataclass(frozen=True)
class MeasuredStep:
    """A step that was measured on some ranks of the profiled job.

    Attributes:
        name: The run that measured it.
        ranks: How many ranks took part.
        ranks_per_node: Ranks of the fullest node.
        step_s: Mean time of a step over ranks and steps.
        wait_s: Part of it that a rank waited for slower ones, mean over ranks.
        step_error: Sampling error (one standard deviation) of the logarithm of ``step_s``.
        wait_error: Sampling error of ``wait_s``, as a share of the step.
    """

    name: str
    ranks: int
    ranks_per_node: int
    step_s: float
    wait_s: float
    step_error: float
    wait_error: float


@dataclass(frozen=True)
class Calibration:
    """What the runs measured, and where.

    Attributes:
        network: The network on which they ran, in the words of ``--network``; None where nobody told.
        measured: Network files that they wrote; what these have measured holds in place of the above.
        gpus_per_node: GPUs of a full node.
        steps: The measured steps.
    """

    network: str | None
    measured: tuple[str, ...]
    gpus_per_node: int
    steps: tuple[MeasuredStep, ...]


def parse_calibration(fields: Fields | None) -> Calibration | None:
    """Checks a profile's ``calibration``; None where it has none.

    Raises:
        InputError: A value is missing or impossible; names file and key.
    """
    if fields is None:
        return None
    network = None if fields.values.get("network") is None else fields.text("network")
    measured = fields.values.get("measured", [])
    if not (isinstance(measured, list) and all(isinstance(one, str) and one for one in measured)):
        raise fields.wrong("measured", "must be a list of files")
    steps = tuple(_step(one) for one in fields.objects("steps"))
    return Calibration(network, tuple(measured), fields.count("gpus_per_node", 1), steps)


def _step(fields: Fields) -> MeasuredStep:
    ranks = fields.count("ranks", 2)
    on_node = fields.count("ranks_per_node", 1)
    if on_node > ranks:
        raise fields.wrong("ranks_per_node", f"is {on_node} of {ranks} ranks", f"at most {ranks}")
    names = ("step_error", "wait_error")
    return MeasuredStep(
        fields.text("name"),
        ranks,
        on_node,
        fields.number("step_s", 1e-9),
        fields.number("wait_s"),
        **{name: fields.number(name) for name in names},
    )
