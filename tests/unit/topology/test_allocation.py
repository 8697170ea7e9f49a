"""What schedulers' variables say about hosts and slots."""

from __future__ import annotations

import pytest

from hvdtrain.errors import InputError
from hvdtrain.topology.allocation import find_cluster, nodelist_cluster
from hvdtrain.topology.hostfile import read_hostfile
from hvdtrain.topology.hosts import place

BATCH_SCRIPT = {
    "SLURM_JOB_ID": "200505",
    "SLURM_JOB_NODELIST": "g[10,20,25,37]",
    "SLURM_NNODES": "4",
    "SLURM_NTASKS": "4",
    "SLURM_TASKS_PER_NODE": "1(x4)",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_GPUS": "2",
    "SLURMD_NODENAME": "g10",
}


def slurm(**variables: str) -> dict[str, str]:
    return {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]", **variables}


def found(env: dict[str, str]) -> list[tuple[str, int]]:
    cluster = find_cluster(env, read_hostfile)
    assert cluster is not None
    return [(host.name, host.slots) for host in cluster.hosts]


def notices(env: dict[str, str]) -> str:
    cluster = find_cluster(env, read_hostfile)
    assert cluster is not None
    return " | ".join(cluster.notices)


@pytest.mark.parametrize("env", [{}, {"SLURM_JOB_ID": "1"}, {"SLURM_JOB_NODELIST": "", "PBS_NODEFILE": " "}])
def test_no_scheduler(env):
    assert find_cluster(env, read_hostfile) is None


def test_batch_script_whose_variables_contradict():
    assert found(BATCH_SCRIPT) == [("g10", 1), ("g20", 1), ("g25", 1), ("g37", 1)]
    assert "SLURM_NTASKS_PER_NODE=4 contradicts SLURM_TASKS_PER_NODE=1(x4)" in notices(BATCH_SCRIPT)


def test_layout_of_unequal_nodes():
    env = slurm(
        SLURM_JOB_NODELIST="n[1-4]",
        SLURM_TASKS_PER_NODE="2(x3),1",
        SLURM_NTASKS="7",
        SLURM_NTASKS_PER_NODE="2",
    )
    assert found(env) == [("n1", 2), ("n2", 2), ("n3", 2), ("n4", 1)]
    assert notices(env) == ""  # at most 2 on a node, as asked for
    cluster = find_cluster(env, read_hostfile)
    assert [rank.host for rank in place(cluster).ranks] == ["n1", "n1", "n2", "n2", "n3", "n3", "n4"]


def test_idle_gpus_are_told():
    env = slurm(SLURM_TASKS_PER_NODE="1(x2)", SLURM_NTASKS="2", SLURM_GPUS_ON_NODE="4")
    assert found(env) == [("n1", 1), ("n2", 1)]
    assert "SLURM_GPUS_ON_NODE=4, but no node has more than 1 task" in notices(env)
    assert notices({**env, "SLURM_TASKS_PER_NODE": "4,1", "SLURM_NTASKS": "5"}) == ""


def test_old_name_of_the_nodelist():
    assert found({"SLURM_NODELIST": "c5n-1", "SLURM_TASKS_PER_NODE": "4", "SLURM_NTASKS": "4"}) == [
        ("c5n-1", 4)
    ]


@pytest.mark.parametrize(
    ("variables", "slots", "notice"),
    [
        ({"SLURM_NTASKS_PER_NODE": "3"}, 3, ""),
        # Without a number of tasks SLURM_TASKS_PER_NODE counts CPUs.
        ({"SLURM_TASKS_PER_NODE": "64(x2)", "SLURM_GPUS_ON_NODE": "4"}, 4, "SLURM_GPUS_ON_NODE=4"),
        (
            {"SLURM_TASKS_PER_NODE": "64(x2)", "SLURM_GPUS_PER_NODE": "a100:8"},
            8,
            "SLURM_GPUS_PER_NODE=a100:8",
        ),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, 3, "one rank for each GPU"),
        ({"SLURM_TASKS_PER_NODE": "64(x2)", "SLURM_GPUS_ON_NODE": "0"}, 64, "one for each CPU"),
        ({"SLURM_TASKS_PER_NODE": "64(x2)", "SLURM_JOB_GPUS": "2,3"}, 64, "one for each CPU"),
        ({"SLURM_JOB_GPUS": "5"}, 1, "neither tasks nor GPUs"),
    ],
)
def test_slots_without_a_requested_layout(variables, slots, notice):
    assert found(slurm(**variables)) == [("n1", slots), ("n2", slots)]
    assert (notice in notices(slurm(**variables))) if notice else not notices(slurm(**variables))


