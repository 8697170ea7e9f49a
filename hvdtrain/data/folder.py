"""Images from a folder, decoded by Pillow in the process that reads the sample."""

from __future__ import annotations

import socket

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from hvdtrain.data.images import ImageReader
from hvdtrain.data.scan import Images
from hvdtrain.errors import InputError


class FolderDataset(Dataset[tuple[torch.Tensor, int]]):
    """Samples ``(image, class number)``; an image is float32 of shape (channels, size, size).

    The largest centred square is cut out and resized. Colours are normalised with ImageNet's mean
    and standard deviation, grey to [-1, 1]. There is no random augmentation: all backends see the
    same numbers.

    Args:
        images: The files.
        size: Side of the square, pixels.
        channels: 3 for RGB, 1 for grey.
        skip: Leave unreadable images out; without it they are errors.
    """

    draws = False  # no random numbers: see PassReader

    def __init__(self, images: Images, size: int, channels: int, skip: bool = False) -> None:
        self._images = images
        self._reader = ImageReader(size, channels, skip, "data.path")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Reads and decodes an image.

        Raises:
            InputError: It cannot be decoded, or is not there any more, also if ``skip`` is set.
            SkipSample: It cannot be decoded, and ``skip`` is set.
            OSError: The storage failed.
            MemoryError: This machine's memory is too small, which says nothing about the image.
        """
        path = self._images.path(index)
        try:
            image = self._reader.read(path, lambda: path)
        except FileNotFoundError as error:
            # It was listed: a host that lacks the file system would leave all of its share out.
            host = socket.gethostname()
            raise InputError(
                f"image {path} is not there on host {host}",
                where="data.path",
                do=f"is this file system mounted on {host}?",
            ) from error
        return image, self._images.label(index)

    @property
    def targets(self) -> npt.NDArray[np.int32]:
        """The class numbers of all images."""
        return np.frombuffer(self._images.labels, dtype=np.int32)

    def describe(self, index: int) -> str:
        """The path of an image, for messages."""
        return self._images.path(index)
