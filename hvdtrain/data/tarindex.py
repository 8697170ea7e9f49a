"""Lists the samples of tar shards, without PyTorch or Pillow and without reading the images.

A shard follows the convention of the package ``webdataset``: the members of a sample stand one
after the other and have the same path up to the first dot of the file's name; what follows the dot
says what a member is: ``12.jpg`` and ``12.cls``. The listing holds where each image begins in its
shard, so that samples are reached in any order: shards are shuffled, split and resumed like files.

A listing is plain data: one rank may read a shared file system and send it to the others.
"""

from __future__ import annotations

import os
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from hvdtrain.config import TarData
from hvdtrain.data.braces import expand_braces
from hvdtrain.errors import InputError

_IMAGES = frozenset({"jpg", "jpeg", "png", "bmp", "webp", "tif", "tiff", "gif", "ppm"})
_LABEL = "cls"
_LONGEST_LABEL = 32  # bytes
_BLOCK = 512
_READ = 1 << 20  # bytes at once
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Samples:
    """Where the images of a part lie, and their class numbers: 24 bytes each.

    Attributes:
        shards: Paths.
    """

    def __init__(self, shards: Sequence[str]) -> None:
        self.shards = tuple(shards)
        self._shard, self._label = array("i"), array("i")
        self._offset, self._size = array("Q"), array("Q")

    def append(self, shard: int, offset: int, size: int, label: int) -> None:
        """Adds an image that lies ``offset`` bytes from the start of shard number ``shard``."""
        self._shard.append(shard)
        self._offset.append(offset)
        self._size.append(size)
        self._label.append(label)

    def __len__(self) -> int:
        return len(self._label)

    def place(self, index: int) -> tuple[str, int, int]:
        """Path of the shard, offset and size in bytes of an image."""
        return self.shards[self._shard[index]], self._offset[index], self._size[index]

    def label(self, index: int) -> int:
        """The class number of an image."""
        return self._label[index]

    @property
    def labels(self) -> array[int]:
        """The class numbers of all images."""
        return self._label


@dataclass(frozen=True)
class TarListing:
    """What the shards of a job hold.

    Attributes:
        train, validation: The samples of each part, in the order of shards and members.
        notes: What is ignored, with counts.
    """

    train: Samples
    validation: Samples
    notes: tuple[str, ...] = ()


def list_shards(config: TarData) -> TarListing:
    """Reads the headers of all shards.

    Raises:
        InputError: A shard is missing, compressed, cut short or damaged, or a sample lacks its label
            or its image, or its label is no class number; shard and member are named.
    """
    names = find_shards(config)
    ignored = _Ignored()
    train, validation = (
        _list_part(shards, config.classes, ignored, f"data.{part}") for part, shards in names.items()
    )
    both = sorted(set(names["train"]) & set(names["validation"]))
    notes = [f"shards are used for training and validation: {_shortened(both)}"] if both else []
    return TarListing(train, validation, (*notes, *ignored.notes()))


def find_shards(config: TarData) -> dict[str, list[str]]:
    """The paths of the shards by part, ``train`` and ``validation``, without reading any.

    Raises:
        InputError: A pattern stands for nothing, or a shard is missing, compressed or named twice.
    """
    found = {}
    for part, pattern in (("train", config.train), ("validation", config.validation)):
        where = f"data.{part}"
        shards = expand_braces(str(pattern), where=where)
        if twice := [shard for shard, times in Counter(shards).items() if times > 1]:
            raise InputError(f"{pattern} names shards twice: {_shortened(twice)}", where=where)
        if missing := [shard for shard in shards if not os.path.isfile(shard)]:
            raise InputError(
                f"{len(missing)} of {len(shards)} shards are missing: {_shortened(missing)}",
                where=where,
                do="" if os.path.isabs(missing[0]) else f"seen from {os.getcwd()}",
            )
        for shard in shards:
            _refuse_compressed(shard, where)
        found[part] = shards
    return found


def _list_part(shards: Sequence[str], classes: int, ignored: _Ignored, where: str) -> Samples:
    samples = Samples(shards)
    for number, path in enumerate(shards):
        before = len(samples)
        try:
            with open(path, "rb") as file:
                for sample in _Shard(path, classes, ignored, where).samples(file):
                    samples.append(number, *sample)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}", where=where) from None
        if len(samples) == before:
            raise InputError(f"{path} holds no sample", where=where, legal=_legal())
    return samples


@dataclass
class _Sample:
    """Members with one key: name, offset and size of the image, and the label."""

    key: str
    image: tuple[str, int, int] | None = None
    label: int | None = None


