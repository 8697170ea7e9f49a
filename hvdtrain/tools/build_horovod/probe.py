"""Asks a program of this machine for its version or paths; the program may be broken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hvdtrain import process
from hvdtrain.errors import InputError
from hvdtrain.process import Completed


def probe(argv: Sequence[str | Path], *, timeout_s: float, do: str) -> Completed:
    """Runs a program that is expected to answer at once.

    Args:
        argv: The program and its arguments.
        timeout_s: When to give up, in seconds.
        do: What the user can do where it does not answer.

    Raises:
        InputError: It does not start or does not end; names it.
    """
    program = Path(argv[0])
    try:
        return process.run(process.command(*argv), timeout_s=timeout_s)
    except TimeoutError as error:
        raise InputError(str(error), do=do) from error
    except FileNotFoundError as error:
        # the kernel says the same of a script whose interpreter is gone, as after an environment was moved
        is_script = program.is_absolute() and program.exists()
        why = "the interpreter in its first line is not there" if is_script else "it is not there"
        raise InputError(f"{program} does not start: {why}", do=do) from error
    except OSError as error:
        raise InputError(f"{program} does not start: {error.strerror}", do=do) from error