@pytest.mark.parametrize(
    ("variables", "offending"),
    [
        (
            {"SLURM_TASKS_PER_NODE": "4(x3)", "SLURM_NTASKS": "12"},
            r"'4\(x3\)' is a layout of 3.* names 2 hosts",
        ),
        ({"SLURM_TASKS_PER_NODE": "4", "SLURM_NTASKS": "4"}, "is a layout of 1.* names 2 hosts"),
        ({"SLURM_TASKS_PER_NODE": "4(y2)", "SLURM_NTASKS": "8"}, "SLURM_TASKS_PER_NODE: .*no count"),
        ({"SLURM_JOB_NUM_NODES": "3"}, "names 2 hosts, but SLURM_JOB_NUM_NODES=3"),
        ({"SLURM_NTASKS_PER_NODE": "many"}, "SLURM_NTASKS_PER_NODE: 'many'"),
        ({"SLURM_GPUS_PER_NODE": "a100"}, "SLURM_GPUS_PER_NODE: 'a100'"),
        ({"SLURM_JOB_NODELIST": "n[1-"}, "SLURM_JOB_NODELIST: 'n\\[1-', column 2"),
        ({"SLURM_JOB_NODELIST": "n1,n1"}, "n1 stands twice"),
        ({"SLURM_HET_SIZE": "2"}, "heterogeneous"),
    ],
)
def test_refused(variables, offending):
    with pytest.raises(InputError, match=offending):
        find_cluster(slurm(**variables), read_hostfile)


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "SLURM_HOSTFILE"])
def test_node_files(tmp_path, variable):
    (tmp_path / "nodes").write_text("r1\nr1\nr2\n")
    env = {variable: str(tmp_path / "nodes")}
    assert found(env) == [("r1", 2), ("r2", 1)]
    cluster = find_cluster(env, read_hostfile)
    assert cluster.source == f"{variable} ({tmp_path / 'nodes'})"
    with pytest.raises(InputError, match="No such file"):
        find_cluster({variable: str(tmp_path / "none")}, read_hostfile)


def test_slurm_hostfile_holds_hosts_of_the_job(tmp_path):
    (tmp_path / "hosts").write_text("n2\nn1\nn2\n")
    env = slurm(SLURM_HOSTFILE=str(tmp_path / "hosts"), SLURM_TASKS_PER_NODE="4(x2)", SLURM_NTASKS="8")
    assert found(env) == [("n2", 2), ("n1", 1)]
    assert "n2 comes back" in notices(env)
    with pytest.raises(InputError, match="n2 is not in SLURM_JOB_NODELIST='n1'"):
        find_cluster({**env, "SLURM_JOB_NODELIST": "n1"}, read_hostfile)


def test_lsf_pairs():
    assert found({"LSB_MCPU_HOSTS": "hostB 4 hostA 2 "}) == [("hostB", 4), ("hostA", 2)]
    for text in ("hostA", "hostA x", "hostA 0", "hostA 2 hostA 2"):
        with pytest.raises(InputError, match="LSB_MCPU_HOSTS"):
            find_cluster({"LSB_MCPU_HOSTS": text}, read_hostfile)


def test_nodelist_option():
    assert [host.slots for host in nodelist_cluster("n[1-3]", "2(x2),1").hosts] == [2, 2, 1]
    assert [host.slots for host in nodelist_cluster("n[1-3]", "4").hosts] == [4, 4, 4]
    for tasks in ("4(x2)", "4(x1)", "1,2"):
        with pytest.raises(InputError, match=r"--tasks-per-node: .* names 3 hosts"):
            nodelist_cluster("n[1-3]", tasks)
