"""Networks from files and names, and the time of an allreduce over two levels."""

import json

import pytest

from hvdtrain.errors import InputError
from hvdtrain.scaling.collectives import Wire, ring
from hvdtrain.scaling.network import Level, Network, read_network
from hvdtrain.scaling.open_mpi import open_mpi


def fit(level="between", library="horovod", ranks=2, alpha_s=2e-3, beta=1e-9, residual=0.03):
    return {
        "level": level,
        "library": library,
        "ranks": ranks,
        "alpha_s": alpha_s,
        "beta_s_per_byte": beta,
        "residual": residual,
        "algorithm": "ring",
    }


def row(library, num_bytes, time_s):
    return {
        "bytes": num_bytes,
        "time_s": time_s,
        "library": library,
        "level": "between",
        "dtype": "float32",
    }


@pytest.fixture
def write(tmp_path):
    def written(*fits, **changed):
        path = tmp_path / "network.json"
        document = {"schema": 1, "kind": "allreduce", "size": 2, "hosts": [], "rows": [], "fits": list(fits)}
        path.write_text(json.dumps({**document, **changed}))
        return str(path)

    return written


def test_bare_mpi_tells_the_engine_from_the_messages(write):
    path = write(fit(alpha_s=2e-3, beta=1.2e-9), fit(library="mpi", alpha_s=5e-4))
    level = read_network(path, 1).between
    # 2 messages of a ring of 2 ranks are 1 ms, two agreements 2 * 0.5 ms: 2 of 4 ms are the engine's own
    assert (level.wire.alpha_s, level.fixed_s) == (pytest.approx(5e-4), pytest.approx(2e-3))
    assert level.wire.beta_s == 1.2e-9
    assert level.is_measured
    cost = read_network(path, 1).allreduce(1e6, 4)
    assert cost.latency_s == pytest.approx(6 * 5e-4 + 2e-3)


def test_a_fast_network_waits_for_the_cycle_of_the_benchmark_only(write):
    # 1.1 ms an allreduce, 20 us the messages and agreements: all but 0.1 ms is the cycle's
    level = read_network(write(fit(alpha_s=0.55e-3), fit(library="mpi", alpha_s=5e-6)), 1).between
    assert level.fixed_s == pytest.approx(1e-4)


def test_ranks_agree_by_the_messages_of_an_allreduce(write):
    network = read_network(write(fit(), fit(library="mpi", alpha_s=5e-4)), 1)
    # recursive doubling: 1 round, 3 with one rank beyond the power of two, 2
    assert [network.agreement_s(ranks) for ranks in (1, 2, 3, 4)] == pytest.approx([0, 5e-4, 1.5e-3, 1e-3])


def test_without_bare_mpi_a_cycle_is_the_engine_s(write):
    level = read_network(write(fit(alpha_s=2e-3)), 1).between
    assert (level.wire.alpha_s, level.fixed_s) == (pytest.approx(1.5e-3), 0)


def test_what_open_mpi_did_is_fitted_where_the_file_says_that_it_was(write):
    wire, ranks = Wire(1e-4, 1e-9), 3
    sizes = [8 * 4**i for i in range(11)]
    rows = [row("mpi", size, open_mpi(size, ranks, wire).total_s) for size in sizes]
    rows += [row("horovod", size, 1.1e-3 + open_mpi(size, ranks, wire).transfer_s) for size in sizes]
    fits = [fit(ranks=ranks), fit(library="mpi", ranks=ranks)]
    level = read_network(write(*fits, rows=rows, device="cpu", mpi="Open MPI v5.0.11"), 1).between
    assert (level.wire.alpha_s, level.wire.beta_s) == (pytest.approx(1e-4), pytest.approx(1e-9))
    assert level.fixed_s == pytest.approx(1e-4)
    assert level.cost(1e7, 3).transfer_s == pytest.approx(3 * 1e-2)
    other = read_network(write(*fits, rows=rows, device="cuda", mpi="Open MPI v5.0.11"), 1).between
    assert other.cost(1e7, 3).transfer_s == pytest.approx(4 / 3 * 1e-2)


def test_the_engine_that_trains_is_preferred(write):
    path = write(fit(beta=1e-9), fit(library="torch", beta=3e-9))
    assert read_network(path, 1, "torch").between.wire.beta_s == 3e-9
    assert read_network(path, 1).between.wire.beta_s == 1e-9


def test_a_file_with_one_level_serves_the_other_or_says_so(write):
    network = read_network(write(fit(level="inside")), 8)
    assert network.inside.is_measured
    assert "not told" in network.between.source
    assert read_network(write(fit(level="between")), 8).inside.is_measured


