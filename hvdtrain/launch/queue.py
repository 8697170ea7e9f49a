"""What Slurm says of jobs: argv for squeue, sacct, scontrol and scancel, and readers of what they print.

Sources: squeue(1), "JOB STATE CODES"; sacct(1); scontrol(1) of Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hvdtrain.errors import ExitCode, InputError, LaunchError
from hvdtrain.process import Command, Completed, command, run

UNKNOWN = "UNKNOWN"
ACTIVE = frozenset(
    {
        *("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "RESIZING", "SIGNALING"),
        *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "STAGE_OUT"),
    }
)
ENDED = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("OUT_OF_MEMORY", "REVOKED"),
    }
)

_SEPARATOR = "\x1f"  # no name or reason holds it
_SQUEUE = _SEPARATOR.join(("%i", "%T", "%M", "%D", "%P", "%R", "%j"))
_SACCT = "JobID,State,Elapsed,NNodes,Partition,ExitCode,JobName"
_ID = re.compile(r"\d+(_(\d+|\[[^\]]*\]))?(\+\d+)?")
_JOB = re.compile(r"\d+(_\d+)?(\+\d+)?")
_TIMEOUT_S = 60.0
_NO_ELEMENT = "4294967294"  # what %a is in the name of a log of elements that wait together


class NoAnswerError(LaunchError):
    """Slurm's controller does not answer; what it would say of a job is not known."""


@dataclass(frozen=True)
class JobState:
    """One job, or one element of an array of jobs.

    Attributes:
        job: Its id: ``12``, ``12_3``, or ``12_[4-7]`` for elements that wait together.
        state: One of ``ACTIVE`` or ``ENDED``, or ``UNKNOWN``.
        elapsed: Time that it ran, as Slurm writes it.
        nodes: Number of nodes.
        partition: Its partition.
        detail: Why it waits, or where it runs.
        name: Its name.
        code: What the command that waited for it should end with; None while it has not ended.
        log: The file of its output; empty where nothing tells it.
    """

    job: str
    state: str
    elapsed: str = ""
    nodes: str = ""
    partition: str = ""
    detail: str = ""
    name: str = ""
    code: int | None = None
    log: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state in ENDED


def check_job(text: str) -> str:
    """A job's id as the user wrote it.

    Raises:
        InputError: It is none.
    """
    if not _JOB.fullmatch(text):
        raise InputError(f"no job id: {text!r}", legal="12, or 12_3 of an array")
    return text


def own_jobs(environ: Mapping[str, str]) -> list[JobState]:
    """All jobs of this user that Slurm still remembers, oldest first.

    Raises:
        LaunchError: Slurm does not answer.
    """
    done = _ask(command("squeue", "--noheader", "--me", "--states=all", f"--format={_SQUEUE}"), environ)
    if done.returncode:
        raise LaunchError(f"squeue failed: {_last_line(done)}")
    return with_codes(sorted(parse_squeue(done.stdout), key=_order), environ)


def find_jobs(job: str, environ: Mapping[str, str]) -> list[JobState]:
    """The job, or all elements of an array of jobs; one that nobody knows is UNKNOWN.

    Raises:
        NoAnswerError: Slurm's controller does not answer, and so nothing is known of the job.
    """
    argv = ("squeue", "--noheader", f"--jobs={job}", "--states=all", f"--format={_SQUEUE}")
    done = _ask(command(*argv), environ)
    found = parse_squeue(done.stdout)
    if not found:
        found = parse_sacct(_sacct(job, environ)) or parse_scontrol(_scontrol(job, environ))
    if not found and done.returncode and "Invalid job id" not in done.stderr:
        raise NoAnswerError(f"squeue failed: {_last_line(done)}")
    return with_codes(sorted(found, key=_order), environ) or [JobState(job, UNKNOWN)]


def ended_jobs(job: str, environ: Mapping[str, str]) -> list[JobState]:
    """The job, or the elements of an array of jobs, that ended and that accounting knows."""
    return [one for one in parse_sacct(_sacct(job, environ)) if one.has_ended]


def with_codes(jobs: Sequence[JobState], environ: Mapping[str, str]) -> list[JobState]:
    """The jobs, with what sacct, or without accounting scontrol, says of those that ended."""
    asked = sorted({re.split(r"[_+]", job.job)[0] for job in jobs if job.has_ended and job.code is None})
    if not asked:
        return list(jobs)
    told = {job.job: job for job in parse_sacct(_sacct(",".join(asked), environ))}
    for missing in (one for one in asked if one not in {re.split(r"[_+]", job)[0] for job in told}):
        told |= {job.job: job for job in parse_scontrol(_scontrol(missing, environ))}
    return [replace(job, code=told[job.job].code) if job.job in told else job for job in jobs]


def log_of(job: str, environ: Mapping[str, str]) -> list[str]:
    """The output files of a job or of the elements of an array, as scontrol tells them."""
    files = (found.log for found in parse_scontrol(_scontrol(job, environ)))
    return [file for file in dict.fromkeys(files) if file and _NO_ELEMENT not in file]


