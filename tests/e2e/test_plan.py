"""hvdtrain plan, from the words of its command line to what it prints."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hvdtrain.cli.plan import command
from hvdtrain.errors import InputError
from hvdtrain.topology.nodelist import fold_counts

HOSTFILES = Path(__file__).parents[2] / "hostfiles"
SCHEDULERS = ("SLURM_", "LSB_", "PBS_")


@pytest.fixture(autouse=True)
def outside_of_any_job(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith(SCHEDULERS):
            monkeypatch.delenv(name)


def call(*words: str) -> Result:
    result = CliRunner().invoke(command, list(words))
    if isinstance(result.exception, InputError):
        raise result.exception
    return result


def plan(*words: str) -> dict:
    result = call(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_document():
    assert plan("-H", "a:2,b:1") == {
        "schema": 1,
        "source": "-H",
        "size": 3,
        "hosts": [{"name": "a", "slots": 2}, {"name": "b", "slots": 1}],
        "ranks": [
            {
                "rank": rank,
                "host": host,
                "local_rank": local_rank,
                "local_size": local_size,
                "cross_rank": cross_rank,
                "cross_size": cross_size,
                "device": local_rank,
                "cores": None,
            }
            for rank, host, local_rank, local_size, cross_rank, cross_size in [
                (0, "a", 0, 2, 0, 2),
                (1, "a", 1, 2, 0, 1),
                (2, "b", 0, 1, 1, 2),
            ]
        ],
    }


def test_table():
    assert call("-H", "a:2,node-b:1", "--cores-per-rank", "2").stdout == (
        "ranks: 3, hosts: 2, from -H\n"
        "rank  host    local rank  local size  cross rank  cross size  device  cores\n"
        "   0  a                0           2           0           2       0  0-1\n"
        "   1  a                1           2           0           1       1  2-3\n"
        "   2  node-b           0           1           1           2       0  0-1\n"
    )


def test_sources_agree(tmp_path):
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\nn3\n")
    plans = [
        plan("-H", "n1:2,n2:2,n3"),
        plan("--hostfile", str(tmp_path / "nodes")),
        plan("--nodelist", "n[1-3]", "--tasks-per-node", "2(x2),1"),
    ]
    assert plans[0]["ranks"] == plans[1]["ranks"] == plans[2]["ranks"]
    assert [document["source"] for document in plans] == ["-H", str(tmp_path / "nodes"), "--nodelist"]


def test_environment_of_a_slurm_job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", "g[10,20,25,37]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x4)")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    result = call("--json")
    document = json.loads(result.stdout)
    assert [rank["host"] for rank in document["ranks"]] == ["g10", "g20", "g25", "g37"]
    assert "note: SLURM_NTASKS_PER_NODE=4 contradicts SLURM_TASKS_PER_NODE=1(x4)" in result.stderr
    assert plan("-H", "a:2")["source"] == "-H"


def test_environment_of_a_pbs_job(monkeypatch):
    monkeypatch.setenv("PBS_NODEFILE", str(HOSTFILES / "pbs-nodefile"))
    assert plan()["hosts"] == [
        {"name": "r1n01", "slots": 2},
        {"name": "r1n02", "slots": 2},
        {"name": "r2n07", "slots": 1},
    ]


def show_gpus(monkeypatch, folder, count):
    """Has the driver of this machine list so many GPUs."""
    for number in range(count):
        (folder / f"0000:{number}b:00.0").mkdir()
    monkeypatch.setattr("hvdtrain.launch.gpus.DRIVER_GPUS", folder)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_this_machine(monkeypatch, tmp_path):
    show_gpus(monkeypatch, tmp_path, 0)
    assert plan()["size"] == 1
    assert plan("-np", "2")["hosts"] == [{"name": "localhost", "slots": 2}]


@pytest.mark.parametrize("words", [("-np", "3"), ("-H", "localhost:3"), ("-H", f"{socket.gethostname()}:3")])
def test_no_device_on_this_machine_without_gpus(monkeypatch, tmp_path, words):
    show_gpus(monkeypatch, tmp_path, 0)
    assert [rank["device"] for rank in plan(*words)["ranks"]] == [None, None, None]
    row = call(*words).stdout.splitlines()[-1].split()
    assert (row[0], row[-2:]) == ("2", ["-", "-"])


def test_devices_of_this_machine(monkeypatch, tmp_path):
    show_gpus(monkeypatch, tmp_path, 3)
    assert [rank["device"] for rank in plan("-np", "2")["ranks"]] == [0, 1]


def test_devices_of_hosts_that_nobody_asked(monkeypatch, tmp_path):
    show_gpus(monkeypatch, tmp_path, 0)
    assert [rank["device"] for rank in plan("-H", "a:2")["ranks"]] == [0, 1]
    assert [rank["device"] for rank in plan("-H", "localhost:1,a:1")["ranks"]] == [0, 0]


def test_numbers_of_ranks():
    hosts = ("-H", "a:4,b:4")
    assert [host["slots"] for host in plan(*hosts, "-np", "5")["hosts"]] == [4, 1]
    assert [host["slots"] for host in plan(*hosts, "--ranks-per-node", "2")["hosts"]] == [2, 2]
    assert [host["slots"] for host in plan("--nodelist", "n[1-2]", "--ranks-per-node", "2")["hosts"]] == [
        2,
        2,
    ]


def test_gpus():
    document = plan("-H", "a:4,b:4,c:4", "--include", "a:3,1;b", "--exclude", "b:0,3")
    assert [(rank["host"], rank["device"]) for rank in document["ranks"]] == [
        ("a", 3),
        ("a", 1),
        ("b", 1),
        ("b", 2),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-n", "14", "--hostfile", str(HOSTFILES / "two-nodes")), "14 ranks asked for.* 8 slots"),
        (("-n", "4", "-H", "localhost:0", "10.0.0.11:2", "10.0.0.12:2", "train.py"), "commas"),
        (("-H", "localhost:0"), "'0' is no number of slots of localhost"),
        (("-H", "a:1", "--hostfile", "f"), "-H and --hostfile both name the hosts"),
        (("--tasks-per-node", "2"), "--tasks-per-node: given without --nodelist"),
        (("-np", "0"), "0 is below 1"),
        (("-np", "-1"), "-1 is below 1"),
        (("--ranks-per-node", "-3"), "-3 is below 1"),
        (("--nodelist", "n1", "--ranks-per-node", "-3"), "--ranks-per-node: -3 is below 1"),
        (("--nodelist", "n[1-2]", "--tasks-per-node", ""), "--tasks-per-node: ''"),
        (("-H", "a:2", "--include", "b"), "--include, column 1: -H has no host 'b'"),
        (("--hostfile", "/nowhere/hosts"), "/nowhere/hosts: cannot read the hostfile"),
    ],
)
def test_refusals(words, message):
    with pytest.raises(InputError, match=message):
        call(*words)


def test_this_machine_under_two_names():
    with pytest.raises(InputError, match="same machine"):
        call("-n", "16", "-H", f"localhost:8,{socket.gethostname()}:8")
    with pytest.raises(InputError, match="same machine"):
        call("-H", f"127.0.0.1:8,{socket.gethostname()}:8")


def test_one_of_the_two_names_may_be_excluded():
    hosts = f"localhost:8,{socket.gethostname()}:8"
    assert plan("-H", hosts, "--exclude", "localhost")["size"] == 8


def test_words_that_are_no_options():
    result = call("-H", "a:2", "train.py")
    assert result.exit_code == 2
    assert "unexpected argument 'train.py'" in result.output


def test_a_large_cluster_is_printed_whole():
    document = plan("--nodelist", "n[0001-3000]", "--tasks-per-node", fold_counts([8] * 3000))
    assert document["size"] == len(document["ranks"]) == 24_000
    assert [rank["rank"] for rank in document["ranks"]] == list(range(24_000))
    last = document["ranks"][-1]
    assert (last["host"], last["local_rank"], last["cross_rank"], last["cross_size"]) == (
        "n3000",
        7,
        2999,
        3000,
    )
    lines = call("--nodelist", "n[0001-3000]", "--tasks-per-node", "8").stdout.splitlines()
    assert len(lines) == 24_002
    assert lines[-1].split() == ["23999", "n3000", "7", "8", "2999", "3000", "7", "-"]
