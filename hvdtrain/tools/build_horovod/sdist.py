"""Horovod's source distribution: fetched once by pip, checked, unpacked."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

from hvdtrain import process
from hvdtrain.errors import BuildError
from hvdtrain.files import sha256_of
from hvdtrain.tools.build_horovod.cache import copy_whole
from hvdtrain.tools.build_horovod.facts import SDIST_NAME, SDIST_SHA256, Facts
from hvdtrain.tools.build_horovod.plan import REQUIREMENT, Folders, fetch_command

_FETCH_S = 600.0


def obtain_sdist(facts: Facts, store: Path, folders: Folders, say: Callable[[str], None]) -> Path:
    """Returns the source distribution in the store, fetching it if it is not there whole.

    Raises:
        BuildError: pip could not fetch it, or what it fetched has another hash.
    """
    kept = store / SDIST_NAME
    if kept.exists():
        if sha256_of(kept) == SDIST_SHA256:
            return kept
        say(f"{kept} has another hash than Horovod's release; fetching it again")
        kept.unlink(missing_ok=True)
    say(f"fetching {SDIST_NAME}")
    fetched = _fetch(facts, folders)
    copy_whole(fetched, kept)
    return kept


def _fetch(facts: Facts, folders: Folders) -> Path:
    folders.requirement.write_text(REQUIREMENT, encoding="utf-8")
    command = fetch_command(facts, folders)
    try:
        done = process.run(command, timeout_s=_FETCH_S)
    except TimeoutError as error:
        raise BuildError(f"pip could not fetch {SDIST_NAME}: {error}") from error
    fetched = folders.sdist / SDIST_NAME
    if done.returncode != 0 or not fetched.exists():
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
        why = " ".join(errors) or f"pip ended with {done.returncode}"
        raise BuildError(f"pip could not fetch {SDIST_NAME}: {why}; try it by hand: {command.display()}")
    if (found := sha256_of(fetched)) != SDIST_SHA256:
        raise BuildError(f"{SDIST_NAME} has SHA-256 {found}, Horovod's release has {SDIST_SHA256}")
    return fetched


def unpack_sdist(sdist: Path, folder: Path) -> None:
    """Unpacks the checked source distribution into a folder."""
    with tarfile.open(sdist) as archive:
        # Python has filters from 3.11.4 on; Debian 12 has 3.11.2. The archive is the one whose hash we know.
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
