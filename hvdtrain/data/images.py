"""From an image's file to the numbers that a model sees, decoded by Pillow."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps

from hvdtrain.data.batch import SkipSample
from hvdtrain.errors import InputError

# The statistics of ImageNet, which torchvision's pretrained models expect.
_MEAN = {3: (0.485, 0.456, 0.406), 1: (0.5,)}
_STD = {3: (0.229, 0.224, 0.225), 1: (0.5,)}

# These say that the file is bad; any other number (EIO, ESTALE, ...) says that the storage is.
_BAD_FILE = (None, errno.EACCES, errno.EISDIR, errno.ELOOP)


@dataclass(frozen=True)
class ImageReader:
    """Decodes images, and says which one if it cannot.

    Attributes:
        size: Side of the square, pixels.
        channels: 3 for RGB, 1 for grey.
        skip: Leave unreadable images out; without it they are errors.
        where: The key of the job file that names the images, for messages.
    """

    size: int
    channels: int
    skip: bool
    where: str

    def read(self, file: str | BinaryIO, name: Callable[[], str]) -> torch.Tensor:
        """Reads and decodes an image.

        Args:
            file: Its path, or the file itself.
            name: Tells what to call the image in messages.

        Raises:
            InputError: It cannot be decoded.
            SkipSample: The same, where ``skip`` is set.
            OSError: The storage failed.
            FileNotFoundError: There is no such file.
            MemoryError: This machine's memory is too small, which says nothing about the image.
        """
        try:
            return decode(file, self.size, self.channels)
        except (MemoryError, FileNotFoundError):
            raise
        except Exception as error:  # Pillow's decoders raise nearly anything on broken files
            if isinstance(error, OSError) and error.errno not in _BAD_FILE:
                raise
            reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
            reason = reason.replace(f" {file!r}", "")  # Pillow repeats the file in some messages
            if self.skip:
                raise SkipSample(f"{name()}: {reason}") from error
            raise InputError(
                f"image {name()} cannot be read: {reason}",
                where=self.where,
                do="mend or remove it, or set data.unreadable=skip",
            ) from error


def decode(file: str | BinaryIO, size: int, channels: int) -> torch.Tensor:
    """An image, by its path or opened, as a normalised float32 tensor of shape (channels, size, size).

    The first frame is taken, turned as its EXIF data say. Transparency is laid over white, 16-bit
    grey is scaled to 8 bits.
    """
    mode = "RGB" if channels == 3 else "L"
    with Image.open(file) as opened:
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
