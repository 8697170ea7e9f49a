"""From a profile to what its prediction rests on: job, network, and what runs told of the unknowns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hvdtrain.scaling.calibration_learning import Place, learn, sampling_error
from hvdtrain.scaling.calibration_runs import Question, make_targets
from hvdtrain.scaling.calibration_unknowns import PRIOR, Belief
from hvdtrain.scaling.forecast import counts_up_to
from hvdtrain.scaling.job import Job, make_job
from hvdtrain.scaling.network import Network, read_network
from hvdtrain.scaling.profile import Profile
from hvdtrain.scaling.step import calibrate


@dataclass(frozen=True)
class Setting:
    """What a prediction is made from.

    Attributes:
        job: The job of the profile.
        network: The network that is predicted for.
        belief: What is known of the unknowns of both.
    """

    job: Job
    network: Network
    belief: Belief


def gpus_of_node(profile: Profile, told: int | None) -> int:
    """GPUs of a full node: as told, as calibrated, as profiled on several nodes, or 8."""
    if told:
        return told
    if profile.calibration:
        return profile.calibration.gpus_per_node
    on_node = max(host.ranks for host in profile.hosts)
    return on_node if len(profile.hosts) > 1 else max(on_node, 8)


def library_of(profile: Profile) -> str:
    """The engine whose own fits of a network file come first."""
    return "torch" if profile.backend == "ddp" else "horovod"


def setting_of(profile: Profile, network: str | None, gpus_per_node: int) -> Setting:
    """The setting of a prediction.

    A calibrated profile brings its network with it. Where another is asked about, what its runs told of the
    links does not hold for that one; what they told of the rest does.

    Raises:
        InputError: A network file is missing or wrong, or a network's name is unknown.
    """
    library, known = library_of(profile), profile.calibration
    if known is None:
        wires = read_network(network, gpus_per_node, library)
        return Setting(calibrate(make_job(profile), profile, wires), wires, PRIOR)
    own = with_measured(read_network(known.network, gpus_per_node, library), known.measured, library)
    job = calibrate(make_job(profile), profile, own)
    belief = learn(job, own, known.steps)
    if network is None:
        return Setting(job, own, belief)
    wires = read_network(network, gpus_per_node, library)
    return Setting(calibrate(make_job(profile), profile, wires), wires, belief.without_links())


def with_measured(network: Network, files: Sequence[str], library: str) -> Network:
    """The network with the levels that files of ``hvdtrain bench allreduce`` have measured."""
    for file in files:
        found = read_network(str(Path(file)), network.gpus_per_node, library)
        if found.inside is not found.between and found.inside.is_measured:
            network = replace(network, inside=found.inside)
        if found.between.is_measured:
            network = replace(network, between=found.between)
    return network


def question_of(profile: Profile, setting: Setting, max_gpus: int) -> Question:
    """What is to be narrowed: the bands of all rows up to ``max_gpus``."""
    counts = counts_up_to(max_gpus, setting.network.gpus_per_node)
    error = sampling_error(profile)
    return Question(
        setting.job,
        setting.network,
        setting.belief,
        make_targets(setting.job, setting.network, setting.belief, counts),
        error,
        error * profile.steps**0.5,
        Place(profile.size, max(host.ranks for host in profile.hosts)),
    )
