"""Installs a wheel into this environment, and tells whether it is installed and proven already."""

from __future__ import annotations

import hashlib
import json
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

    def is_proven(self, sha256: str) -> bool:
        """Whether the wheel with this hash is installed, whole, and passed its proof in this environment."""
        try:
            noted = json.loads(self._note.read_text(encoding="utf-8"))["proven"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(noted == sha256) and is_installed(sha256)

    def note_proof(self, sha256: str) -> None:
        """Notes that the wheel with this hash passed its proof here; the caller holds the lock."""
        self._note.write_text(json.dumps({"proven": sha256}) + "\n", encoding="utf-8")


def is_installed(sha256: str) -> bool:
    """Whether the Horovod that would be imported was installed from the wheel with this hash, and is whole.

    pip notes the hash of the file that it installed from (PEP 610, direct_url.json).
    """
    try:
        distribution = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return False
    try:
        source = json.loads(distribution.read_text("direct_url.json") or "{}")
        noted = source["archive_info"]["hashes"]["sha256"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(noted == sha256) and _is_whole(distribution)


def _is_whole(distribution: metadata.Distribution) -> bool:
    libraries = [file for file in distribution.files or () if file.suffix == ".so"]
    paths = [Path(str(distribution.locate_file(file))) for file in libraries]
    return bool(libraries) and all(
        path.is_file() and path.stat().st_size == file.size
        for path, file in zip(paths, libraries, strict=True)
    )


def install(facts: Facts, wheel: CachedWheel) -> None:
    """Installs a wheel in place of any other Horovod.

    Raises:
        BuildError: pip could not; the wheel stays in the cache.
    """
    command = install_command(facts, wheel.wheel)
    done = process.run(command, timeout_s=_INSTALL_S)
    if done.returncode != 0:
        why = " ".join(line for line in done.stderr.splitlines() if "ERROR" in line) or done.stderr[-300:]
        raise BuildError(f"pip could not install {wheel.wheel}: {why}; try it by hand: {command.display()}")
