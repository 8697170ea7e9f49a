"""The handwritten digits that come with scikit-learn: 1,797 images of 8x8 pixels."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import TensorDataset

from hvdtrain.errors import InputError

# Mean and standard deviation of all pixels, as fractions of the brightest value, 16.
_MEAN, _STD = 0.3053, 0.3760
_FOLD = 5


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and validation samples: float32 images of shape (1, 8, 8) and int64 classes.

    The 359 validation images are every fifth in the order of class, then place: each class is held
    out evenly, and no seed decides what a result is measured on.

    Raises:
        InputError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "the digits need scikit-learn, which is not installed",
            where="data.source",
            do="pip install scikit-learn",
        ) from None
    pixels, labels = load_digits(return_X_y=True)
    order = np.argsort(labels, kind="stable")
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[order[_FOLD - 1 :: _FOLD]] = True
    images = torch.from_numpy((pixels / 16 - _MEAN) / _STD).to(torch.float32).reshape(-1, 1, 8, 8)
    classes = torch.from_numpy(labels.astype(np.int64))
    train, validation = torch.from_numpy(~held_out), torch.from_numpy(held_out)
    return TensorDataset(images[train], classes[train]), TensorDataset(
        images[validation], classes[validation]
    )
