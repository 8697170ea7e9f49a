"""Reading advice strictly."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.report.advice_record import MeasuredPoint, parse_advice
from hvdtrain.scaling.advice_document import advice_document, measured_document
from hvdtrain.scaling.advise import Request, advise
from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.measured_answer import answer
from hvdtrain.scaling.measured_input import Measured
from hvdtrain.scaling.profile import parse_profile
from tests.unit.report.documents import MEASURED, advice
from tests.unit.scaling.profiles import profile_document


def parse(document):
    return parse_advice(Fields(document, "advice.json"))


def test_the_rows_with_their_bands():
    row = parse(advice()).rows[2]
    assert (row.gpus, row.throughput, row.efficiency.value) == (4, 360.0, 0.9)
    assert (row.efficiency.low, row.efficiency.high) == (pytest.approx(0.85), pytest.approx(0.95))
    assert row.time_s.value == 1000
    assert row.cost.value == pytest.approx(2.0 * 4 * 100 / 360)


def test_the_profile_is_a_measured_point_relative_to_one_gpu():
    assert parse(advice()).measured == (MeasuredPoint(2, 190.0, pytest.approx(0.95)),)


def test_measured_rows_are_measured_points():
    record = parse(MEASURED)
    assert [(point.gpus, point.efficiency) for point in record.measured] == [(1, 1.0), (8, 0.95)]
    assert record.rows[0].time_s is None
    assert record.rows[0].cost is None


def test_what_advise_writes_is_read():
    request = Request(network="25GbE", price=2.0, max_gpus=16, min_efficiency=0.5)
    document = advice_document(advise(parse_profile(Fields(profile_document(), "p")), request))
    record = parse(document)
    assert [row.gpus for row in record.rows] == [1, 2, 4, 8, 16]
    assert record.verdict == document["verdict"]
    assert record.waterfall
    assert record.gates


def test_what_advise_writes_of_measured_throughputs_is_read():
    measured = Measured(
        rows={1: 872.0, 8: 6679.0},
        params=25.6e6,
        predict=(16, 32),
        gpus_per_node=8,
        network="25GbE",
        batch_per_gpu=None,
        accumulate=1,
        bytes_per_param=4.0,
        price=None,
        samples=1e6,
    )
    record = parse(measured_document(measured, answer(measured)))
    assert [row.gpus for row in record.rows] == [16, 32]
    assert [point.gpus for point in record.measured] == [1, 8]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("kind", "other", "kind is 'other'; legal: advice"),
        ("predictions", [], "predictions is empty"),
        ("predictions", [3], r"predictions\[0\] must be an object"),
        ("predictions", [{"gpus": 0}], r"predictions\[0\].gpus is 0"),
        ("predictions", [{"gpus": 1.5}], r"predictions\[0\].gpus is 1.5"),
        ("recommended_gpus", None, "recommended_gpus must be a number"),
        ("worth_it", 1, "worth_it must be true or false"),
        ("verdict", 5, "verdict must be a string"),
        ("waterfall", {"gpus": 8, "efficiency": 0.5, "bars": []}, "waterfall.bars do not sum"),
        ("notes", "text", "notes must be a list"),
        ("what_if", None, "what_if must be a list"),
    ],
)
def test_what_is_wrong_is_named(key, value, told):
    with pytest.raises(InputError, match=told):
        parse(advice(**{key: value}))


def test_a_band_upside_down():
    document = advice()
    document["predictions"][1]["efficiency_low"] = 0.99
    with pytest.raises(
        InputError, match=r"predictions\[1\].efficiency_low is 0.99, above efficiency_high, 0.98"
    ):
        parse(document)