@dataclass
class _Shard:
    """One shard while it is listed."""

    path: str
    classes: int
    ignored: _Ignored
    where: str
    _seen: set[str] = field(default_factory=set)

    def samples(self, file: BinaryIO) -> Iterator[tuple[int, int, int]]:
        """Offset, size and class number of each image, in order."""
        current = _Sample("")
        for member in (members := self._members(file)):
            key, suffix = _split(member.name)
            if not _is_part(member, suffix):
                self.ignored.add(f"{member.name} in {self.path}")
                continue
            if member.issparse():
                raise self._error(f"{member.name} is a sparse file")
            if key != current.key:
                yield from self._finished(current, members)
                if key in self._seen:
                    raise self._apart(key)
                self._seen.add(key)
                current = _Sample(key)
            self._add(current, member, suffix, file)
        yield from self._finished(current, members)

    def _members(self, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
        try:
            tar: Any = tarfile.TarFile(fileobj=file)
            while (member := tar.next()) is not None:
                tar.members.clear()  # it keeps all of them
                yield member
        except tarfile.TarError as error:
            raise self._error(f"it is damaged or cut short: {error}") from None
        # tarfile takes a broken header that is not the first for the end
        file.seek(tar.offset)
        end = file.read(_BLOCK)
        if end != bytes(_BLOCK):
            found = "has a broken header" if len(end) == _BLOCK else "ends without an end-of-archive block"
            raise self._error(f"it {found} at byte {tar.offset}: damaged or cut short")
        self._check_nothing_follows(file, tar.offset)

    def _check_nothing_follows(self, file: BinaryIO, end: int) -> None:
        """Refuses content behind the end-of-archive block, which no reader of tar files would find."""
        at = end + _BLOCK
        while part := file.read(_READ):
            if used := part.lstrip(b"\0"):
                at += len(part) - len(used)
                raise self._error(
                    f"it goes on at byte {at}, after an end-of-archive block at byte {end}: damaged, or "
                    "several archives in one file"
                )
            at += len(part)

    def _add(self, sample: _Sample, member: tarfile.TarInfo, suffix: str, file: BinaryIO) -> None:
        if suffix in _IMAGES:
            if sample.image:
                raise self._error(
                    f"sample {sample.key!r} has two images, {sample.image[0]} and {member.name}"
                )
            sample.image = (member.name, member.offset_data, member.size)
            return
        if sample.label is not None:
            raise self._error(f"sample {sample.key!r} has two labels")
        file.seek(member.offset_data)
        text = file.read(min(member.size, _LONGEST_LABEL))
        if not text.strip().isdigit() or member.size > _LONGEST_LABEL:
            shown = text.decode("utf-8", "replace")
            raise self._error(f"{member.name} holds {shown!r:.50}", legal="a class number as text")
        sample.label = int(text)
        if sample.label >= self.classes:
            raise self._error(
                f"{member.name} holds class {sample.label}",
                legal=f"0 to {self.classes - 1}, since data.classes is {self.classes}",
            )

    def _finished(self, sample: _Sample, others: Iterator[tarfile.TarInfo]) -> Iterator[tuple[int, int, int]]:
        """The sample whose members ended; one that lacks a part may have it among ``others``."""
        if not sample.key:
            return
        if sample.image is None or sample.label is None:
            names = ((member, *_split(member.name)) for member in others)
            if any(key == sample.key and _is_part(member, suffix) for member, key, suffix in names):
                raise self._apart(sample.key)
        if sample.image is None:
            raise self._error(f"sample {sample.key!r} has a label, but no image", legal=_legal())
        if sample.label is None:
            raise self._error(f"sample {sample.key!r} has no label {sample.key}.{_LABEL}")
        yield *sample.image[1:], sample.label

    def _apart(self, key: str) -> InputError:
        return self._error(
            f"the members of sample {key!r} do not stand together", do="pack them in the order of their names"
        )

    def _error(self, what: str, legal: str = "", do: str = "") -> InputError:
        return InputError(f"shard {self.path}: {what}", where=self.where, legal=legal, do=do)


@dataclass
class _Ignored:
    """Counts members that are no part of a sample, and keeps the first as an example."""

    count: int = 0
    example: str = ""

    def add(self, name: str) -> None:
        self.example = self.example or name
        self.count += 1

    def notes(self) -> list[str]:
        return [f"{self.count} other members are ignored, such as {self.example}"] if self.count else []


def _split(name: str) -> tuple[str, str]:
    """A member's sample and, in small letters, what it is of it; the latter is empty where it is of none."""
    folder, slash, file = name.rpartition("/")
    key, _, suffix = file.partition(".")
    return f"{folder}{slash}{key}", suffix.lower() if key else ""


def _is_part(member: tarfile.TarInfo, suffix: str) -> bool:
    return member.isreg() and (suffix == _LABEL or suffix in _IMAGES)


def _refuse_compressed(shard: str, where: str) -> None:
    try:
        with open(shard, "rb") as file:
            start = file.read(8)
    except OSError as error:
        raise InputError(f"{shard} cannot be read: {error.strerror}", where=where) from None
    for magic, kind in _MAGIC.items():
        if start.startswith(magic):
            raise InputError(
                f"{shard} is compressed ({kind}): its samples cannot be reached one by one",
                where=where,
                legal="tar files without compression; images are compressed already",
                do="unpack it once, for gzip: gzip -d",
            )


def _legal() -> str:
    return f"pairs of an image ({', '.join(sorted(_IMAGES))}) and a {_LABEL}"


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