def cancel(jobs: Sequence[str], environ: Mapping[str, str]) -> None:
    """Ends jobs, or takes them out of the queue.

    Raises:
        LaunchError: Slurm refused.
    """
    done = _ask(command("scancel", "--verbose", *jobs), environ)
    if done.returncode or "error:" in done.stderr:
        raise LaunchError(f"scancel failed: {_last_line(done)}")


def parse_state(text: str) -> str:
    """A state's name: ``CANCELLED by 0`` and ``COMPLETED+`` too; UNKNOWN for one that nobody knows."""
    word = text.strip().partition(" ")[0].rstrip("+").upper()
    return word if word in ACTIVE | ENDED else UNKNOWN


def parse_squeue(text: str) -> list[JobState]:
    """Reads the lines of squeue in our format."""
    jobs = []
    for job, state, elapsed, nodes, partition, detail, name in _records(text, 7):
        jobs.append(JobState(job, parse_state(state), elapsed, nodes, partition, detail, name))
    return jobs


def parse_sacct(text: str) -> list[JobState]:
    """Reads the lines of sacct in our format; steps are left out."""
    jobs = []
    for job, state, elapsed, nodes, partition, code, name in _records(text, 7):
        known = parse_state(state)
        jobs.append(JobState(job, known, elapsed, nodes, partition, "", name, exit_code(known, code)))
    return jobs


def parse_scontrol(text: str) -> list[JobState]:
    """Reads what ``scontrol show job`` prints: a paragraph for each job or element."""
    jobs = []
    for paragraph in re.split(r"\n(?=JobId=)", text):
        match = re.match(r"JobId=(\d+)(?: ArrayJobId=(\d+) ArrayTaskId=(\S+))?", paragraph)
        if match is None:
            continue
        job = match[1] if match[2] is None else f"{match[2]}_{_element(match[3])}"
        state = parse_state(_told(paragraph, "JobState"))
        jobs.append(
            JobState(
                job,
                state,
                elapsed=_told(paragraph, "RunTime"),
                nodes=_told(paragraph, "NumNodes"),
                partition=_told(paragraph, "Partition"),
                detail=_told(paragraph, "Reason"),
                name=(re.search(r"JobName=(.*)", paragraph) or ("", ""))[1],
                code=exit_code(state, _told(paragraph, "ExitCode")),
                log=(re.search(r"^\s*StdOut=(.*)$", paragraph, re.MULTILINE) or ("", ""))[1],
            )
        )
    return jobs


def exit_code(state: str, text: str) -> int | None:
    """What to end with for a job that ended so; None if it has not.

    Args:
        state: Its state.
        text: Slurm's ``CODE:SIGNAL``.
    """
    if state not in ENDED:
        return None
    code, _, number = text.partition(":")
    if number.isdecimal() and int(number):
        return 128 + int(number)
    if code.isdecimal() and int(code):
        return int(code)
    return int(ExitCode.DONE if state == "COMPLETED" else ExitCode.FAILED)


def _records(text: str, num_fields: int) -> Iterable[list[str]]:
    """The records of a listing: a name, the last field, may hold newlines."""
    records: list[list[str]] = []
    for line in text.splitlines():
        fields = line.split(_SEPARATOR, num_fields - 1)
        if len(fields) == num_fields and _ID.fullmatch(fields[0]):
            records.append(fields)
        elif records:
            records[-1][-1] += f"\n{line}"
    return records


def _element(text: str) -> str:
    return text if text.isdecimal() else f"[{text}]"


def _told(paragraph: str, key: str) -> str:
    found = re.search(rf"\b{key}=(\S*)", paragraph)
    return found[1] if found else ""


def _order(job: JobState) -> list[int]:
    """By number, and elements of an array by theirs: 8_2 before 8_10."""
    return [int(number) for number in re.findall(r"\d+", job.job)]


def _sacct(jobs: str, environ: Mapping[str, str]) -> str:
    argv = ("sacct", "--noheader", "--parsable2", f"--delimiter={_SEPARATOR}", "--allocations")
    done = _ask(command(*argv, f"--format={_SACCT}", f"--jobs={jobs}"), environ)
    return "" if done.returncode else done.stdout


def _scontrol(job: str, environ: Mapping[str, str]) -> str:
    done = _ask(command("scontrol", "show", "job", job), environ)
    return "" if done.returncode else done.stdout


def _ask(cmd: Command, environ: Mapping[str, str]) -> Completed:
    try:
        return run(cmd, timeout_s=_TIMEOUT_S, base_env=environ)
    except FileNotFoundError:
        if cmd.argv[0] == "sacct":  # some sites install it on login nodes only
            return Completed(127, "", "")
        raise LaunchError(f"there is no Slurm here: {cmd.argv[0]} is not installed") from None
    except TimeoutError as error:
        if cmd.argv[0] == "sacct":  # the controller may know all the same
            return Completed(124, "", str(error))
        raise NoAnswerError(str(error)) from None


def _last_line(done: Completed) -> str:
    return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
