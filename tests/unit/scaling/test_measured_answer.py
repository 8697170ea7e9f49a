"""What is made of predictions from measured throughputs: rows that count, limits, verdicts."""

from dataclasses import replace
from itertools import product

import pytest

from hvdtrain.scaling.links import delayed, ethernet, find_link
from hvdtrain.scaling.measured import predict
from hvdtrain.scaling.measured_answer import answer
from hvdtrain.scaling.measured_fit import fit
from hvdtrain.scaling.measured_gates import Limits
from hvdtrain.scaling.measured_input import Measured
from hvdtrain.scaling.measured_model import throughput

ROWS = ({16: 1600.0, 32: 2900.0}, {8: 800.0, 16: 1300.0}, {1: 100.0, 8: 780.0}, {8: 700.0})


def asked(rows, predict=(32,), **changed):
    facts = {"params": 25.6e6, "gpus_per_node": 8, "network": "10GbE", "batch_per_gpu": 64, **changed}
    return Measured(rows=rows, predict=predict, **facts)


@pytest.mark.parametrize(
    ("rows", "params", "network"),
    [*product(ROWS, (25.6e6, 1e9), ("1GbE", "25GbE-RDMA"))],
)
def test_what_was_measured_is_predicted(rows, params, network):
    """A few noises off at most; and of all that is believed the measured value is a likely one."""
    given = asked(rows, params=params, network=network, batch_per_gpu=8)
    fitted = fit(given)
    for gpus, value in rows.items():
        one = predict(fitted, gpus)
        assert one.throughput == pytest.approx(value, rel=max(0.03, 2.5 * fitted.noise))
        assert one.efficiency_low <= one.efficiency <= one.efficiency_high


def test_fewer_gpus_than_were_measured_may_do_better_than_linear():
    """VGG-16 on 16 and 32 GPUs over 10GbE loses much that 8 GPUs of a node do not lose."""
    given = asked({16: 1600.0, 32: 2900.0}, (8,), params=138e6, network="NVLink2+10GbE")
    fitted = fit(given)
    one = predict(fitted, 8)
    assert one.efficiency > 1.5
    assert one.throughput == pytest.approx(throughput(fitted.facts, fitted.estimated.theta, 8), rel=0.5)
    width = one.efficiency_high - one.efficiency_low
    assert one.efficiency_low < one.efficiency < one.efficiency_high
    assert 0.1 * one.efficiency < width <= 0.3 * one.efficiency + 1e-9


def test_efficiencies_are_of_the_first_row_that_counts():
    given = asked({1: 10.0, 2: 190.0, 4: 360.0, 8: 640.0, 16: 1000.0}, (32,), batch_per_gpu=32)
    found = answer(replace(given, limits=Limits(min_efficiency=0.9)))
    assert found.base_gpus == 2
    assert found.predictions[0].efficiency < 0.8
    assert found.is_refused
    assert any("relative to the row of 2 GPUs" in note for note in found.notes)


def test_nothing_is_compared_with_a_row_that_was_left_out():
    given = asked({1: 10.0, 2: 20.0, 4: 5.0}, (8,), params=25e6, gpus_per_node=4, network="25GbE")
    found = answer(given)
    assert found.left_out == 4
    assert "4 GPUs at" not in found.verdict
    assert found.verdict.endswith("the row of 4 GPUs is left out, it contradicts the others.")


@pytest.mark.parametrize(("limit", "is_refused"), [(0.88, False), (0.95, True)])
def test_a_measured_row_counts_as_measured(limit, is_refused):
    """90.6 % at 32 GPUs, though it was asked for too."""
    given = asked({16: 1600.0, 32: 2900.0}, (32,), limits=Limits(min_efficiency=limit))
    assert answer(given).is_refused == is_refused


def test_the_recommended_number_keeps_the_deadline():
    rows = {1: 100.0, 8: 700.0, 16: 1000.0, 32: 1300.0}
    given = asked(rows, (64,), params=138e6, samples=100e6, limits=Limits(deadline_h=18.0))
    found = answer(given)
    assert not found.is_refused
    hours = 100e6 / {**rows, 64: found.predictions[0].throughput}[found.recommended_gpus] / 3600
    assert hours <= 18.0


@pytest.mark.parametrize("most", [1, 4])
def test_no_more_gpus_are_recommended_than_there_are(most):
    limits = Limits(deadline_h=20.0)  # 16 GPUs would keep it
    rows = {1: 100.0, 8: 780.0, 16: 1500.0}
    found = answer(asked(rows, (most,), max_gpus=most, samples=100e6, limits=limits))
    assert found.recommended_gpus <= most
    assert found.is_refused


def test_a_prediction_of_the_first_row_alone_names_no_cause():
    found = answer(asked({8: 700.0}, (8,), params=1e9, network="1GbE", batch_per_gpu=8))
    assert found.bottleneck == "none"
    assert found.verdict.startswith("Stay at 8 GPUs")


def test_the_verdict_tells_the_row_as_measured():
    found = answer(asked({16: 1600.0, 32: 2900.0}, (8,), params=138e6, network="NVLink2+10GbE"))
    assert found.verdict.startswith(
        "Use 32 GPUs: 91 % efficiency (measured) against 16 GPUs, 1.81 times the throughput of 16 GPUs at "
        "10 % more cost per sample"
    )


@pytest.mark.parametrize("network", ["16x800GbE", "25GbE-CPU@5ms", "8x25GbE@1ms"])
def test_another_transport_keeps_lanes_and_delay(network):
    found = answer(asked({1: 100.0, 8: 780.0}, (64,), params=1e9, network=network, batch_per_gpu=8))
    link = find_link(network)
    others = [one.change for one in found.what_if if "Gbit/s RDMA" in one.change or "(TCP)" in one.change]
    if link.delay_s:
        assert all(" ms between nodes" in one for one in others)


def test_a_delay_of_none_is_the_same_link():
    assert delayed(ethernet(10), 0.0) == ethernet(10)
    assert delayed(ethernet(10), 2e-3).delay_s == 2e-3
