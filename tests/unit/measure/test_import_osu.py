"""What osu_allreduce prints, and files that are of neither benchmark."""

from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.measure.import_network import import_network

OUTPUTS = Path(__file__).parent / "outputs"
SHORT = (OUTPUTS / "osu-5.9.txt").read_text()
FULL = (OUTPUTS / "osu-7.4-full.txt").read_text()


def read(tmp_path, text, hosts=(("a", 2),)):
    path = tmp_path / "osu.txt"
    path.write_text(text)
    return import_network(path, hosts)


def refusal(tmp_path, text, hosts=(("a", 2),)):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, hosts)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_average_latency(tmp_path):
    document = read(tmp_path, SHORT, [("a", 2), ("b", 2)])
    assert (document["size"], document["library"], document["source"]) == (4, "mpi", "osu_allreduce v5.9")
    assert [(row["bytes"], row["dtype"], row["repetitions"]) for row in document["rows"]] == [
        (4, "float32", None),
        (1024, "float32", None),
        (1_048_576, "float32", None),
    ]
    last = document["rows"][-1]
    assert last["time_s"] == pytest.approx(149.8e-6)
    assert last["busbw_gb_s"] == pytest.approx(1_048_576 / 149.8e-6 * 1.5 / 1e9)
    assert [(fit["level"], fit["ranks"]) for fit in document["fits"]] == [("between", 4)]


def test_full_output(tmp_path):
    row = read(tmp_path, FULL)["rows"][1]
    assert (row["dtype"], row["repetitions"], row["ranks"]) == ("int8", 100, 2)
    assert row["algbw_gb_s"] == row["busbw_gb_s"] == pytest.approx(18.53, rel=1e-3)
    # Least and most are over ranks there, not over repetitions.
    assert (row["min_s"], row["p95_s"]) == (None, None)


def test_it_does_not_tell_how_many_ranks_ran(tmp_path):
    told = refusal(tmp_path, SHORT, [])
    assert told.startswith(
        "osu.txt: does not tell how many ranks ran; pass -np N for ranks of one host, or -H"
    )
    assert "is told to be of one rank" in refusal(tmp_path, SHORT, [("a", 1)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FULL[:-20], "osu.txt:5: 3 columns instead of 5: '2097152 113.20"),
        (SHORT.replace("1.91", "-1.91"), "osu.txt:6: the latency is '-1.91'; legal: a number above 0"),
        (SHORT.replace("1.91", "inf"), "osu.txt:6: the latency is 'inf'"),
        (FULL.replace(" 100\n", " 1e2\n"), "osu.txt:5: the number of iterations is '1e2'"),
        (SHORT.replace("# Size", "# Message"), "osu.txt:3: the line `# Size Avg Latency(us)` is missing"),
        (SHORT[: SHORT.index("4  ")], "osu.txt:4: the table has no rows"),
        (
            SHORT.replace("Allreduce Latency", "Bandwidth"),
            "osu.txt:3: is of OSU MPI Bandwidth Test v5.9; legal: osu_allreduce",
        ),
        (SHORT.replace("Allreduce", "Alltoall"), "osu.txt:3: is of OSU MPI Alltoall Latency Test"),
    ],
)
def test_damage_is_told_with_file_and_line(tmp_path, text, message):
    told = refusal(tmp_path, text)
    assert message in told
    assert "\n" not in told


@pytest.mark.parametrize("text", ["hello\n1 2 3\n", '{"schema": 1}', "\x00\x01\x7fELF", "# Size\n4 5\n"])
def test_foreign_files(tmp_path, text):
    told = refusal(tmp_path, text)
    assert told.startswith("osu.txt: is no output that can be read; legal: the output of nccl-tests'")


def test_files_that_cannot_be_read(tmp_path):
    assert refusal(tmp_path, "  \n").startswith("osu.txt: is empty")
    with pytest.raises(InputError, match=r"none.txt: cannot be read: No such file or directory"):
        import_network(tmp_path / "none.txt")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        import_network(tmp_path)
    (tmp_path / "bytes").write_bytes(bytes(range(128, 256)) * 9)
    with pytest.raises(InputError, match="is no output that can be read"):
        import_network(tmp_path / "bytes")
