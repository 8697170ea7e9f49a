"""Installs a wheel into this environment, and tells whether it is installed and proven already."""

from __future__ import annotations

import csv
import hashlib
import json
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from hvdtrain import process
from hvdtrain.errors import BuildError
from hvdtrain.tools.build_horovod.cache import Cache, CachedWheel
from hvdtrain.tools.build_horovod.facts import Facts
from hvdtrain.tools.build_horovod.plan import install_command

_INSTALL_S = 600.0


class Environment:
    """The Python environment that this process runs in, as a place to install into.

    Attributes:
        lock: Held by whoever installs into it.
    """

    def __init__(self, facts: Facts, cache: Cache) -> None:
        name = f"environment-{hashlib.sha256(str(facts.python.prefix).encode()).hexdigest()[:20]}"
        self.lock = cache.lock(name)
        self._note = cache.horovod / f"{name}.json"

    def is_proven(self, wheel: CachedWheel) -> bool:
        """Whether this wheel is installed, whole, and passed its proof in this environment."""
        try:
            noted = json.loads(self._note.read_text(encoding="utf-8"))["proven"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(noted == wheel.sha256) and is_installed(wheel.wheel)

    def note_proof(self, sha256: str) -> None:
        """Notes that the wheel with this hash passed its proof here; the caller holds the lock."""
        self._note.write_text(json.dumps({"proven": sha256}) + "\n", encoding="utf-8")


def is_installed(wheel: Path) -> bool:
    """Whether the Horovod that would be imported came from this very wheel, and is whole.

    Compares the hashes of the libraries that both record. What pip notes of the file that it
    installed from (PEP 610) would not do: Debian 12's pip leaves the hash out.
    """
    try:
        distribution = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return False
    recorded = {
        str(file): (file.hash.value if file.hash else "", file.size)
        for file in distribution.files or ()
        if file.suffix == ".so"
    }
    return bool(recorded) and recorded == _libraries(wheel) and _are_there(distribution, recorded)


def _libraries(wheel: Path) -> dict[str, tuple[str, int | None]]:
    """Hash and size of each library of a wheel, by its path, from the wheel's RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(archive.read(name).decode("utf-8").splitlines()))
    return {row[0]: (row[1].partition("=")[2], int(row[2])) for row in rows if row[0].endswith(".so")}


def _are_there(distribution: metadata.Distribution, sizes: Mapping[str, tuple[str, int | None]]) -> bool:
    paths = {name: Path(str(distribution.locate_file(name))) for name in sizes}
    return all(path.is_file() and path.stat().st_size == sizes[name][1] for name, path in paths.items())


def install(facts: Facts, wheel: CachedWheel) -> None:
    """Installs a wheel in place of any other Horovod.

    Raises:
        BuildError: pip could not; the wheel stays in the cache.
    """
    command = install_command(facts, wheel.wheel)
    try:
        done = process.run(command, timeout_s=_INSTALL_S)
    except OSError as error:  # TimeoutError is one
        raise BuildError(f"pip could not install {wheel.wheel}: {error}") from error
    if done.returncode != 0:
        why = " ".join(line for line in done.stderr.splitlines() if "ERROR" in line) or done.stderr[-300:]
        raise BuildError(f"pip could not install {wheel.wheel}: {why}; try it by hand: {command.display()}")
