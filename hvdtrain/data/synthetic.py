"""Images made of arithmetic: for tests of speed without a file system, yet learnable."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from hvdtrain.data.permutation import mix_words

# How many different cuts of the noise there are; the longer, the fewer samples share one.
_NUM_CUTS = 1 << 16


class SyntheticDataset(Dataset[tuple[torch.Tensor, int]]):
    """Samples ``(image, class)``: a plane wave of the class's direction under noise.

    Sample i is of class ``i mod classes``. Its wave has ``1 + class mod k`` periods across and
    ``class div k`` down, k being the root of the number of classes rounded up; its noise is
    Gaussian with deviation 0.5, a cut at a place that seed and index decide out of one block that
    all samples share: drawing new noise for each would take longer than the training step that is
    to be measured. Every rank and every run computes the same sample from (seed, index).

    Args:
        shape: Channels, height, width.
        classes: Number of classes.
        samples: Number of samples.
        seed: In ``[0, 2^64)``; training and validation sets take different ones.
    """

    draws = False  # no random numbers: see PassReader

    def __init__(self, shape: tuple[int, int, int], classes: int, samples: int, seed: int) -> None:
        self.shape, self.num_classes, self._samples, self._seed = shape, classes, samples, seed
        # NumPy, since PyTorch would spread these small sums over the cores that train
        noise = np.random.default_rng(seed).standard_normal(math.prod(shape) + _NUM_CUTS, dtype=np.float32)
        self._noise = np.float32(0.5) * noise

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Computes a sample: float32 of ``shape``, and its class."""
        if not 0 <= index < self._samples:
            raise IndexError(f"sample {index} of {self._samples}")
        label = index % self.num_classes
        cut = mix_words(self._seed, index) % _NUM_CUTS
        noise = self._noise[cut : cut + math.prod(self.shape)]
        return torch.from_numpy(noise.reshape(self.shape) + self._wave(label)), label

    def _wave(self, label: int) -> npt.NDArray[np.float32]:
        _, height, width = self.shape
        side = math.isqrt(self.num_classes - 1) + 1
        down, across = divmod(label, side)
        rows = np.arange(height, dtype=np.float32) * np.float32(2 * math.pi * down / height)
        columns = np.arange(width, dtype=np.float32) * np.float32(2 * math.pi * (across + 1) / width)
        # cos(r + c) by the sum formula: two outer products instead of a cosine for each pixel
        return np.outer(np.cos(rows), np.cos(columns)) - np.outer(np.sin(rows), np.sin(columns))
