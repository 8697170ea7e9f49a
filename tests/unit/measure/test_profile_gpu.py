"""What is read of a GPU, through a library that answers as NVIDIA's does; and nothing where there is none."""

import sys
from types import SimpleNamespace

import pytest
import torch

from hvdtrain.measure.profile_gpu import GpuMeter, mean_of
from hvdtrain.scaling.profile import Gpu


class NVMLError(Exception):
    pass


class Library:
    """A GPU that uses 100 J between two readings of its counter."""

    NVMLError = NVMLError

    def __init__(self, counts_energy=True):
        self.counts_energy, self.energy_mj, self.uuid = counts_energy, 5000, None

    def nvmlInit(self):  # noqa: N802 - the library's own names
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        self.uuid = uuid
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        assert handle == "handle"
        return SimpleNamespace(gpu=75)

    def nvmlDeviceGetPowerUsage(self, _handle):  # noqa: N802
        return 250_000

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle):  # noqa: N802
        if not self.counts_energy:
            raise NVMLError
        self.energy_mj += 100_000
        return self.energy_mj


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234-abcd"))
    return made


def measured():
    meter = GpuMeter(torch.device("cuda", 0))
    meter.begin()
    return meter.end()


def test_energy_over_the_time_is_the_power(library, monkeypatch):
    readings = iter([10.0, 12.0])
    monkeypatch.setattr("hvdtrain.measure.profile_gpu.time.perf_counter", lambda: next(readings))
    found = measured()
    assert library.uuid == "GPU-1234-abcd"
    assert (found.utilisation, found.power_w) == (0.75, 50.0)


def test_without_a_counter_it_is_the_mean_of_samples(library):
    library.counts_energy = False
    assert measured().power_w == 250.0


def test_no_gpu_or_no_library_is_no_measurement(monkeypatch):
    meter = GpuMeter(torch.device("cpu"))
    meter.begin()
    assert meter.end() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert measured() is None


def test_the_mean_over_ranks_needs_all_of_them():
    gpus = [Gpu(0.5, 100.0, 0.0), Gpu(1.0, 300.0, 0.0)]
    assert mean_of(gpus) == Gpu(0.75, 200.0, 0.0)
    assert mean_of([*gpus, None]) is None
    assert mean_of([]) is None
