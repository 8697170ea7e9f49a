"""Costs of collectives by hand, bandwidth as nccl-tests defines it, and the fit with an outlier."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import InputError
from hvdtrain.scaling import collectives as c
from hvdtrain.scaling.open_mpi import open_mpi

WIRE = c.Wire(alpha_s=10e-6, beta_s=1e-9, gamma_s=0.5e-9)


@pytest.mark.parametrize(
    ("algorithm", "ranks", "latency_us", "transfer_us"),
    [
        # 1 MB over 4: 2*3*10 us; 3/4 MB * (2*1 + 0.5) ns
        ("ring", 4, 60, 1875),
        # 2 rounds: 2*10 us; 2 * 1 MB * 1.5 ns
        ("recursive doubling", 4, 20, 3000),
        # 2*2*10 us; as the ring's
        ("rabenseifner", 4, 40, 1875),
        # 2*2*10 us; 1 MB * 2.5 ns
        ("double tree", 4, 40, 2500),
        # no power of two: 3 rounds
        ("recursive doubling", 5, 30, 4500),
        ("ring", 1, 0, 0),
        ("recursive doubling", 1, 0, 0),
        ("rabenseifner", 1, 0, 0),
        ("double tree", 1, 0, 0),
    ],
)
def test_costs_by_hand(algorithm, ranks, latency_us, transfer_us):
    cost = c.ALGORITHMS[algorithm](1e6, ranks, WIRE)
    assert cost.latency_s == pytest.approx(latency_us * 1e-6)
    assert cost.transfer_s == pytest.approx(transfer_us * 1e-6)
    assert cost.total_s == cost.latency_s + cost.transfer_s


def test_hierarchical_by_hand():
    # g=4, M=2, 8 MB, inside 1 us and 100 GB/s, NIC 10 us and 10 GB/s, shared by 4:
    # 6*1 + 2*(3/4)*8e6/1e11 -> 6 us + 120 us; 2*10 us + 2*(1/2)*2e6*4/1e10 -> 20 us + 800 us
    cost = c.hierarchical(8e6, 4, 2, c.Wire(1e-6, 1e-11), c.Wire(10e-6, 1e-10))
    assert cost.latency_s == pytest.approx(26e-6)
    assert cost.transfer_s == pytest.approx(920e-6)


def test_small_messages_take_few_rounds_and_large_ones_few_bytes():
    wire = c.Wire(10e-6, 1e-10)
    assert c.cheapest(8, 64, wire)[0] == "recursive doubling"
    assert c.cheapest(1e9, 64, wire)[0] == "rabenseifner"


@pytest.mark.parametrize(
    ("ranks", "num_bytes", "time_s", "algbw", "busbw"),
    [(2, 2_097_152, 113.2e-6, 18.53, 18.53), (8, 1_048_576, 27.76e-6, 37.77, 66.10)],
)
def test_bandwidths_as_nccl_tests_prints_them(ranks, num_bytes, time_s, algbw, busbw):
    assert num_bytes / time_s / 1e9 == pytest.approx(algbw, rel=1e-3)
    assert c.bus_bandwidth(num_bytes, time_s, ranks) / 1e9 == pytest.approx(busbw, rel=1e-3)


def test_two_nodes_on_10_gbit_cannot_exceed_the_link():
    size = 1250 * 2**20
    wire = c.Wire(0.0, 1 / 1.25e9)
    best = c.ring(size, 2, wire)
    assert size == 1_310_720_000
    assert best.total_s == pytest.approx(1.0486, rel=1e-4)
    assert c.bus_bandwidth(size, best.total_s, 2) == pytest.approx(1.25e9)


SIZES = [8 * 4**i for i in range(13)]


def samples(ranks=4, alpha=20e-6, beta=2e-10):
    wire = c.Wire(alpha, beta)
    return [(size, c.ring(size, ranks, wire).total_s) for size in SIZES]


def test_the_fit_finds_what_made_the_times():
    found = c.fit_wire(samples(), 4)
    assert found.wire.alpha_s == pytest.approx(20e-6, rel=1e-6)
    assert found.wire.beta_s == pytest.approx(2e-10, rel=1e-6)
    assert found.residual < 1e-9


@pytest.mark.parametrize("index", range(len(SIZES)))
@pytest.mark.parametrize("factor", [0.02, 40.0])
def test_one_outlier_does_not_break_the_fit(index, factor):
    times = samples()
    times[index] = (times[index][0], factor * times[index][1])
    found = c.fit_wire(times, 4)
    assert found.wire.alpha_s == pytest.approx(20e-6, rel=0.02)
    assert found.wire.beta_s == pytest.approx(2e-10, rel=0.02)


@pytest.mark.parametrize("count", [2, 3])
def test_of_few_samples_all_count(count):
    # A line through two of three would call the largest an outlier, and with it the bandwidth.
    times = samples()[:: len(SIZES) // count][:count]
    times[-1] = (times[-1][0], 1.2 * times[-1][1])
    found = c.fit_wire(times, 4)
    assert c.ring(times[-1][0], 4, found.wire).total_s == pytest.approx(times[-1][1], rel=0.15)
    assert c.ring(times[0][0], 4, found.wire).total_s == pytest.approx(times[0][1], rel=0.15)


def test_another_algorithm_can_be_fitted():
    wire = c.Wire(20e-6, 2e-10)
    times = [(size, open_mpi(size, 3, wire).total_s) for size in SIZES]
    found = c.fit_wire(times, 3, open_mpi)
    assert (found.wire.alpha_s, found.wire.beta_s) == (pytest.approx(20e-6), pytest.approx(2e-10))


def test_the_residual_tells_how_far_off_the_samples_are():
    times = [(size, time * (1.1 if i % 2 else 0.9)) for i, (size, time) in enumerate(samples())]
    assert c.fit_wire(times, 4).residual == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("times", "ranks"),
    [([(8, 1.0)], 4), ([(8, 1.0), (8, 1.1)], 4), ([(8, 1.0), (16, 2.0)], 1), ([(8, 0.0), (16, 1.0)], 2)],
)
def test_what_cannot_be_fitted_is_refused(times, ranks):
    with pytest.raises(InputError):
        c.fit_wire(times, ranks)


@given(
    size=st.floats(1, 1e10),
    ranks=st.integers(2, 4096),
    alpha=st.floats(1e-7, 1e-2),
    beta=st.floats(1e-12, 1e-6),
)
def test_more_bandwidth_is_never_slower(size, ranks, alpha, beta):
    slow, fast = c.Wire(alpha, beta), c.Wire(alpha, beta / 2)
    for cost in c.ALGORITHMS.values():
        assert cost(size, ranks, fast).total_s <= cost(size, ranks, slow).total_s
    assert c.cheapest(size, ranks, fast)[1].total_s <= c.cheapest(size, ranks, slow)[1].total_s
    assert math.isfinite(c.cheapest(size, ranks, slow)[1].total_s)
