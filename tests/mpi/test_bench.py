"""bench on two and three real ranks: every library, foreign launchers, and how it fails."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from hvdtrain.backends.choose import horovod_is_built
from hvdtrain.scaling.network import read_network

pytestmark = pytest.mark.mpi

needs_horovod = pytest.mark.skipif(not horovod_is_built(), reason="needs Horovod: make build-horovod")
TINY = ["--sizes", "8,4K", "--repeat", "5"]
HVDTRAIN = [sys.executable, "-P", "-m", "hvdtrain.cli.main"]


@pytest.fixture(autouse=True)
def nothing_left():
    """No rank outlives a command."""
    yield
    deadline = time.monotonic() + 20
    while (left := _ranks()) and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()
    assert not left, lines


def _ranks():
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if "hvdtrain.tools.bench_allreduce" in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def check_rows(document, size, libraries):
    """The rows of ``TINY``, by their definitions."""
    told = [(row["library"], row["bytes"]) for row in document["rows"]]
    assert told == [(library, num_bytes) for library in libraries for num_bytes in (8, 4096)]
    for row in document["rows"]:
        assert (row["ranks"], row["level"], row["dtype"]) == (size, "inside", "float32")
        assert 0 < row["min_s"] <= row["time_s"] <= row["p95_s"]
        assert 3 <= row["repetitions"] <= 5
        assert row["algbw_gb_s"] == pytest.approx(row["bytes"] / row["time_s"] / 1e9)
        assert row["busbw_gb_s"] == pytest.approx(row["algbw_gb_s"] * 2 * (size - 1) / size)
    fits = [(fit["library"], fit["level"], fit["ranks"]) for fit in document["fits"]]
    assert fits == [(library, "inside", size) for library in libraries]
    assert document["size"] == size
    assert [host["ranks"] for host in document["hosts"]] == [size]


@needs_horovod
@pytest.mark.parametrize("size", [2, 3])
def test_all_libraries(hvdtrain, tmp_path, size):
    ended = hvdtrain("bench", "allreduce", "-np", size, *TINY, "--save", "net.json", "--json")
    assert ended.code == 0, ended.err
    document = ended.document
    assert document["library"] == "horovod"
    check_rows(document, size, ["horovod", "mpi", "torch"])
    assert json.loads((tmp_path / "net.json").read_text()) == document
    assert read_network(str(tmp_path / "net.json"), size).inside.is_measured
    # The rows were shown while they came.
    assert sum(line.startswith(("horovod ", "mpi ", "torch ")) for line in ended.err.splitlines()) == 9


def test_half_precision_is_left_out_where_mpi_has_none(hvdtrain):
    words = ["--sizes", "8", "--repeat", "3", "--library", "torch,mpi", "--dtype", "float16,float32"]
    ended = hvdtrain("bench", "allreduce", "-np", "2", *words, "--json")
    rows = [(row["library"], row["dtype"]) for row in ended.document["rows"]]
    assert rows == [("torch", "float16"), ("torch", "float32"), ("mpi", "float32")]
    assert ended.document["notes"] == ["without mpi float16: MPI has no 16-bit floating point"]
    assert ended.document["fits"] == []  # of one size nothing can be fitted
    refused = hvdtrain("bench", "allreduce", "-np", "2", "--library", "mpi", "--dtype", "float16")
    assert refused.code == 2
    assert "--dtype: MPI has no 16-bit floating point" in refused.error


def test_without_mpi(hvdtrain):
    local = ["bench", "allreduce", "-np", "2", "--launcher", "local", *TINY]
    refused = hvdtrain(*local, "--library", "mpi")
    assert refused.code == 2
    assert "--library: mpi: a local launch has no MPI; start the ranks with mpirun or srun" in refused.error
    ended = hvdtrain(*local, "--json")
    assert ended.code == 0, ended.err
    check_rows(ended.document, 2, ["horovod", "torch"] if horovod_is_built() else ["torch"])
    assert any(note.startswith("without mpi: a local launch has no MPI") for note in ended.document["notes"])


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_joins_a_launch_that_somebody_else_made(run_program, bin_dir, launcher):
    bench = ["bench", "allreduce", "--library", "torch", *TINY, "--json"]
    mpirun = [str(bin_dir / "mpirun"), "-np", "2", "--oversubscribe", "--bind-to", "none", *HVDTRAIN, *bench]
    torchrun = [str(bin_dir / "torchrun"), "--nproc-per-node", "2", "-m", "hvdtrain.cli.main", *bench]
    ended = run_program(mpirun if launcher == "mpirun" else torchrun)
    assert ended.code == 0, ended.err
    check_rows(ended.document, 2, ["torch"])


def test_bad_input_inside_a_launch_is_told_once(run_program, bin_dir):
    words = [
        "-np",
        "2",
        "--oversubscribe",
        "--bind-to",
        "none",
        *HVDTRAIN,
        "bench",
        "allreduce",
        "--sizes",
        "x",
    ]
    ended = run_program([str(bin_dir / "mpirun"), *words])
    assert ended.code == 2
    assert "--sizes: 'x' is no size of a buffer" in ended.error


def test_sizes_of_the_usual_range_end_with_the_time(hvdtrain):
    words = ["--library", "torch", "--limit", "1", "--repeat", "3"]
    ended = hvdtrain("bench", "allreduce", "-np", "2", *words, "--json")
    assert ended.code == 0, ended.err
    notes = ended.document["notes"]
    assert notes[0] == "on CPUs sizes end at 32 MiB; pass --sizes 8B..256MB for larger ones"
    assert ended.document["rows"][0]["bytes"] == 8
    largest = ended.document["rows"][-1]["bytes"]
    # On a fast machine all of them fit into the second.
    assert largest == 32 << 20 or notes[1].endswith("and above are left out: the time limit of 1 s")


@needs_horovod
@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_a_step_with_its_loader_and_without(hvdtrain, backend):
    words = [
        "-np",
        "2",
        "--steps",
        "4",
        "--set",
        f"backend={backend}",
        "--set",
        "batch.accumulate=2",
        "--json",
    ]
    document = hvdtrain("bench", "step", *words).document
    told = {key: document[key] for key in ("schema", "kind", "size", "backend", "global_batch", "steps")}
    assert told == {
        "schema": 1,
        "kind": "step",
        "size": 2,
        "backend": backend,
        "global_batch": 64,
        "steps": 4,
    }
    for times in (document["in_memory"], document["with_loader"]):
        assert 0 < times["min_s"] <= times["median_s"] <= times["p95_s"] <= times["max_s"]
    share = 1 - document["in_memory"]["median_s"] / document["with_loader"]["median_s"]
    assert document["data_share"] == pytest.approx(max(0.0, share))


def test_a_step_that_cannot_be_taken(hvdtrain):
    ended = hvdtrain("bench", "step", "-np", "2", "--set", "model=nowhere:model", "--json")
    assert ended.code == 2
    assert "nowhere" in ended.error
    assert "nowhere" in ended.document["error"]


def test_a_rank_that_is_killed_is_named(tmp_path):
    """Its end ends the others."""
    words = ["-np", "2", "--library", "torch", "--launcher", "local", "--sizes", "8", "--limit", "900"]
    argv = [*HVDTRAIN, "bench", "allreduce", *words, "--repeat", "100000"]
    bench = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert bench.stdout.readline().startswith("allreduce in place, 2 ranks on 1 host")
        (second,) = [one for one in _ranks() if one.environ().get("RANK") == "1" and not _is_agent(one)]
        second.kill()
        _, err = bench.communicate(timeout=60)
    finally:
        bench.kill()
        bench.communicate()
    assert bench.returncode == 137, err
    assert "rank 1 on host" in err
    assert "killed by signal 9" in err


def _is_agent(process):
    return any(word.endswith("agent.py") for word in process.cmdline())
