"""``hvdtrain submit``: a training or any program as a Slurm job."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvdtrain.cli.launch_options import LaunchOptions, check_options, launch_options, with_site
from hvdtrain.cli.option_types import FilledPath, FilledText
from hvdtrain.cli.requeue import Requeued, max_requeues, requeue_options, requeued
from hvdtrain.cli.restarts import check_restarts, restart_options
from hvdtrain.cli.sbatch_options import num_ranks, sbatch_options, slurm_options, with_named
from hvdtrain.errors import ExitCode, InputError, LaunchError

if TYPE_CHECKING:
    from hvdtrain.launch.sbatch import BatchJob
    from hvdtrain.launch.site import Site


class _Submit(click.Command):
    """Takes options after a job file; after any other first word they are the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        words = self.make_parser(ctx).parse_args(list(args))[0].get("words")  # no tuple if there are none
        ctx.allow_interspersed_args = isinstance(words, tuple) and _is_job_file(words[0])
        return super().parse_args(ctx, args)


def _is_job_file(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))


@click.command(cls=_Submit)
@click.option("--name", type=FilledText(), help="The job's name; default: that of the job file or program.")
@slurm_options
@launch_options
@click.option("--exclusive", is_flag=True, help="Whole nodes.")
@requeue_options
@restart_options
@click.option("--module", "modules", multiple=True, metavar="NAME", help="Environment module to load.")
@click.option("--setup", multiple=True, metavar="LINE", help="Line of shell before the ranks start.")
@click.option("--sbatch", "sbatch", multiple=True, metavar="KEY=VALUE", help="Any other option of sbatch.")
@click.option(
    "--log", type=FilledText(), metavar="FILE", help="The job's output; default: slurm-ID.out here."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of JOB.yaml.")
@click.option("--run-dir", type=FilledPath(), help="Where the run's files of JOB.yaml go.")
@click.option("--wait", is_flag=True, help="Follow the job and end with its exit code.")
@click.option("--dry-run", is_flag=True, help="Print the batch script, and stop.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.argument("words", nargs=-1, metavar="JOB.yaml | -- PROGRAM [ARGUMENT]...", type=click.UNPROCESSED)
def command(
    launch: LaunchOptions, wait: bool, dry_run: bool, as_json: bool, words: tuple[str, ...], **options: Any
) -> int:
    """Submit a training, or any program as ranks, to Slurm.

    The job runs `hvdtrain run` on its first node. Defaults for a site stand in
    ~/.config/hvdtrain/site.yaml; options override them.
    """
    from hvdtrain.launch.describe import masked_values
    from hvdtrain.launch.sbatch import render, sbatch_command
    from hvdtrain.launch.site import read_site, site_path

    site = read_site(site_path(os.environ))
    job = _job(with_site(launch, site), site, words, options)
    script = render(job, sys.executable)
    if dry_run:
        argv = sbatch_command(job, Path("SCRIPT"), os.environ).argv
        document = {"schema": 1, "script": script, "command": argv, "env": masked_values(job.env)}
        print(json.dumps(document, indent=2) if as_json else script, end="" if not as_json else "\n")
        return int(ExitCode.DONE)
    number = _submit(job, script)
    if not as_json:
        print(f"job {number}", flush=True)
    code = _follow(number, as_json) if wait else int(ExitCode.DONE)
    if as_json:
        told = {"schema": 1, "job": number, "name": job.name, "script": script}
        print(json.dumps({**told, "exit_code": code} if wait else told))
    return code


def _job(launch: LaunchOptions, site: Site, words: tuple[str, ...], options: dict[str, Any]) -> BatchJob:
    from hvdtrain.launch.exports import parse_exports, submitted_names
    from hvdtrain.launch.sbatch import BatchJob, setup_names

    options = with_named(options)
    _refuse_lost_log(options["log"])
    check_options(launch, is_one_host=(options["nodes"] or 1) == 1)
    most = max_requeues(options)
    chosen = sbatch_options(site, options)
    size = num_ranks(chosen)
    check_restarts(options["max_restarts"], options["min_ranks"], size)
    program, name, more = _program(words, options, size)
    values, names = parse_exports(launch.env, os.environ)
    setup = (*site.setup, *options["setup"])
    own_names = dict.fromkeys((*values, *names, *setup_names(setup)))
    return BatchJob(
        name=options["name"] or name,
        launch=(*_run_words(launch, tuple(own_names)), *_restart_words(options)),
        program=program,
        options=chosen,
        signal=options["signal"] or more.signal,
        is_step_signalled=launch.launcher == "srun",
        max_requeues=most,
        run_dir=more.run_dir,
        modules=options["modules"] or site.modules,
        setup=setup,
        exported=submitted_names(os.environ, (*values, *names)),
        env=values,
    )


def _program(
    words: tuple[str, ...], options: dict[str, Any], size: int | None
) -> tuple[tuple[str, ...], str, Requeued]:
    """What ``size`` ranks run, a name for it, and what it needs to be run again."""
    if not words or not words[0]:
        raise InputError("nothing to submit", legal="a job file, or -- PROGRAM [ARGUMENT ...]")
    first = Path(words[0])
    if len(words) > 1 and _is_job_file(words[0]):
        raise InputError(
            f"a job file or a program, not both: {words[0]} and {words[1]}",
            legal="JOB.yaml, or -- PROGRAM [ARGUMENT ...]",
        )
    if not _is_job_file(words[0]):
        for option in ("overrides", "run_dir"):
            if options[option]:
                raise InputError(
                    "a program has no job file", where="--set" if option == "overrides" else "--run-dir"
                )
        return words, first.name, Requeued()
    from hvdtrain.jobfile import load_job
    from hvdtrain.train.preflight import check_batch

    job = load_job(first, options["overrides"])  # a mistake is told now, not when the job starts
    if size is not None:
        check_batch(job, size)
    more = requeued(job, options) if options["requeue"] else Requeued()
    program = [sys.executable, "-P", "-m", "hvdtrain.cli.main", "train", str(first.absolute())]
    for override in options["overrides"]:
        program += ["--set", override]
    if options["run_dir"]:
        program += ["--run-dir", str(options["run_dir"].absolute())]
    return (*program, *more.words), first.stem, more


def _refuse_lost_log(log: str | None) -> None:
    """Slurm makes no folder for a log: the job would end at once, and say nothing of it anywhere."""
    folder = Path(log or "log").parent
    # os.path.isdir: below a folder that may not be searched, Slurm finds none either.
    if "%" not in str(folder) and not os.path.isdir(folder):
        raise InputError(f"there is no folder {folder}", where="--log", do=f"make it: mkdir -p {folder}")


def _run_words(launch: LaunchOptions, names: tuple[str, ...]) -> tuple[str, ...]:
    """The options of ``hvdtrain run`` inside the job; values of variables travel in its environment."""
    words: list[str] = []
    for option, value in (
        ("--launcher", None if launch.launcher == "auto" else launch.launcher),
        ("--mpi", launch.mpi_type),
        ("--bind", None if launch.bind == "none" else launch.bind),
        ("--nic", launch.nic),
        ("--ssh-port", launch.ssh_port),
        ("--ssh-identity", launch.ssh_identity.absolute() if launch.ssh_identity else None),
        ("--prefix", launch.prefix),
        ("--output", launch.output.absolute() if launch.output else None),
        ("--timeout", launch.timeout_s),
    ):
        if value is not None:
            words.append(f"{option}={value}")
    words += [f"--env={name}" for name in names]
    words += [f"--tune={setting}" for setting in launch.tune]
    if launch.gpus is not None:
        words.append("--gpus" if launch.gpus else "--no-gpus")
    return tuple(words)


def _restart_words(options: dict[str, Any]) -> tuple[str, ...]:
    words = {"--max-restarts": options["max_restarts"], "--min-ranks": options["min_ranks"]}
    return tuple(f"{name}={value}" for name, value in words.items() if value)


def _submit(job: BatchJob, script: str) -> str:
    """Hands the script to sbatch, which copies it; returns the job's id."""
    from hvdtrain.launch.records import record_job
    from hvdtrain.launch.sbatch import parse_job_id, sbatch_command
    from hvdtrain.process import run

    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:
        file.write(script)
        file.flush()
        try:
            done = run(sbatch_command(job, Path(file.name), os.environ), timeout_s=60)
        except FileNotFoundError:
            raise LaunchError("there is no Slurm here: sbatch is not installed") from None
    if done.returncode:
        raise LaunchError(f"sbatch refused the job: {done.stderr.strip()}")
    number = parse_job_id(done.stdout)
    record_job(number, job.options["output"], job.name, os.environ)
    return number


def _follow(number: str, as_json: bool) -> int:
    from hvdtrain.launch.follow import Tail, follow, joint_code

    out = sys.stderr.buffer if as_json else sys.stdout.buffer

    def show(data: bytes) -> None:
        out.write(data)
        out.flush()

    def tell(state: str) -> None:
        print(f"hvdtrain: job {number}: {state}", file=sys.stderr)

    try:
        return joint_code(follow(number, os.environ, Tail(number, os.environ, show), tell, tell))
    except KeyboardInterrupt:
        print(f"hvdtrain: the job goes on; end it with: hvdtrain cancel {number}", file=sys.stderr)
        raise
