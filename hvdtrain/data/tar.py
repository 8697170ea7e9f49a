"""Images in tar shards, read one by one at their places."""

from __future__ import annotations

import os
import socket
import tarfile
from collections import OrderedDict
from io import BytesIO

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from hvdtrain.data.images import ImageReader
from hvdtrain.data.tarindex import Samples
from hvdtrain.errors import InputError

_MOST_OPEN = 64  # per process; the usual limit is 1024 for all that it opens


class TarDataset(Dataset[tuple[torch.Tensor, int]]):
    """Samples ``(image, class number)``, as ``FolderDataset`` gives them.

    Args:
        samples: Where the images lie.
        reader: Decodes them; its ``where`` names the pattern of the shards in messages.
    """

    draws = False  # no random numbers: see PassReader

    def __init__(self, samples: Samples, reader: ImageReader) -> None:
        self._samples, self._reader = samples, reader
        self._files = OpenFiles()

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Reads and decodes an image.

        Raises:
            InputError: It cannot be decoded, or the shard is not there or shorter than it was, the
                latter two also where unreadable images are skipped.
            SkipSample: It cannot be decoded, and unreadable images are skipped.
            OSError: The storage failed.
        """
        path, offset, size = self._samples.place(index)
        try:
            content = self._files.read(path, offset, size)
        except FileNotFoundError as error:
            host = socket.gethostname()
            raise self._wrong(
                f"{path} is not there on host {host}", f"is its file system on {host}?"
            ) from error
        if len(content) < size:
            raise self._wrong(f"{path} is shorter than when it was listed", "start again with whole shards")
        image = self._reader.read(BytesIO(content), lambda: self.describe(index))
        return image, self._samples.label(index)

    @property
    def targets(self) -> npt.NDArray[np.int32]:
        """The class numbers of all images."""
        return np.frombuffer(self._samples.labels, dtype=np.int32)

    def describe(self, index: int) -> str:
        """Member and shard of an image, for messages."""
        path, offset, _ = self._samples.place(index)
        try:
            header = self._files.read(path, offset - tarfile.BLOCKSIZE, tarfile.BLOCKSIZE)
            name = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape").name
        except (OSError, tarfile.TarError):
            name = f"at byte {offset}"
        return f"{name} in {path}"

    def _wrong(self, what: str, do: str) -> InputError:
        return InputError(f"shard {what}", where=self._reader.where, do=do)


class OpenFiles:
    """Files that stay open between two readings: on a parallel file system opening is the slow part."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[str, int] = OrderedDict()

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Bytes of a file; fewer than ``size`` where it ends.

        A process that was forked may read through its parent's descriptors: the place is an
        argument, not a state of the descriptor.

        Raises:
            OSError: The file cannot be opened or read.
        """
        descriptor = self._descriptors.pop(path, None)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors[path] = descriptor
        if len(self._descriptors) > _MOST_OPEN:
            os.close(self._descriptors.popitem(last=False)[1])
        parts = []
        while size > 0 and (part := os.pread(descriptor, size, offset)):  # at most 2 GiB at once
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Closes all."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, OrderedDict[str, int]]:
        return {"_descriptors": OrderedDict()}  # in another process the numbers mean nothing
