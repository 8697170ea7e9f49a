"""Rank identity, from the environments that real launchers left (cases C1, C2, C5 and their kind)."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.topology.environ import World, check_engine_size, find_world

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}
HOROVODRUN = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "3",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
# `srun -N2 -n4` on Slurm 22.05 gave 3 tasks to the first node, 1 to the second; this is the last task.
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "3,1",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_GTIDS": "3",
}
# Case C2: the batch script itself.
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


@pytest.mark.parametrize(
    ("env", "world"),
    [
        ({}, World()),
        (OPEN_MPI, World(3, 4, 1, 2, None, None, "openmpi")),
        (TORCHRUN, World(5, 8, 1, 4, 1, 2, "torchrun")),
        (HOROVODRUN, World(1, 3, 1, 2, 0, 1, "horovodrun")),
        (HYDRA, World(2, 4, 0, 2, None, None, "pmi")),
        (SRUN, World(3, 4, 0, 1, 1, 2, "slurm")),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, World(launcher="pmi")),
    ],
)
def test_each_launcher(env, world):
    assert find_world(env) == world


def test_local_launch():
    from hvdtrain.launch.local import rank_variables

    assert find_world(rank_variables(2, 3, 29500)) == World(2, 3, 2, 3, 0, 1, "local")


def test_case_c1_one_task_under_srun():
    env = {
        "SLURM_JOB_ID": "134",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_NPROCS": "1",
        "SLURM_NNODES": "1",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NAME": "env",
        "SLURM_NODELIST": "c5n-1",
    }
    assert find_world(env) == World(launcher="slurm")


@pytest.mark.parametrize("step", [None, "batch", "4294967291", "4294967290", ""])
def test_case_c2_batch_script_is_no_rank(step):
    env = BATCH_SCRIPT if step is None else {**BATCH_SCRIPT, "SLURM_STEP_ID": step}
    world = find_world(env)
    assert (world.rank, world.size, world.launcher) == (0, 1, "single")
    assert "srun or hvdtrain run" in world.notice
    assert "not a rank of 4" in world.notice
    assert "SLURM_NTASKS_PER_NODE=4 contradicts SLURM_TASKS_PER_NODE=1(x4)" in world.notice


def test_batch_script_without_contradiction_says_nothing_of_one():
    assert "contradicts" not in find_world({**BATCH_SCRIPT, "SLURM_NTASKS_PER_NODE": "1"}).notice


def test_innermost_launcher_wins():
    # mpirun in a batch job: every rank sees the batch step's SLURM_PROCID=0.
    assert find_world({**BATCH_SCRIPT, **OPEN_MPI}) == find_world(OPEN_MPI)
    assert find_world({**SRUN, **OPEN_MPI}) == find_world(OPEN_MPI)
    # One torchrun for each host, started by srun or mpirun.
    assert find_world({**SRUN, **TORCHRUN}) == find_world(TORCHRUN)
    assert find_world({**OPEN_MPI, **TORCHRUN}) == find_world(TORCHRUN)


def test_rank_variables_that_nobody_claims_are_ignored():
    assert find_world({"RANK": "3", "WORLD_SIZE": "4"}) == World()


@pytest.mark.parametrize(
    "pmi", [{"PMIX_RANK": "3"}, {"PMI_RANK": "3", "PMI_SIZE": "4"}], ids=["--mpi=pmix", "--mpi=pmi2"]
)
def test_srun_with_pmi_takes_the_layout_from_the_step(pmi):
    world = find_world({**SRUN, **pmi})
    assert (world.rank, world.size, world.local_rank, world.local_size) == (3, 4, 0, 1)
    assert (world.cross_rank, world.cross_size) == (1, 2)


def test_hydra_inside_a_slurm_job_does_not_take_the_proxys_place():
    proxy = {**SRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    env = {**proxy, "SLURM_STEP_TASKS_PER_NODE": "1(x2)", **HYDRA}
    assert find_world(env) == find_world(HYDRA)


def open_mpi(rank, size, local_rank, local_size):
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = (rank, size, local_rank, local_size)
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize(
    ("env", "layout", "cross"),
    [
        (open_mpi(1, 2, 1, 2), None, (0, 1)),  # all on one host
        (open_mpi(2, 3, 0, 1), None, (None, None)),  # 2+1, or 1+1+1: mpirun does not tell
        (open_mpi(2, 3, 0, 1), "2,1", (1, 2)),
        (open_mpi(1, 3, 1, 2), "2,1", (0, 2)),
        (open_mpi(5, 6, 1, 2), "2(x3)", (2, 3)),
        (open_mpi(2, 3, 0, 1), "2(x2)", (None, None)),  # left by another launch
        (open_mpi(2, 3, 0, 1), "1,2", (None, None)),
    ],
)
def test_host_index_comes_from_the_layout_that_hvdtrain_tells(env, layout, cross):
    world = find_world(env if layout is None else {**env, "HVDTRAIN_RANKS_PER_HOST": layout})
    assert (world.cross_rank, world.cross_size) == cross


def test_slurms_contradictions_do_not_matter_under_mpirun():
    broken = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "9", "SLURM_PROCID": "77"}
    assert find_world({**broken, **OPEN_MPI}) == find_world(OPEN_MPI)


@pytest.mark.parametrize(
    ("layout", "node", "local_size"),
    [("2(x3),1", 3, 1), ("2(x3),1", 1, 2), ("3,1(x4)", 0, 3)],
)
def test_slurm_layouts(layout, node, local_size):
    env = {
        **SRUN,
        "SLURM_STEP_NUM_TASKS": "7",
        "SLURM_STEP_NUM_NODES": "5",
        "SLURM_NODEID": str(node),
        "SLURM_STEP_TASKS_PER_NODE": layout,
    }
    assert find_world(env).local_size == local_size


def test_step_layout_comes_before_the_jobs():
    env = {**SRUN, "SLURM_TASKS_PER_NODE": "8(x2)"}
    assert find_world(env).local_size == 1


def test_heterogeneous_job_counts_the_nodes_task_ids():
    env = {
        **SRUN,
        "SLURM_HET_SIZE": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1",
        "SLURM_GTIDS": "2,3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
    }
    assert find_world(env).local_size == 2


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "4"}, ["OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_SIZE=4"]),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, ["LOCAL_RANK=2", "LOCAL_SIZE=2"]),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, ["LOCAL_SIZE=5", "OMPI_COMM_WORLD_SIZE=4"]),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "-1"}, ["OMPI_COMM_WORLD_RANK='-1'"]),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "four"}, ["OMPI_COMM_WORLD_SIZE='four'"]),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "٤"}, ["OMPI_COMM_WORLD_SIZE"]),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": ""}, ["OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE"]),
        ({**TORCHRUN, "LOCAL_RANK": ""}, ["LOCAL_RANK", "RANK=5"]),
        ({**TORCHRUN, "GROUP_RANK": "2"}, ["GROUP_RANK=2", "GROUP_WORLD_SIZE=2"]),
        ({"HOROVOD_SIZE": "2"}, ["HOROVOD_SIZE=2", "HOROVOD_RANK"]),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ["PMI_RANK=1", "MPI_LOCALRANKID"]),
        ({"PMIX_RANK": "1"}, ["PMIX_RANK=1"]),
        ({**SRUN, "SLURM_PROCID": "4"}, ["SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=4"]),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "3,2"}, ["3,2", "SLURM_STEP_NUM_TASKS=4"]),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "3(x"}, ["3(x"]),
        ({**SRUN, "SLURM_LOCALID": ""}, ["SLURM_LOCALID"]),
    ],
)
def test_contradictions_name_the_variables(env, named):
    with pytest.raises(InputError) as caught:
        find_world(env)
    assert all(part in str(caught.value) for part in named), str(caught.value)


def test_case_c5_singletons_under_srun():
    with pytest.raises(InputError) as caught:
        check_engine_size(find_world(SRUN), 1)
    message = str(caught.value)
    assert "Slurm started 4 tasks but MPI sees 1" in message
    assert "--mpi=pmix" in message
    assert "srun --mpi=list" in message


@pytest.mark.parametrize(
    ("env", "size", "part"),
    [
        (OPEN_MPI, 1, "one installation"),
        (HYDRA, 1, "--mpi=pmix"),
        ({}, 4, "no launcher's variables"),
    ],
)
def test_other_engines_that_see_another_world(env, size, part):
    with pytest.raises(InputError, match=part):
        check_engine_size(find_world(env), size)


def test_engine_that_agrees():
    check_engine_size(find_world(SRUN), 4)
    check_engine_size(World(), 1)
