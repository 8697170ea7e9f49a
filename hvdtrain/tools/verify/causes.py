"""Why two runs differ, from the evidence in their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hvdtrain.config import Job
from hvdtrain.tools.verify.compare import Finding
from hvdtrain.tools.verify.gradient_causes import gradient_cause
from hvdtrain.tools.verify.records import Record, StepFacts

UNKNOWN = "cannot tell"
RANDOM = "dropout or other randomness in the forward pass"
_MAX_NAMED = 6
_SPREAD = 1e-3  # relative difference of optimizer state that is no rounding


@dataclass(frozen=True)
class Cause:
    """The likely cause of a difference.

    Attributes:
        name: In a word or a few; ``UNKNOWN`` where the evidence does not tell.
        evidence: What was seen.
        advice: What to do; empty where there is none.
    """

    name: str
    evidence: str
    advice: str = ""


def explain(finding: Finding, reference: Record, other: Record, job: Job, tolerance: float) -> Cause:
    """The likely cause of the first difference between two runs.

    Args:
        finding: That difference.
        reference: Its run that the other was compared with.
        other: The run that differs.
        job: Of both.
        tolerance: Of the comparison.
    """
    step, what = finding.step, finding.what
    if what.startswith("initial"):
        return _initial_cause(finding)
    if what == "replicas":
        return _replica_cause(step, reference if finding.run == reference.run else other)
    if what == "learning rate":
        assert finding.values is not None
        return Cause(
            "learning rate",
            f"{finding.values[0]:g} on {reference.run.text}, {finding.values[1]:g} on {other.run.text}, "
            "with the same global batch",
        )
    ours, theirs = reference.step(step), other.step(step)
    if what == "samples":
        return _sampler_cause(ours, theirs, job)
    if cause := _content_cause(step, *sorted((reference, other), key=lambda record: record.run.size)):
        return cause
    if what == "clipped gradient":
        return Cause("clipping", "the reduced gradients agree, and clipped they do not")
    if what == "parameter":
        return _optimizer_cause(step, reference, other)
    if what in ("gradient", "loss"):
        found = gradient_cause(step, reference, other, tolerance) if what == "gradient" else None
        return Cause(*found) if found else _forward_cause(what, other)
    if what == "buffer":
        return _buffer_cause(finding, other)
    return Cause(UNKNOWN, f"learning rates and samples agree, the {what} does not")


def _replica_cause(step: int, record: Record) -> Cause:
    sums = [share.checksum for share in record.step(step).ranks]
    ranks = ", ".join(str(rank) for rank, one in enumerate(sums) if one != sums[0])
    return Cause(
        "replicas",
        f"after step {step} of {record.run.text} rank {ranks} does not hold rank 0's parameters",
        "something changes parameters, gradients or the learning rate on some ranks only",
    )


def _initial_cause(finding: Finding) -> Cause:
    what = finding.what.removeprefix("initial ")
    shape = "they have other tensors" if finding.absolute == float("inf") else "before the first step"
    return Cause(
        "initial parameters",
        f"the {what}s differ {shape}: the model's start depends on the number of ranks",
        "build the model from the seed alone: no rank, no size and no clock in its factory",
    )


def _sampler_cause(ours: StepFacts, theirs: StepFacts, job: Job) -> Cause:
    mine, its = (Counter(i for share in facts.ranks for i in share.indices) for facts in (ours, theirs))
    told = _told("missing", (mine - its).elements()) + _told(
        "more than once, or too many", (its - mine).elements()
    )
    is_padded = job.batch.tail == "pad"
    advice = "batch.tail=pad fills the last step with copies, as many as the ranks need: use weight or drop"
    return Cause("sampler", f"samples {'; '.join(told)}", advice if is_padded else "")


def _content_cause(step: int, reference: Record, other: Record) -> Cause | None:
    """Whether the same indices gave other values: compares checksums of what was read."""
    right = Counter(read.content for read in _reads(reference.step(step)))
    reads = _reads(other.step(step))
    extra = Counter(read.content for read in reads) - right
    if not extra:
        return None
    known: dict[int, set[int]] = {}
    for number in range(1, reference.num_steps + 1):
        for read in _reads(reference.step(number)):
            known.setdefault(read.content, set()).add(read.sample)
    swapped = [read for read in reads if read.content in known and read.sample not in known[read.content]]
    if swapped:
        first = swapped[0]
        return Cause(
            "sampler",
            f"{_on_ranks(swapped, other)} the data set gives other samples than those that are asked for: "
            f"for {first.sample} it gives {min(known[first.content])}; so it is with {len(swapped)} of "
            f"{len(reads)} samples or more",
            "the data set must give the same sample for an index on every rank: it looks at the rank, or "
            "splits the data itself",
        )
    changed = [read for read in reads if read.content in extra]
    return Cause(
        "data",
        f"{len(changed)} of {len(reads)} samples have other values than on {reference.run.text}, "
        f"{_on_ranks(changed, other)}: {_shown([read.sample for read in changed])}",
        "make a sample a function of its index and of random, numpy.random and torch's own generators, which "
        "are seeded for each sample: the data set draws from another one, or looks at the rank",
    )


class _Read(NamedTuple):
    """A sample that a rank asked for, and the checksum of what it got."""

    rank: int
    sample: int
    content: int


def _reads(facts: StepFacts) -> list[_Read]:
    """What the ranks read, without those that could not read all of theirs."""
    return [
        _Read(rank, *pair)
        for rank, share in enumerate(facts.ranks)
        if len(share.indices) == len(share.contents)
        for pair in zip(share.indices, share.contents, strict=True)
    ]


def _on_ranks(reads: Iterable[_Read], record: Record) -> str:
    ranks = sorted({read.rank for read in reads})
    shown = ", ".join(map(str, ranks[:_MAX_NAMED])) + (", ..." if len(ranks) > _MAX_NAMED else "")
    return f"on rank{'s' if len(ranks) > 1 else ''} {shown} of {record.run.text}"


def _forward_cause(what: str, other: Record) -> Cause:
    """Parameters and samples agree; what the model makes of them does not."""
    facts = other.facts
    begin = "parameters, samples and their values agree, the loss does not"
    if what == "gradient":
        begin = "parameters, samples and losses agree, the gradients do not"
    batchnorms, drawing = facts["batchnorms"], facts["random_layers"]
    if facts["is_random"]:
        layers = f"; it has {_layers(drawing)}" if drawing else ""
        also = (
            f"; it also normalises over each rank's own batch in {_layers(batchnorms)}" if batchnorms else ""
        )
        return Cause(
            RANDOM,
            f"{begin}, and two passes of the same batch on one rank with other seeds differ{layers}{also}",
            "each rank draws numbers of its own, which is right, and not repeatable on another number of "
            "ranks: verify with dropout 0",
        )
    if batchnorms and (facts["mixes_samples"] or what != "loss"):
        verb = "normalises" if len(batchnorms) == 1 else "normalise"
        return Cause(
            "BatchNorm",
            f"{begin}: {_layers(batchnorms)} {verb} over the samples of one rank, so a sample's output "
            "depends on which others are on its rank",
            "set sync_batchnorm: true",
        )
    if facts["mixes_samples"]:
        return Cause(
            "batch statistics",
            f"{begin}, and a sample's output depends on the others of its rank's batch, though the model has "
            "no layer that is known to normalise over it",
            "the model must treat each sample on its own, or reduce its statistics over all ranks",
        )
    return Cause(
        UNKNOWN,
        f"{begin}; the model draws no random numbers, and its samples do not influence each other: it may "
        "look at the rank or the number of ranks, or keep state from one step to the next",
    )


def _optimizer_cause(step: int, reference: Record, other: Record) -> Cause:
    """Gradients as the optimizer got them and the learning rate agree; the step does not."""
    begin = f"gradients and learning rate of step {step} agree, the parameters after it do not"
    ours, theirs = reference.step(step).state, other.step(step).state
    worst, where = 0.0, ""
    for kind in sorted({*ours, *theirs}):
        rows = (table.get(kind, [0.0] * len(reference.parameters)) for table in (ours, theirs))
        for name, mine, its in zip(reference.parameters, *rows, strict=True):
            spread = abs(mine - its) / max(mine, its, 1e-30)
            if spread > max(worst, _SPREAD):
                worst, where = spread, f"{kind} of {name} has norm {mine:.6g} and {its:.6g}"
    state = f"; {where} ({reference.run.text}, {other.run.text})" if where else "; its state's norms agree"
    return Cause(
        "optimizer state", begin + state, "the optimizer, or a hook on it, does something else there"
    )


def _buffer_cause(finding: Finding, other: Record) -> Cause:
    batchnorms = other.facts["batchnorms"]
    if any(finding.name.startswith(f"{name}." if name else "") for name in batchnorms):
        return Cause(
            "BatchNorm",
            f"losses, gradients and parameters agree; the running statistics of {_layers(batchnorms)} are "
            "those of one rank's samples",
            "set sync_batchnorm: true",
        )
    return Cause(
        UNKNOWN, f"losses, gradients and parameters agree; the model itself changes the buffer {finding.name}"
    )


def _told(what: str, indices: Iterable[int]) -> list[str]:
    found = sorted(indices)
    return [f"{what}: {_shown(found)}"] if found else []


def _shown(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:_MAX_NAMED]))
    return shown if len(indices) <= _MAX_NAMED else f"{shown}, ... ({len(indices)} samples)"


def _layers(names: Sequence[str]) -> str:
    shown = ", ".join(name or "the model" for name in names[:3])
    return (
        f"layer {shown}"
        if len(names) == 1
        else f"{len(names)} layers ({shown}{', ...' if len(names) > 3 else ''})"
    )
