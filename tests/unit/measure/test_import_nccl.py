"""What all_reduce_perf prints, in the forms that its versions have, and what damages it."""

from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.measure.import_network import import_network

OUTPUTS = Path(__file__).parent / "outputs"

# nccl-tests 2.13, 8 GPUs of one host. busbw = algbw 2 * 7/8 = 1.75 algbw.
EIGHT = (OUTPUTS / "nccl-8-ranks.txt").read_text()

# nccl-tests 2.18 under mpirun --tag-output, 2 ranks on 2 hosts, with NCCL's own lines between the rows.
TWO = (OUTPUTS / "nccl-2-hosts-tagged.txt").read_text()

# nccl-tests 2.0: no root, no group, an error in place of the count of wrong values.
OLD = (OUTPUTS / "nccl-2.0.txt").read_text()


def read(tmp_path, text, hosts=()):
    path = tmp_path / "nccl.txt"
    path.write_text(text)
    return import_network(path, hosts)


def refusal(tmp_path, text, hosts=()):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, hosts)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_eight_ranks_of_one_host(tmp_path):
    document = read(tmp_path, EIGHT)
    assert (document["schema"], document["kind"], document["size"]) == (1, "allreduce", 8)
    assert document["hosts"] == [{"name": "gpu07", "ranks": 8}]
    assert document["library"] == "nccl"
    assert [row["bytes"] for row in document["rows"]][-4:] == [1 << 20, 8 << 20, 32 << 20, 128 << 20]
    row = document["rows"][4]
    assert row["time_s"] == pytest.approx(27.76e-6)  # in place
    assert row["algbw_gb_s"] == pytest.approx(37.77, rel=1e-3)
    assert row["busbw_gb_s"] == pytest.approx(66.10, rel=1e-3)
    assert (row["dtype"], row["repetitions"], row["level"], row["min_s"]) == ("float32", 20, "inside", None)
    (fit,) = document["fits"]
    assert (fit["level"], fit["ranks"]) == ("inside", 8)
    # 134,217,728 B in 1,010 us less 26 us of messages, 2 * 7 of them: 2 * 7/8 beta a byte.
    assert fit["beta_s_per_byte"] == pytest.approx(1 / 237e9, rel=0.05)
    assert fit["alpha_s"] == pytest.approx(25.9e-6 / 14, rel=0.05)


def test_two_hosts_with_tags_and_other_lines(tmp_path):
    document = read(tmp_path, TWO)
    assert document["hosts"] == [{"name": "node-a", "ranks": 1}, {"name": "node-b", "ranks": 1}]
    assert document["source"] == "nccl-tests 2.18.0"
    assert [(row["dtype"], row["repetitions"]) for row in document["rows"]] == [("float16", 50)] * 2
    assert document["rows"][1]["busbw_gb_s"] == pytest.approx(18.53, rel=1e-3)
    assert [fit["level"] for fit in document["fits"]] == ["between"]


def test_an_old_version_and_a_row_that_has_no_in_place_part(tmp_path):
    rows = read(tmp_path, OLD)["rows"]
    assert [row["time_s"] for row in rows] == pytest.approx([61.00e-6, 113.2e-6])


def test_indented_as_in_a_report_and_only_out_of_place(tmp_path):
    text = "".join(f"    {line}\n" for line in TWO.replace("[1,0]<stdout>:", "").splitlines())
    text = text.replace(
        "     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
        "     time   algbw   busbw  #wrong",
    )
    for tail in ("   119.50    8.77    8.77       0", "   113.20   18.53   18.53       0"):
        text = text.replace(tail, "")
    assert [row["time_s"] for row in read(tmp_path, text)["rows"]] == pytest.approx([120.11e-6, 115e-6])


def test_ranks_that_the_file_does_not_tell(tmp_path):
    text = "\n".join(line for line in TWO.splitlines() if "Rank" not in line)
    told = refusal(tmp_path, text)
    assert "does not tell how many ranks ran" in told
    assert "pass -np N for ranks of one host, or -H a:4,b:4" in told
    document = read(tmp_path, text, [("x", 1), ("y", 1)])
    assert document["hosts"] == [{"name": "x", "ranks": 1}, {"name": "y", "ranks": 1}]
    assert "tells of 2 ranks, and -np or -H of 3" in refusal(tmp_path, TWO, [("x", 3)])


def test_wrong_values_are_told(tmp_path):
    text = EIGHT.replace("66.10      0", "66.10      3")
    assert read(tmp_path, text)["notes"] == [f"{tmp_path}/nccl.txt:20: 3 wrong values"]


DAMAGE = {
    "cut": (lambda text: text[: text.index("   27.76")], "nccl.txt:20: 9 columns instead of 13"),
    "joined": (lambda text: text.replace("0    25.85", "0 25.85 1"), "nccl.txt:16: 14 columns instead of 13"),
    "time": (lambda text: text.replace("  27.76", "  x7.76"), "nccl.txt:20: the time is 'x7.76'"),
    "zero": (lambda text: text.replace("  27.76", "   0.00"), "nccl.txt:20: the time is '0.00'"),
    "size": (lambda text: text.replace("     1048576 ", "           0 "), "nccl.txt:20: the size is '0'"),
    "digit": (
        lambda text: text.replace("  27.76", "  77.76"),
        "nccl.txt:20: algbw is 37.77, but of 1048576 B over 8 ranks in 77.76 us it is 13.48 GB/s",
    ),
    "out of place": (
        lambda text: text.replace("36.28", "86.28"),
        "nccl.txt:20: algbw is 86.28, but of 1048576 B over 8 ranks in 28.9 us it is 36.28 GB/s",
    ),
    "time out of place": (
        lambda text: text.replace("  28.90", "  x8.90"),
        "nccl.txt:20: the time is 'x8.90'",
    ),
    "all_gather": (
        lambda text: text.replace("66.10", "33.05"),
        "nccl.txt:20: busbw is 33.05, but of 1048576 B over 8 ranks in 27.76 us it is 66.10 GB/s",
    ),
    "redop": (lambda text: text.replace("  sum  ", "  none "), "nccl.txt:16: has no reduction"),
    "rank": (
        lambda text: "\n".join(line for line in text.splitlines() if "Rank  3" not in line),
        "nccl.txt: tells of 7 ranks up to 7: some are missing",
    ),
    "no rows": (
        lambda text: text[: text.index("           8")],
        "nccl.txt:15: the table has no rows; was the benchmark cut short?",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_told_with_file_and_line(tmp_path, case):
    change, message = DAMAGE[case]
    told = refusal(tmp_path, change(EIGHT))
    assert message in told
    assert "\n" not in told


def test_another_collective(tmp_path):
    text = TWO.replace("all_reduce_perf_mpi", "alltoall_perf_mpi")
    assert "nccl.txt:3: is of alltoall_perf_mpi; legal: all_reduce_perf" in refusal(tmp_path, text)
