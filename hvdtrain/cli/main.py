"""The ``hvdtrain`` command: finds the verb, loads only its file, turns errors into exit codes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module

import click

from hvdtrain.cli.surroundings import complete_home, complete_streams
from hvdtrain.errors import ExitCode, HvdtrainError
from hvdtrain.version import __version__

# verb -> what `hvdtrain --help` says of it; the file is hvdtrain/cli/VERB.py with "-" as "_"
VERBS = {
    "train": "Train a job on one or many ranks.",
    "verify": "Prove that a job trains alike on several numbers of ranks.",
    "profile": "Tell where the time of a step goes, on each rank.",
    "bench": "Measure the network, the data and the step of a job.",
    "advise": "Tell whether more GPUs are worth it, and what to mend first.",
    "calibrate": "Propose the small runs that narrow a prediction most, and read their results.",
    "report": "Show a run, a profile or advice in pictures: one HTML page, or tables.",
    "checkpoints": "List, check, prune and export the checkpoints of a run.",
    "run": "Run any program as ranks, one process per slot.",
    "submit": "Submit a training, or any program as ranks, to Slurm.",
    "jobs": "List your Slurm jobs.",
    "logs": "Show the output of a Slurm job.",
    "cancel": "End Slurm jobs.",
    "whoami": "Tell which rank this process is.",
    "plan": "Show where each rank would run.",
    "schema": "Print the JSON schema of the job file.",
    "build-horovod": "Build Horovod for this environment's PyTorch, Python and MPI.",
}

_SIGNALLED = 128  # what is added to a signal's number to make an exit code


class _Verbs(click.Group):
    """A group that imports a verb's file only when that verb is called or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            close = get_close_matches(cmd_name, VERBS, n=1)
            hint = f"did you mean {close[0]}?" if close else "legal: " + ", ".join(VERBS)
            ctx.fail(f"no such command: {cmd_name!r}; {hint}")
        verb = import_module(f"hvdtrain.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(verb, click.Command)
        return verb

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hvdtrain", message="%(prog)s %(version)s")
def group() -> None:
    """Data-parallel PyTorch training with Horovod on many GPUs and nodes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    An ``HvdtrainError`` is told as one line on stderr; with ``--json`` also as a document on stdout. So is a
    standard output that cannot be written, except where its reader ended first, as of ``| head``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not complete_streams():
        do = "send it to a file, or to /dev/null"
        return _tell(f"standard output cannot be written: it is closed; {do}", ExitCode.FAILED, ())
    complete_home()
    try:
        code = _run(words)
        sys.stdout.flush()
    except OSError as error:
        if not _is_stdout_broken():
            raise
        _give_up_stdout()
        if isinstance(error, BrokenPipeError):
            return _SIGNALLED + signal.SIGPIPE
        return _tell(f"standard output cannot be written: {error.strerror}", ExitCode.FAILED, ())
    return code


def _run(words: Sequence[str]) -> int:
    try:
        result = group.main(list(words), prog_name="hvdtrain", standalone_mode=False)
        return int(result) if isinstance(result, int) else int(ExitCode.DONE)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return int(ExitCode.USAGE)
    except click.ClickException as error:
        return _tell(error.format_message(), ExitCode.USAGE, words)
    except HvdtrainError as error:
        return _tell(str(error), error.exit_code, words)
    except PermissionError as error:
        if error.filename is None:
            raise
        # A path that no verb looked at before: whatever it is for, its rights are the user's to mend.
        do = "give a path that you have the right to use"
        return _tell(f"{error.filename}: cannot be used: {error.strerror}; {do}", ExitCode.USAGE, words)
    except (KeyboardInterrupt, click.Abort):
        return _tell("interrupted", 130, words)
    except SystemExit as error:
        if not isinstance(error.code, int) or error.code <= _SIGNALLED:
            raise
        return _tell(f"ended by {signal.Signals(error.code - _SIGNALLED).name}", error.code, words)


def _is_stdout_broken() -> bool:
    """Whether nothing can be written to standard output: then an error without a file's name was its own."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _give_up_stdout() -> None:
    """Lets the interpreter's own last flush succeed: it would end with a second message and code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(message: str, code: int, words: Sequence[str]) -> int:
    with suppress(OSError):  # the terminal may be gone
        print("hvdtrain: error: " + " ".join(message.split()), file=sys.stderr, flush=True)
    options = words[: words.index("--")] if "--" in words else words
    if "--json" in options:
        try:
            print(json.dumps({"schema": 1, "error": message, "exit_code": int(code)}), flush=True)
        except OSError:  # the error was told on stderr, and its code matters more
            _give_up_stdout()
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
