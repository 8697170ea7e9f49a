"""Open MPI's choice of an algorithm, and its costs by hand where ranks are no power of two."""

import pytest

from hvdtrain.scaling.collectives import Wire, rabenseifner, recursive_doubling, ring
from hvdtrain.scaling.open_mpi import algorithm, open_mpi

WIRE = Wire(10e-6, 1e-9, 0.5e-9)


@pytest.mark.parametrize(
    ("num_bytes", "ranks", "name"),
    [
        (16, 2, "recursive doubling"),
        (4096, 3, "ring"),
        (8192, 3, "recursive doubling"),
        (65_536, 3, "ring"),
        (262_144, 3, "rabenseifner"),
        (8191, 4, "recursive doubling"),
        (8192, 4, "rabenseifner"),
        (1e9, 100_000, "rabenseifner"),
    ],
)
def test_switch_points(num_bytes, ranks, name):
    assert algorithm(num_bytes, ranks) == name


@pytest.mark.parametrize(
    ("num_bytes", "ranks", "latency_us", "transfer_us"),
    [
        # handed over, one round, handed back: 3 * 10 us; 1 KB * (3 * 1 + 2 * 0.5) ns
        (1000, 3, 30, 4),
        # halves exchanged and one handed over, 2 * 1/2; one round there and back, 2 * 1/2; the sum sent: 3 m
        # beta in 5 messages; 1/2 + 1/2 m reduced
        (1e6, 3, 50, 3500),
        # as among 4, 2 * 3/4, and 2 more: 3.5 m beta in 7 messages; 3/4 + 1/2 m reduced
        (1e6, 5, 70, 4125),
        (1e6, 1, 0, 0),
    ],
)
def test_costs_by_hand(num_bytes, ranks, latency_us, transfer_us):
    cost = open_mpi(num_bytes, ranks, WIRE)
    assert cost.latency_s == pytest.approx(latency_us * 1e-6)
    assert cost.transfer_s == pytest.approx(transfer_us * 1e-6)


def test_a_power_of_two_is_as_the_textbook_has_it():
    assert open_mpi(1e6, 8, WIRE) == rabenseifner(1e6, 8, WIRE)
    assert open_mpi(64, 8, WIRE) == recursive_doubling(64, 8, WIRE)
    assert open_mpi(32_768, 3, WIRE) == ring(32_768, 3, WIRE)
