"""Tells by its content what a user gave, and makes its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvdtrain.errors import InputError
from hvdtrain.report.advice_record import AdviceRecord, parse_advice
from hvdtrain.report.advice_sections import advice_facts, advice_sections, advice_tiles
from hvdtrain.report.batch_note import note_on_profile, note_on_run
from hvdtrain.report.content import Gate, Report, Section
from hvdtrain.report.curves import curve_sections
from hvdtrain.report.profile_sections import profile_facts, profile_sections, profile_tiles
from hvdtrain.report.run_record import RunRecord, read_run
from hvdtrain.report.run_sections import run_facts, run_lead, run_state, run_tiles
from hvdtrain.scaling.fields import Fields, read_document
from hvdtrain.scaling.profile import Profile, is_profile, parse_profile

LEGAL = "a run directory, a profile.json of hvdtrain profile, a document of hvdtrain advise --json"


def make_report(path: Path) -> Report:
    """The report of a run directory, a profile or advice, whichever the path holds.

    Raises:
        InputError: There is nothing, or it is none of these, or it is damaged; names the file and the key.
    """
    try:
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {told}", where=str(path)) from None
    if not is_there:
        raise InputError("does not exist", where=str(path), legal=LEGAL)
    if is_folder:
        return report_of_run(read_run(path))
    if not path.is_file():
        raise InputError("is no regular file", where=str(path), legal=LEGAL)
    return report_of_document(
        read_document(path, "report's input", "hvdtrain profile or hvdtrain advise --json")
    )


def report_of_document(fields: Fields) -> Report:
    """The report of a JSON document of schema 1, by its kind."""
    values: dict[str, Any] = fields.values
    if values.get("kind") == "advice":
        return report_of_advice(parse_advice(fields))
    if is_profile(values):
        return report_of_profile(parse_profile(fields))
    if values.get("kind") == "allreduce":
        do = "give it to hvdtrain advise PROFILE --network FILE, and report what that writes"
        raise InputError("is a network file, which has no report of its own", where=fields.file, do=do)
    raise InputError("is neither a profile nor advice", where=fields.file, legal=LEGAL)


def report_of_run(run: RunRecord) -> Report:
    """A run: how it went, then its profile and the advice that lies with it."""
    name = run.job.get("name")
    sections = [*curve_sections(run)]
    if run.advice:
        sections += advice_sections(run.advice)
    if run.profile:
        sections += profile_sections(run.profile)
    told = run_facts(run)
    sections += [told] if told else [profile_facts(run.profile)] if run.profile else []
    tiles = run_tiles(run) or (profile_tiles(run.profile) if run.profile else ())
    title = name if isinstance(name, str) and name else run.path.resolve().name
    lead = run_lead(run) or (run.advice.verdict if run.advice else "")
    notes = (note_on_run(run), *run.notes, *(run.advice.notes if run.advice else ()))
    return Report(
        "run", title, run_state(run), lead, tiles, tuple(sections), _gates(run.advice), _told(*notes)
    )


def report_of_profile(profile: Profile) -> Report:
    """A profile."""
    sections = (*profile_sections(profile), profile_facts(profile))
    notes = _told(note_on_profile(profile))
    return Report("profile", profile.job, None, "", profile_tiles(profile), sections, notes=notes)


def report_of_advice(advice: AdviceRecord) -> Report:
    """Advice: the verdict first."""
    sections: tuple[Section, ...] = (*advice_sections(advice), advice_facts(advice))
    title = advice.job or "Measured throughputs"
    gates = _gates(advice)
    return Report("advice", title, None, advice.verdict, advice_tiles(advice), sections, gates, advice.notes)


def _told(*notes: str) -> tuple[str, ...]:
    return tuple(note for note in notes if note)


def _gates(advice: AdviceRecord | None) -> tuple[Gate, ...]:
    return tuple(Gate(sentence, holds) for sentence, holds in advice.gates) if advice else ()
