"""``hvdtrain advise --measured`` as users call it: networks, limits, pages, and what cannot be told."""

import json
from pathlib import Path

import pytest

from hvdtrain.cli import main as cli
from tests.unit.scaling.test_network import fit

JOB = ("--measured", "1:872,8:6679", "--params", "25.6M", "--gpus-per-node", "8")
KEYS = {"gpus", "throughput", "efficiency", "efficiency_low", "efficiency_high", "step_time_s", "cost"}


def invoke(*words):
    return cli.main(["advise", *words])


def asked(capsys, *words, code=0):
    assert invoke(*words, "--json") == code
    return json.loads(capsys.readouterr().out)


def efficiency(document):
    return document["predictions"][-1]["efficiency"]


@pytest.fixture
def network(tmp_path):
    def written(**changed):
        path = tmp_path / "network.json"
        document = {"schema": 1, "kind": "allreduce", "size": 16, "hosts": [], "rows": []}
        fits = [fit(level="inside", ranks=8, alpha_s=1e-5, beta=1e-11), fit(ranks=2, **changed)]
        path.write_text(json.dumps({**document, "fits": fits}))
        return str(path)

    return written


def test_a_measured_network(network, capsys):
    slow = asked(capsys, *JOB, "--network", network(beta=8e-9), "--predict", "32")
    fast = asked(capsys, *JOB, "--network", network(beta=1e-11), "--predict", "32")
    assert efficiency(slow) < efficiency(fast) - 0.2
    assert set(fast["predictions"][0]) == KEYS
    assert any("between nodes: measured with horovod on 2 ranks: 0.125 GB/s" in one for one in slow["notes"])


def test_another_link_on_a_measured_network(network, capsys):
    path = network(beta=1e-10)
    measured = asked(capsys, *JOB, "--network", path, "--predict", "32")
    other = asked(capsys, *JOB, "--network", f"{path}+1Gbit/s@1ms", "--predict", "32")
    assert efficiency(other) < efficiency(measured) - 0.2
    assert any("1GbE (TCP) + 1 ms" in one for one in other["notes"])


def test_a_link_of_one_s_own(capsys):
    rising = [
        efficiency(asked(capsys, *JOB, "--network", name, "--predict", "32"))
        for name in ("200Mbit/s@1ms", "1Gbit/s", "1.5GB/s@30us", "NVLink2+20GB/s@5us")
    ]
    assert rising == sorted(rising)
    assert rising[0] < 0.3 < 0.9 < rising[-1]


@pytest.mark.parametrize(
    ("words", "code", "gates"),
    [
        (("--min-efficiency", "0.99"), 3, {"min_efficiency": False}),
        (("--samples", "115M", "--deadline", "3"), 0, {"deadline_h": True}),
        (("--samples", "115M", "--deadline", "0.1"), 3, {"deadline_h": False}),
        (("--samples", "115M", "--price", "2", "--budget", "1000"), 0, {"budget": True}),
        (("--samples", "115M", "--price", "2", "--budget", "1"), 3, {"budget": False}),
        (
            ("--samples", "115M", "--price", "2", "--budget", "74", "--deadline", "1"),
            3,
            {"budget": True, "deadline_h": True, "both": False},
        ),
    ],
)
def test_gates_end_with_3(capsys, words, code, gates):
    document = asked(capsys, *JOB, "--network", "25GbE", *words, code=code)
    assert {gate["name"]: gate["holds"] for gate in document["gates"]} == gates


def test_limits_choose_among_the_numbers_of_gpus(capsys):
    words = (*JOB, "--network", "25GbE-RDMA", "--samples", "115M", "--price", "2")
    free = asked(capsys, *words)
    thrifty = asked(capsys, *words, "--budget", str(free["predictions"][0]["cost"]))
    assert free["recommended_gpus"] == 64
    assert thrifty["recommended_gpus"] == 16


def test_time_and_cost_to_finish_stand_in_the_table(capsys):
    words = (*JOB, "--network", "25GbE", "--samples", "115M", "--price", "2")
    hours = 115e6 / asked(capsys, *words)["predictions"][0]["throughput"] / 3600
    assert invoke(*words) == 0
    head, *rows = capsys.readouterr().out.splitlines()[1:]
    assert head.split() == ["GPUs", "step", "samples/s", "efficiency", "band", "time", "to", "finish", "cost"]
    assert rows[2].split()[-3:-1] == [f"{hours:.3g}", "h"]


def test_counts_up_to_the_largest(capsys):
    def counts(*words):
        return [one["gpus"] for one in asked(capsys, *JOB, *words)["predictions"]]

    assert counts("--max-gpus", "48") == [16, 32, 48]
    assert counts("--max-gpus", "6") == [6]
    assert counts() == [16, 32, 64]


def test_a_page(tmp_path, capsys, network):
    page = tmp_path / "advice.html"
    path = network(beta=1e-10)
    words = (
        *JOB,
        "--network",
        path,
        "--samples",
        "1M",
        "--price",
        "2",
        "--budget",
        "0.01",
        "--html",
        str(page),
    )
    assert invoke(*words) == 3
    assert "the lowest cost is" in page.read_text()
    assert invoke(*JOB, "--network", path, "--html", path) == 2
    assert "--html" in capsys.readouterr().err
    assert invoke(*JOB, "--network", f"{path}+1GbE", "--html", path) == 2
    assert json.loads(Path(path).read_text())["kind"] == "allreduce"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--energy-price", "0.3"),
            "--energy-price: goes with a profile only; throughputs tell no power; add what",
        ),
        (
            ("--target-steps", "9"),
            "--target-steps: goes with a profile only; throughputs tell no steps; give --samples",
        ),
        (("--deadline", "3"), "--deadline: throughputs do not tell how much there is to do; give --samples"),
        (("--budget", "3", "--price", "1"), "--budget: throughputs do not tell how much there is to do"),
        (
            ("--budget", "3", "--samples", "1M"),
            "--budget: a budget needs a price; give --price, that of a GPU-hour",
        ),
        (("--predict", "9", "--max-gpus", "9"), "--predict and --max-gpus: both say which numbers of GPUs"),
        (("--network", "200Mbit/s@soon"), "--network: no delay: 'soon'"),
        (("--network", "none.json"), "none.json: cannot be read: No such file"),
    ],
)
def test_what_cannot_be_told_is_one_line(capsys, words, told):
    assert invoke(*JOB, *words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"hvdtrain: error: {told}")
    assert captured.err.count("\n") == 1


def test_rows_in_any_order_are_the_same(capsys):
    def told(rows):
        return asked(capsys, "--measured", rows, *JOB[2:], "--network", "25GbE")

    assert told("8:6679,1:872,3:2590") == told("1:872, 3:2590, 8:6679")


def test_only_ratios_matter(capsys):
    """The same job in images, and in thousands of tokens: the batch is not told, so that no unit is known."""

    def told(scale):
        rows = ",".join(f"{gpus}:{scale * rate:g}" for gpus, rate in ((1, 100.0), (4, 380.0), (6, 560.0)))
        return asked(
            capsys, "--measured", rows, "--params", "110e6", "--network", "25GbE", "--predict", "12,24"
        )

    images, tokens, steps = told(1), told(500), told(0.01)
    for other in (tokens, steps):
        for one, same in zip(images["predictions"], other["predictions"], strict=True):
            assert same["efficiency"] == pytest.approx(one["efficiency"], abs=0.02)
