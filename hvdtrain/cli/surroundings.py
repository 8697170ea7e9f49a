"""What every program may rely on, and some callers leave out: three standard streams and a home."""

from __future__ import annotations

import os
import pwd
import sys


def complete_streams() -> bool:
    """Opens the null device for each standard stream that the caller closed; whether stdout was open.

    Python has no object for such a stream, and the next file that is opened would get its number: what the
    ranks write to their stdout would go there.
    """
    is_open = sys.stdout is not None
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free, which is this one
            os.set_inheritable(number, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for the life of the process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    return is_open


def complete_home() -> None:
    """Takes the home from the password file where the caller's environment has none, as cron's and env -i's.

    Open MPI does not start without one. A user that the file does not know gets ``/``, as from systemd.
    """
    if not os.environ.get("HOME"):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            home = ""
        os.environ["HOME"] = home or "/"
