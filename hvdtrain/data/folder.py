"""Images from a folder, decoded by Pillow in the process that reads the sample."""

from __future__ import annotations

import errno
import socket
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset

from hvdtrain.data.batch import SkipSample
from hvdtrain.data.scan import Images
from hvdtrain.errors import InputError

# The statistics of ImageNet, which torchvision's pretrained models expect.
_MEAN = {3: (0.485, 0.456, 0.406), 1: (0.5,)}
_STD = {3: (0.229, 0.224, 0.225), 1: (0.5,)}

# These say that the file is bad; any other number (EIO, ESTALE, ...) says that the storage is.
_BAD_FILE = (None, errno.EACCES, errno.EISDIR, errno.ELOOP)


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

    def __init__(self, images: Images, size: int, channels: int, skip: bool = False) -> None:
        self._images, self._size, self._channels, self._skip = images, size, channels, skip

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
            image = decode(path, self._size, self._channels)
        except FileNotFoundError as error:
            # It was listed: a host that lacks the file system would leave all of its share out.
            host = socket.gethostname()
            raise InputError(
                f"image {path} is not there on host {host}",
                where="data.path",
                do=f"is this file system mounted on {host}?",
            ) from error
        except MemoryError:
            raise
        except Exception as error:  # Pillow's decoders raise nearly anything on broken files
            if isinstance(error, OSError) and error.errno not in _BAD_FILE:
                raise
            reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
            reason = reason.replace(f" '{path}'", "")  # Pillow repeats the path in some messages
            if self._skip:
                raise SkipSample(f"{path}: {reason}") from error
            raise InputError(
                f"image {path} cannot be read: {reason}",
                where="data.path",
                do="mend or remove it, or set data.unreadable=skip",
            ) from error
        return image, self._images.label(index)

    def describe(self, index: int) -> str:
        """The path of an image, for messages."""
        return self._images.path(index)


def decode(path: str, size: int, channels: int) -> torch.Tensor:
    """A file as a normalised float32 tensor of shape (channels, size, size).

    The first frame is taken, turned as its EXIF data say. Transparency is laid over white, 16-bit
    grey is scaled to 8 bits.
    """
    mode = "RGB" if channels == 3 else "L"
    with Image.open(path) as opened:
        # JPEG only: decodes at 1/2, 1/4 or 1/8 of the size where that is still large enough.
        opened.draft(mode, (size, size))
        image = _eight_bits(ImageOps.exif_transpose(opened), mode)
    image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8).reshape(size, size, channels))
    mean, std = torch.tensor(_MEAN[channels]), torch.tensor(_STD[channels])
    values = (pixels.to(torch.float32) / 255 - mean) / std
    return values.permute(2, 0, 1).contiguous()


def _eight_bits(image: Image.Image, mode: str) -> Image.Image:
    """An image of 8 bits per channel in ``mode``, RGB or L, without transparency."""
    if image.mode.startswith("I"):  # I;16 in its byte orders, and I, as older files are opened
        values: Any = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("32-bit pixels are not supported")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("floating-point pixels are not supported")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
