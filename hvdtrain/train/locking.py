"""Who is at work in a run directory; imports no torch.

Two locks (flock(2)) tell: the launcher's on the directory, and rank 0's on its folder of checkpoints. A
launcher that is killed leaves its own at once, while its ranks may write for some moments yet.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.config import StallConfig

# An agent whose launcher is gone ends its rank within 3 s, a loader's process that lost its rank within 5 s.
_RANKS_END_S = 10.0
_LOOK_EVERY_S = 0.1
RESTART = "HVDTRAIN_RESTART"  # how many lives of the job came before; launch.restart has the same name
_MARGIN_S = 30.0
_MOST_PATIENCE_S = 540.0  # torch.distributed ends a call that others wait in after ten minutes


def lock_run(path: Path) -> int | None:
    """Marks a run directory as in use until this process ends; waits for ranks that outlive their launcher.

    Returns:
        A descriptor; None where the file system has no locks.

    Raises:
        InputError: A run that is still going on holds it.
    """
    lock = lock_directory(path)
    try:
        unlock(lock_writer(path / "checkpoints"))
    except BaseException:
        unlock(lock)
        raise
    return lock


def lock_directory(path: Path) -> int | None:
    """Marks a directory as in use until this process ends; None where its file system cannot.

    Raises:
        InputError: A run that is still going on holds it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            "a run is going on in this directory", where=str(path), do="choose another --run-dir"
        ) from None
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def lock_writer(checkpoints: Path) -> int | None:
    """Marks this process as the one that writes a run's checkpoints; waits for an earlier one to end.

    Raises:
        InputError: The earlier one goes on.
    """
    deadline_s = time.monotonic() + _RANKS_END_S
    while True:
        try:
            return lock_directory(checkpoints)
        except OSError:  # it is not there, or no folder
            return None
        except InputError:
            if time.monotonic() >= deadline_s:
                raise InputError(
                    "ranks that were started in this directory still write, and their launcher is gone",
                    where=str(checkpoints.parent),
                    do="end them, or choose another --run-dir",
                ) from None
        time.sleep(_LOOK_EVERY_S)


def await_last_life(
    env: Mapping[str, str], folders: Sequence[Path], stall: StallConfig, tell: Callable[[str], None]
) -> None:
    """Waits, where the job was started again, for a rank 0 of its last life that may still write.

    One whose host was cut off from the network, but not from the disk, waits for the others in vain until its
    own stall limit ends it. Comes back when nobody holds the run, or when it should have ended: then whoever
    takes the locks is refused.

    Args:
        env: The environment of this rank.
        folders: Those that it would hold.
        stall: The job's limits.
        tell: Hears, once, what is waited for.
    """
    if env.get(RESTART, "0") == "0":
        return
    begin_s = time.monotonic()
    # The others of this life wait for this rank, and no longer than start_s.
    own_limit_s = (stall.step_s or stall.most_s) + stall.save_s  # of a step behind a save that began
    patience_s = min(own_limit_s + _MARGIN_S, stall.start_s / 2, _MOST_PATIENCE_S)
    is_told = False
    while not all(map(is_free, folders)) and time.monotonic() < begin_s + patience_s:
        if not is_told and time.monotonic() > begin_s + _RANKS_END_S / 2:
            is_told = True
            tell(f"a rank of the last life still holds {folders[0]}: waiting at most {patience_s:g} s for it")
        time.sleep(_LOOK_EVERY_S)


def is_free(path: Path) -> bool:
    """Whether no process holds a directory; also where it is not there."""
    try:
        unlock(lock_directory(path))
    except OSError:  # it is not there
        return True
    except InputError:
        return False
    return True


def unlock(descriptor: int | None) -> None:
    """Lets others have what was locked."""
    if descriptor is not None:
        os.close(descriptor)