def test_another_link_keeps_what_the_engine_takes(write):
    path = write(fit(alpha_s=2e-3), fit(library="mpi", alpha_s=5e-4))
    level = read_network(f"{path}+100Mbit@1ms", 1).between
    assert level.wire.alpha_s == pytest.approx(1.5e-3)
    assert 1 / level.wire.beta_s == pytest.approx(0.94 * 12.5e6)
    assert level.fixed_s == pytest.approx(2e-3)


def test_a_link_inside_replaces_the_measured_one_there(write):
    path = write(fit(level="inside"), fit(beta=2e-9))
    network = read_network(f"{path}+NVLink3", 8)
    assert "NVLink3" in network.inside.source
    assert network.between.wire.beta_s == 2e-9


def test_a_network_that_nobody_told_grows_with_the_node():
    slow, fast = (read_network(None, node).between for node in (4, 16))
    assert slow.wire.beta_s == pytest.approx(2 * fast.wire.beta_s)
    assert not slow.link.is_told


def test_names_and_nothing(tmp_path):
    named = read_network("NVLink3+25GbE", 8)
    assert not named.between.is_measured
    assert "NVLink3" in named.inside.source
    assert "not told" in read_network(None, 8).between.source


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"fits": []}, "fits is empty: the network file has no fit"),
        ({"kind": "profile"}, "kind is not allreduce"),
        ({"schema": 7}, "schema 7 of a network file; legal: schema 1"),
        ({"fits": [fit(level="moon")]}, r"fits\[0\].level is 'moon'; legal: inside, between"),
        ({"fits": [fit(alpha_s=-1.0)]}, r"fits\[0\].alpha_s is -1.0; legal: a number of at least 0"),
        ({"fits": [fit(alpha_s=0, beta=0)]}, "takes no time"),
        ({"fits": [fit(ranks=1)]}, r"fits\[0\].ranks is 1"),
        ({"fits": [3]}, r"fits\[0\] must be an object"),
        ({"fits": None}, "fits must be a list, found null"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(write, changed, told):
    with pytest.raises(InputError, match=told):
        read_network(write(**changed), 1)


@pytest.mark.parametrize(
    ("text", "told"), [("", "the file is empty"), ("[]", "no JSON object"), ("{", "no JSON")]
)
def test_no_document(tmp_path, text, told):
    path = tmp_path / "network.json"
    path.write_text(text)
    with pytest.raises(InputError, match=f"^{path}.*{told}"):
        read_network(str(path), 1)
    with pytest.raises(InputError, match="No such file"):
        read_network(str(tmp_path / "none.json"), 1)


def measured(alpha_s, speed):
    return Level(Wire(alpha_s, 1 / speed), 0.1, "measured", True)


def test_levels_by_hand():
    network = Network(measured(1e-6, 1e11), measured(1e-5, 1e9), 4)
    # one node: inside; 1 GPU a node: between; both: hops of each, and the slower wire with all ranks
    assert network.allreduce(1e6, 4) == ring(1e6, 4, network.inside.wire)
    assert network.allreduce(1e6, 1).total_s == 0
    both = network.allreduce(1e6, 8)
    assert both.latency_s == pytest.approx(2 * 1 * 1e-5 + 2 * 3 * 1e-6)
    assert both.transfer_s == pytest.approx(2 * 7 / 8 * 1e6 / 1e9)
    one = Network(network.inside, network.between, 1)
    assert one.allreduce(1e6, 8) == ring(1e6, 8, network.between.wire)
    shared = Network(network.inside, network.between, 4, hierarchical=True).allreduce(1e6, 8)
    assert shared.transfer_s == pytest.approx(2 * 3 / 4 * 1e6 / 1e11 + 2 * 1 / 2 * 1e6 / 1e9)


def test_a_link_told_whole_takes_what_it_says(write):
    path = write(fit(alpha_s=2e-3), fit(library="mpi", alpha_s=5e-4))
    level = read_network(f"{path}+12.5GB/s@5ms", 1).between
    assert level.wire == Wire(5e-3, 1 / 12.5e9)
    assert level.source.startswith(
        "link of 12.5 GB/s: 12.5 GB/s (100 % of the line rate), 5e+03 us a message; "
    )
    # without a latency the messages stay as measured
    assert read_network(f"{path}+12.5GB/s", 1).between.wire.alpha_s == pytest.approx(5e-4)
    slow = read_network(f"{path}+1Gbit/s@1ms", 1).between
    assert slow.wire.alpha_s == pytest.approx(1.5e-3)
    assert "1.5e+03 us a message" in slow.source


@pytest.mark.parametrize("sizes", [(4096, 8192, 65536), ()])
def test_a_file_of_half_precision_alone_is_read(write, sizes):
    rows = [{**row("horovod", size, 2e-3 + size * 1e-9), "dtype": "float16"} for size in sizes]
    one = {**fit(), "dtype": "float16"}
    level = read_network(write(one, rows=rows, device="cpu", mpi="Open MPI 5.0.11"), 1).between
    assert level.is_measured
    assert level.fitted is (open_mpi if sizes else ring)
