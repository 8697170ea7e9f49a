"""More ranks than GPUs are refused before anything starts, by a made-up listing of the driver."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from hvdtrain.cli.main import main
from hvdtrain.errors import InputError
from hvdtrain.launch.machine import plan_here, refuse_shared_gpus
from hvdtrain.launch.plan import SlurmFacts
from hvdtrain.topology.hosts import Cluster, Host, place


@pytest.fixture
def four_gpus(monkeypatch, tmp_path):
    """A machine whose driver lists four GPUs, without a scheduler or a site file."""
    for index in range(4):
        entry = tmp_path / "gpus" / f"0000:{index:02x}:00.0"
        entry.mkdir(parents=True)
        (entry / "information").write_text(f"GPU UUID: \t GPU-{index}\n")
    monkeypatch.setattr("hvdtrain.launch.gpus.DRIVER_GPUS", tmp_path / "gpus")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "OMPI_COMM_WORLD_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


RUN = ["run", "--dry-run", "--json"]
REFUSED = {
    "ranks": (["-np", "8"], "-np: 8 ranks asked for, but this machine shows 4 GPUs"),
    "per node": (
        ["--ranks-per-node", "5"],
        "--ranks-per-node: 5 ranks asked for, but this machine shows 4 GPUs",
    ),
    "slots": (["-H", "localhost:8"], "8 ranks on localhost, which shows 4 GPUs"),
    "device": (["-H", "localhost:8", "--include", "localhost:6"], "GPU 6 on localhost, which shows 4 GPUs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_dry_run_refuses_with_both_numbers(four_gpus, capsys, case):
    words, message = REFUSED[case]
    assert main([*RUN, *words, "--", "prog"]) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert json.loads(told.out)["exit_code"] == 2


def test_plan_refuses_the_same(four_gpus, capsys):
    assert main(["plan", "-np", "5"]) == 2
    assert "-np: 5 ranks asked for, but this machine shows 4 GPUs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ([], 4),  # every slot
        (["-np", "3"], 3),
        (["-np", "8", "--no-gpus"], 8),
        (["-H", "localhost:8", "--no-gpus"], 8),
        (["-H", "localhost:8", "--include", "localhost:3,1"], 2),
        (["--include", "localhost:3,1"], 2),
    ],
)
def test_ranks_that_fit(four_gpus, capsys, words, size):
    assert main([*RUN, *words, "--", "prog"]) == 0
    assert json.loads(capsys.readouterr().out)["size"] == size


def test_hidden_gpus_do_not_count(four_gpus, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert main([*RUN, "-np", "3", "--", "prog"]) == 2
    assert "this machine shows 2 GPUs" in capsys.readouterr().err


def test_host_that_shows_fewer_gpus_than_it_has_ranks():
    """As hosts report of themselves; in a Slurm job the ranks look when they start."""
    placement = place(Cluster((Host("a", 2), Host("b", 2)), "hosts.txt"))
    plan = replace(plan_here(placement, os.environ), uses_gpus=True, gpus=(2, 1))
    with pytest.raises(InputError, match=r"^hosts.txt: 2 ranks on b, which shows 1 GPU;.*--no-gpus"):
        refuse_shared_gpus(plan)
    with pytest.raises(InputError, match="b, which shows no GPU"):
        refuse_shared_gpus(replace(plan, gpus=(2, 0)))
    for fine in (
        replace(plan, gpus=(2, 2)),
        replace(plan, gpus=()),  # nobody asked them
        replace(plan, uses_gpus=False),
        replace(plan, slurm=SlurmFacts(("a", "b"))),
    ):
        refuse_shared_gpus(fine)
