"""Lists the images of a folder with one sub-folder per class, without PyTorch or Pillow.

A listing is plain data: one rank may scan a shared file system and send it to the others.
"""

from __future__ import annotations

import heapq
import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from hvdtrain.config import FolderData
from hvdtrain.errors import InputError

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm"})
_WHERE = "data.path"


class Images:
    """Files and their class numbers, about 40 bytes each.

    The names lie in one block of bytes: a list of a million strings would take three times the
    memory, and once more in every forked worker, whose reference counts unshare its pages.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._names = bytearray()
        self._ends = array("Q")
        self._labels = array("i")

    def append(self, name: str, label: int) -> None:
        """Adds a file by its path below ``root``."""
        self._names += os.fsencode(name)
        self._ends.append(len(self._names))
        self._labels.append(label)

    def __len__(self) -> int:
        return len(self._labels)

    def path(self, index: int) -> str:
        """The whole path of an image."""
        start = self._ends[index - 1] if index else 0
        return os.path.join(self.root, os.fsdecode(bytes(self._names[start : self._ends[index]])))

    def label(self, index: int) -> int:
        """The class number of an image."""
        return self._labels[index]

    @property
    def labels(self) -> array[int]:
        """The class numbers of all images."""
        return self._labels


@dataclass(frozen=True)
class Listing:
    """What a folder holds.

    Attributes:
        classes: The names of the class folders, sorted; the place of a name is its class number.
        train, validation: The images of each part, sorted by class and name.
        notes: What was ignored or held out, with counts.
    """

    classes: tuple[str, ...]
    train: Images
    validation: Images
    notes: tuple[str, ...] = ()


def scan_folder(config: FolderData) -> Listing:
    """Lists a folder's images.

    Raises:
        InputError: The folder cannot be read, or does not hold at least two classes with images,
            the same ones for training and validation.
    """
    _check_folder(config.path)
    try:
        return _listed(config)
    except OSError as error:
        raise InputError(
            f"{error.filename} cannot be read: {error.strerror}",
            where=_WHERE,
            do="mend its permissions or link",
        ) from None


def _listed(config: FolderData) -> Listing:
    train, validation, note = _parts(config)
    ignored = _Ignored()
    if validation is None:
        return _with_held_out(train, _scan_part(train, ignored), ignored)
    trained, validated = _scan_part(train, ignored), _scan_part(validation, ignored)
    _check_same_classes(list(trained), list(validated), validation)
    return Listing(
        tuple(trained), _images(train, trained), _images(validation, validated), (*note, *ignored.notes())
    )


def _parts(config: FolderData) -> tuple[Path, Path | None, tuple[str, ...]]:
    """The folders of training and validation images; None for the latter: to be held out."""
    root, train, validation = config.path, config.path / config.train, config.path / config.validation
    note: tuple[str, ...] = ()
    if not validation.is_dir() and "validation" not in config.model_fields_set and (root / "val").is_dir():
        validation = root / "val"
        note = (f"validation images are read from {validation}",)
    here = ", ".join(entry.name for entry in _entries(root) if entry.is_dir()) or "no folders"
    if train.is_dir():
        if not validation.is_dir():
            do = f"set data.validation, or data.path={train} to hold a fifth of it out"
            raise InputError(f"{root} has no folder {config.validation!r}, but {here}", where=_WHERE, do=do)
        return train, validation, note
    if validation.is_dir() or "train" in config.model_fields_set:
        raise InputError(
            f"{root} has no folder {config.train!r}, but {here}", where=_WHERE, do="set data.train"
        )
    return root, None, ()


def _scan_part(folder: Path, ignored: _Ignored) -> dict[str, list[str]]:
    """Class name -> sorted paths of its images below ``folder``; classes are sorted."""
    classes = []
    for entry in _entries(folder):
        if entry.is_dir():
            classes.append(entry.name)
        else:
            ignored.add(entry.path)
    if not classes:
        raise InputError(
            f"{folder} has no class folders", where=_WHERE, legal="one folder of images per class"
        )
    if len(classes) == 1:
        raise InputError(
            f"{folder} has one class only, {classes[0]!r}", where=_WHERE, legal="two class folders or more"
        )
    found = {name: sorted(_walk(folder, name, ignored)) for name in sorted(classes)}
    if empty := [name for name, images in found.items() if not images]:
        raise InputError(
            f"{folder} has class folders without an image: {_named(empty)}",
            where=_WHERE,
            legal="files that end in " + ", ".join(sorted(_SUFFIXES)),
        )
    return found


def _walk(folder: Path, name: str, ignored: _Ignored) -> Iterator[str]:
    """Paths of the images in a class folder and all folders below it, relative to ``folder``."""
    pending = [(name, frozenset[tuple[int, int]]())]
    while pending:
        below, parents = pending.pop()
        status = os.stat(folder / below)
        identity = (status.st_dev, status.st_ino)
        if identity in parents:
            raise InputError(
                f"link {folder / below} leads back to a folder that it is in", where=_WHERE, do="remove it"
            )
        for entry in _entries(folder / below):
            path = f"{below}/{entry.name}"
            if entry.is_dir():
                pending.append((path, parents | {identity}))
            elif os.path.splitext(entry.name)[1].lower() in _SUFFIXES:
                yield path
            else:
                ignored.add(entry.path)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The visible entries of a folder; a link to nowhere is an error."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not os.path.exists(entry.path):
                raise InputError(
                    f"link {entry.path} leads to {os.readlink(entry.path)}, which does not exist",
                    where=_WHERE,
                    do="remove or mend the link",
                )
            yield entry


def _check_folder(root: Path) -> None:
    try:
        is_folder = stat.S_ISDIR(os.stat(root).st_mode)
        is_empty = is_folder and not any(True for _ in _entries(root))
    except OSError as error:
        seen_from = "" if root.is_absolute() else f" (seen from {Path.cwd()})"
        raise InputError(f"folder {root}{seen_from} cannot be read: {error.strerror}", where=_WHERE) from None
    if not is_folder or is_empty:
        what = "is empty" if is_folder else "is not a folder"
        raise InputError(f"{root} {what}", where=_WHERE, legal="a folder of class folders")


def _check_same_classes(train: Sequence[str], validation: Sequence[str], folder: Path) -> None:
    missing, extra = sorted(set(train) - set(validation)), sorted(set(validation) - set(train))
    parts = [f"lacks {_named(missing)}"] if missing else []
    parts += [f"has {_named(extra)}, which training has not"] if extra else []
    if parts:
        raise InputError(
            f"the classes of {folder} are not those of the training images: it {' and '.join(parts)}",
            where=_WHERE,
            do="name the class folders of both parts alike",
        )


def _with_held_out(root: Path, found: dict[str, list[str]], ignored: _Ignored) -> Listing:
    """Holds out a fifth of each class: the same images whatever the job's seed, machine and order.

    The images with the smallest hashes are taken, so that neighbours in name (frames of one film)
    are not all on one side and a new image moves few others.
    """
    kept: dict[str, list[str]] = {}
    held: dict[str, list[str]] = {}
    for name, images in found.items():
        count = max(1, len(images) // 5) if len(images) > 1 else 0
        held[name] = sorted(heapq.nsmallest(count, images, key=_hash))
        out = set(held[name])
        kept[name] = [image for image in images if image not in out]
    train, validation = _images(root, kept), _images(root, held)
    if not len(validation):
        raise InputError(
            f"{root} has one image per class: none can be held out", where=_WHERE, do="add images"
        )
    total = len(train) + len(validation)
    verb = "is" if len(validation) == 1 else "are"
    notes = [f"{len(validation)} of {total} images in {root} {verb} held out, a fixed fifth of each class"]
    if single := [name for name, images in held.items() if not images]:
        notes.append(f"classes with a single image, which is used for training: {_named(single)}")
    return Listing(tuple(found), train, validation, (*notes, *ignored.notes()))


def _images(root: Path, found: dict[str, list[str]]) -> Images:
    images = Images(str(root))
    for label, names in enumerate(found.values()):
        for name in names:
            images.append(name, label)
    return images


def _hash(name: str) -> bytes:
    return blake2b(os.fsencode(name), digest_size=16).digest()


@dataclass
class _Ignored:
    """Counts files that are no images by their names, and keeps the first as an example."""

    count: int = 0
    example: str = field(default="")

    def add(self, path: str) -> None:
        self.example = self.example or path
        self.count += 1

    def notes(self) -> list[str]:
        if not self.count:
            return []
        if self.count == 1:
            return [f"1 other file is ignored: {self.example}"]
        return [f"{self.count} other files are ignored, such as {self.example}"]


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
