"""The cache of wheels: one folder per key, whole or absent, and scratch folders that die with their owner.

Layout, under ``~/.cache/hvdtrain`` or ``$HVDTRAIN_CACHE``::

    horovod/KEY/horovod-....whl     the wheel
    horovod/KEY/key.json            what it was built from, its size and hash, its proof
    horovod/KEY/build.log           what the build printed
    horovod/KEY.lock                held by whoever builds it
    horovod/logs/KEY.log            the log of a build that runs or failed
    horovod/sdist/                  the source distribution
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hvdtrain.errors import InputError
from hvdtrain.files import sha256_of, sync

MANIFEST = "key.json"


@dataclass(frozen=True)
class CachedWheel:
    """A whole wheel of the cache and its manifest."""

    wheel: Path
    sha256: str
    manifest: Mapping[str, Any]


class Cache:
    """The folders of the cache; nothing is created before ``prepare``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.horovod = root / "horovod"
        self.sdists = self.horovod / "sdist"

    def entry(self, key: str) -> Path:
        """The folder of a key's wheel."""
        return self.horovod / key

    def log(self, key: str) -> Path:
        """The log of a key's running or failed build."""
        return self.horovod / "logs" / f"{key}.log"

    def lock(self, name: str) -> Path:
        """The lock file of a key or of an environment."""
        return self.horovod / f"{name}.lock"

    def prepare(self) -> None:
        """Creates the folders and proves that they can be written.

        Raises:
            InputError: They cannot.
        """
        try:
            for folder in (self.sdists, self.horovod / "logs"):
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.horovod):
                pass
        except OSError as error:
            raise _not_writable(self.root, error.strerror or str(error)) from error

    def check_writable(self) -> None:
        """What ``prepare`` would find, without creating anything.

        Raises:
            InputError: The nearest folder that exists cannot be written.
        """
        existing = next(path for path in (self.horovod, *self.horovod.parents) if os.path.exists(path))
        if not existing.is_dir():
            raise _not_writable(self.root, f"{existing} is no folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise _not_writable(self.root, f"no right to write in {existing}")

    def find(self, key: str, warn: Callable[[str], None]) -> CachedWheel | None:
        """The key's wheel, or None if it is absent, half there, or not what its manifest says."""
        folder = self.entry(key)
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            wheel = folder / str(manifest["wheel"]["name"])
            size, sha256 = int(manifest["wheel"]["size"]), str(manifest["wheel"]["sha256"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            warn(f"{folder / MANIFEST} cannot be read; the wheel is built again")
            return None
        if not wheel.is_file() or wheel.stat().st_size != size or sha256_of(wheel) != sha256:
            warn(f"{wheel} is not the file that was built; it is built again")
            return None
        return CachedWheel(wheel, sha256, manifest)

    def publish(self, key: str, wheel: Path, manifest: Mapping[str, Any], log: Path) -> CachedWheel:
        """Puts a wheel in place as a whole: a folder with its manifest appears in one rename.

        The caller holds the key's lock.
        """
        staged = Path(tempfile.mkdtemp(prefix=f"{key}.new-", dir=self.horovod))
        sha256 = sha256_of(wheel)
        facts = {"name": wheel.name, "size": wheel.stat().st_size, "sha256": sha256}
        whole = {**manifest, "wheel": facts}
        shutil.copyfile(wheel, staged / wheel.name)
        shutil.copyfile(log, staged / "build.log")
        (staged / MANIFEST).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        staged.chmod(0o755)
        for path in (*staged.iterdir(), staged):
            sync(path)
        final = self.entry(key)
        shutil.rmtree(final, ignore_errors=True)
        staged.rename(final)
        sync(self.horovod)
        return CachedWheel(final / wheel.name, sha256, whole)

    def sweep(self, key: str) -> None:
        """Removes what killed builds of a key left; the caller holds the key's lock."""
        for left in self.horovod.glob(f"{key}.new-*"):
            shutil.rmtree(left, ignore_errors=True)


def cache_root(environ: Mapping[str, str]) -> Path:
    """``$HVDTRAIN_CACHE``, or ``~/.cache/hvdtrain``."""
    named = environ.get("HVDTRAIN_CACHE")
    return Path(named).expanduser().absolute() if named else Path("~/.cache/hvdtrain").expanduser()


@contextmanager
def locked(path: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Holds a lock file; it ends with the process, however that ends.

    Args:
        path: The lock file. It stays, so that everybody locks the same one.
        on_wait: Called once with the holder ("process 12 on host a") if somebody else holds it.
    """
    with path.open("a+", encoding="utf-8") as handle:
        try:
            _flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            on_wait(handle.read().strip() or "another process")
            _flock(handle, fcntl.LOCK_EX)
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on host {socket.gethostname()}\n")
        handle.flush()
        yield


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder that is gone afterwards; a killed owner's is removed by the next one.

    Its lock file beside it tells the living from the dead: process numbers are used again, a lock is not.
    """
    _sweep_scratch(parent, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = folder.with_name(f"{folder.name}.lock")
        with lock.open("x", encoding="utf-8") as handle:
            _flock(handle, fcntl.LOCK_EX)
            if not folder.exists():  # a sweep was quicker to lock the new file, and took the folder away
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)
        return


def _sweep_scratch(parent: Path, prefix: str) -> None:
    for lock in parent.glob(f"{prefix}*.lock"):
        try:
            if lock.lstat().st_uid != os.geteuid():
                continue
            with lock.open("r+", encoding="utf-8") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder = lock.with_suffix("")
                shutil.rmtree(folder, ignore_errors=True)
                # a killed build's compilers may still write: then the next sweep takes the rest
                if not folder.exists():
                    lock.unlink(missing_ok=True)
        except OSError:  # it is held, or somebody else swept it
            continue


def _flock(handle: IO[str], how: int) -> None:
    """Locks a file; a file system without locks (Lustre without its flock option) is the user's to change."""
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        raise
    except OSError as error:
        raise InputError(
            f"files cannot be locked on this file system: {error.strerror}",
            where=handle.name,
            do="set HVDTRAIN_CACHE to a folder on another one, such as a local disk",
        ) from error


def copy_whole(source: Path, target: Path) -> None:
    """Copies a file so that ``target`` is there as a whole or as it was; nothing half-written is left.

    Raises:
        OSError: It cannot be written, such as on a full disk.
    """
    # a name of its own: several processes, on several hosts, may write the same target
    staged = target.with_name(f".{target.name}.{socket.gethostname()}-{os.getpid()}")
    try:
        shutil.copyfile(source, staged)
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)


def _not_writable(root: Path, why: str) -> InputError:
    return InputError(
        f"the cache cannot be written: {why}",
        where=str(root),
        do="set HVDTRAIN_CACHE to a folder of your own",
    )
