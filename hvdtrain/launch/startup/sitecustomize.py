"""Tells the rank agent of an uncaught exception: proof that the program is lost, though it may not end.

After an uncaught exception Python calls MPI_Finalize, which waits for ranks that will never come. From
outside, the traceback looks like one that the program caught, printed and survived; so the agent is told
where it begins and where it ends. Python itself imports
this file at start (see the site module), from a folder that the agent puts first on PYTHONPATH; it uses
no other module of hvdtrain. The program's Python need not be hvdtrain's own: it may be as old as 3.7.
"""

from __future__ import annotations

import os
import stat
import sys
from importlib import import_module
from types import TracebackType

_OWN = os.path.dirname(os.path.abspath(__file__))


def _hide() -> None:
    """Leaves import path and environment as the user made them, and runs the user's own sitecustomize."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _OWN]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path != _OWN]
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        os.environ.pop("PYTHONPATH", None)
    own = sys.modules.pop("sitecustomize")
    try:
        import_module("sitecustomize")  # the next one on the path
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


_print = sys.excepthook


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if getattr(sys, "last_value", None) is not error:
        # Consoles and loggers call the hook themselves; only Python's own call is preceded by this setting.
        _print(kind, error, trace)
        return
    _mark("raising", kind)
    _print(kind, error, trace)
    _mark("uncaught", kind)


def _mark(word: str, kind: type[BaseException]) -> None:
    """Writes an event's line, unless stderr was led elsewhere: in a file it would puzzle its reader."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
        if stat.S_ISFIFO(os.fstat(2).st_mode):
            os.write(2, f'\x1ehvdtrain {{"{word}":"{kind.__name__}","pid":{os.getpid()}}}\n'.encode())
    except (OSError, ValueError):
        pass  # it is closed: nobody is told of anything


if __name__ == "sitecustomize":
    sys.excepthook = _tell
    _hide()
