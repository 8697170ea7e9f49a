"""The columns by hand-worked values, and the constants that are fitted to rows made from known ones."""

import pytest

from hvdtrain.measure.network import make_row, network_document
from hvdtrain.measure.network_table import fit_line, header, row_line
from hvdtrain.scaling.network import read_network


def rows_of(ranks, alpha_s, beta_s, level="inside", library="mpi", dtype="float32"):
    """Times of a ring: 2(p-1) alpha + 2((p-1)/p) m beta."""
    return [
        make_row(
            size,
            2 * (ranks - 1) * alpha_s + 2 * (ranks - 1) / ranks * size * beta_s,
            ranks,
            dtype=dtype,
            library=library,
            level=level,
        )
        for size in (8, 1024, 1 << 20, 64 << 20)
    ]


@pytest.mark.parametrize(
    ("ranks", "num_bytes", "time_us", "algbw", "busbw"),
    [
        (2, 2_097_152, 113.2, 18.53, 18.53),
        (8, 1_048_576, 27.76, 37.77, 66.10),
        (2, 1_310_720_000, 1.048576e6, 1.25, 1.25),  # 1250 MiB over links of 10 Gbit/s, at best
        (4, 1_000_000_000, 1e6, 1.0, 1.5),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(ranks, num_bytes, time_us, algbw, busbw):
    row = make_row(num_bytes, time_us * 1e-6, ranks, dtype="float32", library="mpi", level="inside")
    assert row.algbw_gb_s == pytest.approx(algbw, rel=1e-3)
    assert row.busbw_gb_s == pytest.approx(busbw, rel=1e-3)


def test_the_fit_of_a_ring_is_the_ring():
    rows = rows_of(4, 20e-6, 1e-9)
    document = network_document(rows, [("a", 4)])
    (fit,) = document["fits"]
    assert fit["alpha_s"] == pytest.approx(20e-6, rel=1e-3)
    assert fit["beta_s_per_byte"] == pytest.approx(1e-9, rel=1e-3)
    assert fit["residual"] == pytest.approx(0, abs=1e-6)
    assert (fit["level"], fit["library"], fit["ranks"], fit["algorithm"]) == ("inside", "mpi", 4, "ring")


def test_a_fit_for_each_library_and_level():
    rows = [
        *rows_of(4, 30e-6, 2e-9, "between", "horovod"),
        *rows_of(2, 5e-6, 1e-10, "inside", "horovod"),
        *rows_of(4, 10e-6, 2e-9, "between", "torch"),
    ]
    fits = network_document(rows, [("a", 2), ("b", 2)])["fits"]
    assert [(fit["library"], fit["level"], fit["ranks"]) for fit in fits] == [
        ("horovod", "between", 4),
        ("horovod", "inside", 2),
        ("torch", "between", 4),
    ]
    assert [fit["alpha_s"] for fit in fits] == pytest.approx([30e-6, 5e-6, 10e-6], rel=1e-3)


def test_float32_is_what_is_fitted_where_it_was_measured():
    rows = rows_of(2, 1e-5, 3e-9, dtype="float16") + rows_of(2, 1e-5, 1e-9)
    (fit,) = network_document(rows, [("a", 2)])["fits"]
    assert (fit["dtype"], fit["beta_s_per_byte"]) == ("float32", pytest.approx(1e-9, rel=1e-3))
    (fit,) = network_document(rows[:4], [("a", 2)])["fits"]
    assert (fit["dtype"], fit["beta_s_per_byte"]) == ("float16", pytest.approx(3e-9, rel=1e-3))


def test_of_a_single_size_nothing_is_fitted():
    assert network_document(rows_of(2, 1e-5, 1e-9)[:1], [("a", 2)])["fits"] == []


def test_the_document_is_what_advise_reads(tmp_path):
    import json

    rows = rows_of(4, 30e-6, 2e-9, "between", "torch") + rows_of(2, 5e-6, 1e-10, "inside", "torch")
    document = network_document(rows, [("a", 2), ("b", 2)], ["something"], device="cpu")
    assert {key: document[key] for key in ("schema", "kind", "size", "hosts", "library", "device")} == {
        "schema": 1,
        "kind": "allreduce",
        "size": 4,
        "hosts": [{"name": "a", "ranks": 2}, {"name": "b", "ranks": 2}],
        "library": "torch",
        "device": "cpu",
    }
    (tmp_path / "net.json").write_text(json.dumps(document))
    network = read_network(str(tmp_path / "net.json"), 2)
    assert network.inside.wire.beta_s == pytest.approx(1e-10, rel=1e-3)
    assert network.between.wire.alpha_s == pytest.approx(30e-6, rel=1e-3)


def test_lines_for_people():
    row = make_row(
        2_097_152, 113.2e-6, 2, dtype="float32", library="horovod", level="inside", repetitions=200
    )
    from dataclasses import asdict

    assert row_line(asdict(row)).split() == [
        *("horovod", "2", "float32", "2097152", "2", "MiB", "113.20", "18.526", "18.526", "200"),
    ]
    assert header([("a", 1), ("b", 1)], 2)[0] == (
        "allreduce in place, 2 ranks on 2 hosts: a (1), b (1); GB = 1e9 B"
    )
    fit = {"level": "between", "library": "mpi", "ranks": 4, "alpha_s": 2e-5, "beta_s_per_byte": 8e-10}
    assert fit_line({**fit, "residual": 0.034}) == (
        "mpi between hosts, 4 ranks as a ring: alpha 20 us, beta 0.8 ns/B (1.25 GB/s), residual 3 %"
    )
