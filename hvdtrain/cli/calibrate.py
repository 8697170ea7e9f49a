"""``hvdtrain calibrate``: the small runs that narrow a prediction most, their scripts, and what they told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hvdtrain.cli.calibrate_scripts import script_options
from hvdtrain.cli.option_types import FilledPath, FilledText, RankCount
from hvdtrain.cli.program_words import PROGRAM, ProgramCommand
from hvdtrain.errors import ExitCode, InputError

_DEFAULT_GPUS = 64
_OF_PROPOSAL = ("profile", "network", "max_gpus", "gpus_per_node", "runs", "as_json")
_SPELLED = {"overrides": "set", "modules": "module"}
_EXAMPLES = (
    "\b\n"
    "hvdtrain calibrate profile.json --network 25GbE --max-gpus 32\n"
    "hvdtrain calibrate profile.json --network 25GbE --job job.yaml --out calibration\n"
    "hvdtrain calibrate profile.json --out calibration -- python script.py --lr 0.1\n"
    "hvdtrain calibrate --read calibration\n"
    "hvdtrain advise calibration/calibrated.json --max-gpus 32\n"
)


@click.command(cls=ProgramCommand, epilog=_EXAMPLES, options_metavar="[OPTIONS] [PROFILE] [-- PROGRAM ...]")
@click.argument("profile", required=False, type=FilledPath(), metavar="")
@click.option("--read", "read", type=FilledPath(), metavar="DIR", help="Read what the runs of DIR measured.")
@click.option(
    "--network", type=FilledText(), metavar="FILE|NAME", help="The network, as for `hvdtrain advise`."
)
@click.option("--max-gpus", type=RankCount(), help="Largest number of GPUs to predict; 64 if not given.")
@click.option("--gpus-per-node", type=RankCount(), help="GPUs of a full node; 8 if not told.")
@click.option(
    "--runs", type=click.IntRange(1, 3), default=3, show_default=True, help="Runs to propose, at most."
)
@click.option("--out", type=FilledPath(), metavar="DIR", help="Write the runs' batch scripts into DIR.")
@script_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def command(
    ctx: click.Context, /, profile: Path | None, read: Path | None, as_json: bool, **options: Any
) -> int:
    """Propose the smallest runs that narrow a prediction most, and read what they measured.

    PROFILE is the profile.json of `hvdtrain profile`. Of allreduces and profiles on few ranks the cheapest
    are proposed that make the bands of `hvdtrain advise PROFILE` about as narrow as any such runs can. With
    --out each becomes a script for sbatch; --read DIR takes their results and writes DIR/calibrated.json, a
    profile that `hvdtrain advise` reads.
    """
    program: tuple[str, ...] | None = ctx.meta.get(PROGRAM)
    if (profile is None) == (read is None):
        what = "a profile and --read, both" if profile else "neither a profile nor --read"
        raise InputError(f"{what} given", legal="PROFILE, or --read DIR")
    if read is not None:
        _refuse_others(ctx, program)
        document = _read(read)
    else:
        assert profile is not None
        _check_out(ctx, options["out"], program)
        document = _propose(profile, options, program)
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        from hvdtrain.cli.calibrate_tables import show_proposal, show_results

        (show_results if read else show_proposal)(document)
    return int(ExitCode.DONE)


def _refuse_others(ctx: click.Context, program: tuple[str, ...] | None) -> None:
    """With --read the plan says all: an option that would change nothing is not passed over in silence."""
    for name in _given(ctx):
        if name not in ("read", "as_json"):
            raise InputError("goes with PROFILE only", where=_spelled(name), do="omit it")
    if program is not None:
        raise InputError("a program goes with PROFILE only", do="omit the words behind --")


def _check_out(ctx: click.Context, folder: Path | None, program: tuple[str, ...] | None) -> None:
    """Refuses what is said of scripts where none are written."""
    if folder is not None:
        return
    for name in _given(ctx):
        if name not in _OF_PROPOSAL:
            raise InputError("goes with --out only", where=_spelled(name), do="give --out DIR, or omit it")
    if program is not None:
        raise InputError("a program goes with --out only", do="give --out DIR, or omit the words behind --")


def _given(ctx: click.Context) -> list[str]:
    default = click.core.ParameterSource.DEFAULT
    return [name for name in ctx.params if ctx.get_parameter_source(name) is not default]


def _spelled(name: str) -> str:
    return f"--{_SPELLED.get(name, name).replace('_', '-')}"


def _propose(path: Path, options: dict[str, Any], program: tuple[str, ...] | None) -> dict[str, Any]:
    from hvdtrain.cli.calibrate_scripts import check_folder, scripts_of, write_folder
    from hvdtrain.scaling.calibration_document import proposal_document
    from hvdtrain.scaling.calibration_runs import propose
    from hvdtrain.scaling.calibration_setting import gpus_of_node, question_of, setting_of
    from hvdtrain.scaling.profile import read_profile

    profile = read_profile(path)
    check_folder(options["out"])
    if profile.calibration and options["network"]:
        told = "the profile is calibrated, on a network that it names"
        raise InputError(told, where="--network", do="omit it, or calibrate a profile of one rank anew")
    setting = setting_of(profile, options["network"], gpus_of_node(profile, options["gpus_per_node"]))
    question = question_of(profile, setting, options["max_gpus"] or _DEFAULT_GPUS)
    proposal = propose(question, options["runs"])
    document = proposal_document(profile, _settled(options["network"]), proposal)
    if options["out"] is not None and document["runs"]:
        scripts = scripts_of(document, profile, options, program)
        write_folder(options["out"], document, profile, scripts)
        document["folder"] = str(options["out"])
    return document


def _settled(network: str | None) -> str | None:
    """A network file by its whole path, for a folder that is read from anywhere; a name as it is."""
    if network is None:
        return None
    if Path(network).is_file():
        return str(Path(network).absolute())
    path, plus, link = network.rpartition("+")
    return f"{Path(path).absolute()}{plus}{link}" if Path(path).is_file() else network


def _read(folder: Path) -> dict[str, Any]:
    from hvdtrain.files import write_atomically
    from hvdtrain.scaling.calibration_document import reading_document
    from hvdtrain.scaling.calibration_results import CALIBRATED, read_results

    try:
        next(folder.iterdir(), None)
    except (FileNotFoundError, NotADirectoryError):
        pass  # told in the words of those who know what belongs there
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(folder)) from None
    reading = read_results(folder)
    target = folder / CALIBRATED
    try:
        write_atomically(target, json.dumps(reading.profile.document()) + "\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(target)) from None
    return reading_document(reading, str(target))
