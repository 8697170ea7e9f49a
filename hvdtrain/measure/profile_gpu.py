"""What the GPU did while steps were measured, from NVIDIA's management library."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean
from threading import Event, Thread
from typing import Any

import torch

from hvdtrain.scaling.profile import Gpu

_EVERY_S = 0.1


class GpuMeter:
    """Samples the utilisation of a GPU beside the steps, and reads its energy counter around them.

    Without a GPU or without the package nvidia-ml-py it measures nothing.

    Args:
        device: What computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._library, self._handle = _open(device)
        self._samples: list[float] = []
        self._watts: list[float] = []
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True, name="hvdtrain-gpu")
        self._began_s = 0.0
        self._began_j: float | None = None

    def begin(self) -> None:
        """The steps begin."""
        if self._handle is None:
            return
        self._began_s, self._began_j = time.perf_counter(), self._energy_j()
        self._thread.start()

    def end(self) -> Gpu | None:
        """The steps are done: utilisation from 0 to 1, and watts; the energy of a step is not known here."""
        if self._handle is None:
            return None
        self._over.set()
        self._thread.join()
        elapsed_s, energy_j = time.perf_counter() - self._began_s, self._energy_j()
        power_w = fmean(self._watts) if self._watts else None
        if energy_j is not None and self._began_j is not None and elapsed_s > 0:
            power_w = (energy_j - self._began_j) / elapsed_s
        if not self._samples or power_w is None:
            return None
        return Gpu(min(1.0, fmean(self._samples)), power_w, 0.0)

    def _watch(self) -> None:
        while True:
            with suppress(self._library.NVMLError):  # what this GPU does not tell
                self._samples.append(self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)
                self._watts.append(self._library.nvmlDeviceGetPowerUsage(self._handle) / 1e3)
            if self._over.wait(_EVERY_S):
                return

    def _energy_j(self) -> float | None:
        with suppress(self._library.NVMLError):  # GPUs before Volta count none
            return float(self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
        return None


def mean_of(gpus: Sequence[Gpu | None]) -> Gpu | None:
    """The mean over the ranks; None where one of them knows nothing."""
    known = [gpu for gpu in gpus if gpu is not None]
    if not known or len(known) < len(gpus):
        return None
    return Gpu(fmean(gpu.utilisation for gpu in known), fmean(gpu.power_w for gpu in known), 0.0)


def _open(device: torch.device) -> tuple[Any, Any]:
    """The library and the GPU's handle; None for what is not there."""
    if device.type != "cuda":
        return None, None
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        # PyTorch's index is one of the visible devices only, the UUID is the device's own.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except (pynvml.NVMLError, AttributeError):
        return None, None
