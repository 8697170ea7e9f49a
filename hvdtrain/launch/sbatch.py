"""From a job to a batch script and the sbatch command that submits it.

Source: sbatch(1) of Slurm 22.05; how a ``#SBATCH`` line is taken apart is src/sbatch/opt.c, _get_argument: it
knows quotes and backslashes, and ends at the line's end.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.launch.sbatch_values import check_value
from hvdtrain.process import Command

_TEMPLATES = Path(__file__).parent / "templates"
_PLAIN = re.compile(r"[\w./:,@%+=\[\]^~-]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
# What sbatch calls the variable of an option where it is not the option's name after SBATCH_.
_VARIABLES = {
    "array": ("SBATCH_ARRAY_INX",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "requeue": ("SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"),
    "time": ("SBATCH_TIMELIMIT",),
}
_EXPORT = re.compile(r"(?:^|[;\n])\s*export\s+([A-Za-z_][A-Za-z0-9_]*)=")


@dataclass(frozen=True)
class BatchJob:
    """A job for sbatch; None or empty leaves a thing to Slurm.

    Attributes:
        name: The job's name.
        launch: The words of ``hvdtrain run`` between ``run`` and ``--``.
        program: Program and arguments of every rank.
        options: Options of sbatch by their long names; an empty value stands for a flag.
        signal: Signal before the end, in sbatch's words without ``B:``: ``USR1@120``.
        is_step_signalled: Whether that signal goes to the ranks at once, as srun's can, or to the launcher.
        max_requeues: How often a job that was preempted after a checkpoint is to run again; 0 for never.
        run_dir: The run directory of a training, to which the job's id is added; empty for one that is named,
            or of a job that does not run again.
        modules: Environment modules to load.
        setup: Lines of shell before the ranks start.
        exported: Names of the variables that the job gets.
        env: Values for variables that are not in the caller's environment.
    """

    name: str
    launch: tuple[str, ...]
    program: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    signal: str = ""
    is_step_signalled: bool = False
    max_requeues: int = 0
    run_dir: str = ""
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    exported: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def render(job: BatchJob, python: str) -> str:
    """The batch script: readable, and nothing in it is run that the user did not write as shell.

    Args:
        job: The job.
        python: The interpreter that starts the ranks, at the same path on the job's first node.

    Raises:
        InputError: An option's name or the signal is wrong, or an option is not for the user to set.
    """
    import jinja2

    options = _options(job)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    return environment.get_template("job.sh.j2").render(
        directives=[_directive(name, value) for name, value in options.items() if not _CONTROL.search(value)],
        on_command_line=[f"--{name}" for name, value in options.items() if _CONTROL.search(value)],
        modules=[shlex.quote(module) for module in job.modules],
        setup=job.setup,
        max_requeues=job.max_requeues,
        run_dir=shlex.quote(job.run_dir) if job.run_dir else "",
        command=_command_lines(python, job),
    )


def sbatch_command(job: BatchJob, script: Path, environ: Mapping[str, str]) -> Command:
    """The command that submits the script.

    Args:
        job: The job.
        script: The rendered script.
        environ: The caller's environment. What Slurm says in it of a job around, ``SLURM_NTASKS``, sbatch
            would hand to the new one, and what it says of options that the script sets is not for it.
    """
    words = [_word(name, value) for name, value in _options(job).items() if _CONTROL.search(value)]
    kept = {"SLURM_CONF", *job.exported}
    taken = {"SBATCH_EXPORT"}
    for option in _options(job):
        taken.update(_VARIABLES.get(option, (f"SBATCH_{option.upper().replace('-', '_')}",)))
    around = [name for name in environ if (name.startswith("SLURM_") and name not in kept) or name in taken]
    return Command(("sbatch", "--parsable", *words, str(script)), job.env, tuple(sorted(around)))


def parse_job_id(text: str) -> str:
    """The id in what ``sbatch --parsable`` printed: ``12`` or ``12;cluster``.

    Raises:
        InputError: There is none.
    """
    last = text.strip().splitlines()[-1:] or [""]
    number = last[0].partition(";")[0]
    if not number.isdecimal():
        raise InputError(f"sbatch printed no job id but {text.strip()!r}")
    return number


def parse_sbatch_options(settings: tuple[str, ...]) -> dict[str, str]:
    """Reads ``--sbatch key=value`` and ``--sbatch flag``.

    Raises:
        InputError: The key is no option's name.
    """
    options: dict[str, str] = {}
    for setting in settings:
        name, _, value = setting.lstrip("-").partition("=")
        if not _OPTION.fullmatch(name):
            raise InputError(f"{setting!r}", where="--sbatch", legal="a long option of sbatch: mail-type=END")
        options[name] = value
    return options


def setup_names(lines: Sequence[str]) -> tuple[str, ...]:
    """Names of the variables that lines of shell export: the ranks are to get them as well.

    An export behind ``&&``, ``if`` and the like may not be reached, so it is none.
    """
    return tuple(dict.fromkeys(name for line in lines for name in _EXPORT.findall(line)))


def _options(job: BatchJob) -> dict[str, str]:
    """All options of sbatch, in the order in which they stand in the script."""
    options = {"job-name": job.name, **job.options}
    if "export" in options:
        raise InputError(
            f"export={options['export']}",
            where="--sbatch",
            do="name variables with --env NAME or --env NAME=VALUE",
        )
    if job.signal:
        options["signal"] = _signal(job)
    if job.max_requeues:
        options["requeue"] = ""
        options.setdefault("open-mode", "append")
    if job.exported:
        options["export"] = ",".join(job.exported)
    for name in options:
        if not _OPTION.fullmatch(name):
            raise InputError(f"no option of sbatch: {name!r}", legal="a long option: mail-type")
    return options


def _signal(job: BatchJob) -> str:
    """The signal in sbatch's words.

    Without ``B:`` the steps get it and the batch shell does not; with it the shell alone. srun's tasks take
    it directly; mpirun has to hear of it itself, because Slurm knows only its daemons.
    """
    check_value("signal", job.signal, "--signal")
    if job.is_step_signalled or ":" in job.signal:
        return job.signal
    return f"B:{job.signal}"


def _word(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def _directive(name: str, value: str) -> str:
    if not value or _PLAIN.fullmatch(value):
        return _word(name, value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{name}="{escaped}"'


def _command_lines(python: str, job: BatchJob) -> str:
    """``hvdtrain run`` and its program as shell, on lines of their own."""
    own = shlex.join((python, "-P", "-m", "hvdtrain.cli.main", "run", *job.launch))
    return f"{own} \\\n  -- {shlex.join(job.program)}"
