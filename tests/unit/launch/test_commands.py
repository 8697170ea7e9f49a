"""One literal command for each launcher and situation (case C11)."""

from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.job import choose_launcher
from hvdtrain.launch.local import Local
from hvdtrain.launch.mpirun import OpenMpi, find_mpirun, parse_version
from hvdtrain.launch.plan import LaunchPlan, MpiFacts, default_slots, forwarded_names, rank_environment
from hvdtrain.topology.hosts import Cluster, Host, local_cluster, place

V4 = MpiFacts("/usr/bin/mpirun", "openmpi", (4, 1, 4), "/usr")
V5 = MpiFacts("/my venv/bin/mpirun", "openmpi", (5, 0, 11), "/my venv")
PYTHON = "/my venv/bin/python"
AGENT = (PYTHON, "-P", "-m", "hvdtrain.launch.rank_agent", "--", "prog", "a b", "")
KEEPALIVE = (
    *("--mca", "oob_tcp_keepalive_time", "2"),
    *("--mca", "oob_tcp_keepalive_intvl", "2"),
    *("--mca", "oob_tcp_keepalive_probes", "2"),
)
UNBOUND = ("--bind-to", "none", "--map-by", "slot")
YIELD = ("--mca", "mpi_yield_when_idle", "1")
NO_HAN = ("--mca", "coll", "^han,adapt")
OB1 = ("--mca", "pml", "ob1")
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def plan(num_ranks=2, **changes):
    made = LaunchPlan(place(local_cluster(8), num_ranks), ("prog", "a b", ""), PYTHON, {}, mpi=V5, cores=8)
    return replace(made, **changes)


def two_hosts(**changes):
    cluster = Cluster((Host("a", 4), Host("fd00::2", 4)), "-H")
    return plan(placement=place(cluster, 7), **changes)


@pytest.mark.parametrize(
    ("case", "argv", "env"),
    [
        (
            plan(),
            (V5.path, "-np", "2", "-H", "localhost:2", *UNBOUND, *YIELD, *NO_HAN, *OB1, *AGENT),
            {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "1"},
        ),
        (
            plan(mpi=V4, is_root=True),
            (V4.path, "-np", "2", "-H", "localhost:2", *UNBOUND, *YIELD, *AGENT),
            {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "1", **ROOT},
        ),
        (
            plan(uses_gpus=True, environ={"OMP_NUM_THREADS": "3", "PYTHONUNBUFFERED": "1"}),
            (V5.path, "-np", "2", "-H", "localhost:2", *UNBOUND, *AGENT),
            {},
        ),
        (
            plan(3, uses_gpus=True, cores=2),  # more ranks than cores
            (V5.path, "-np", "3", "-H", "localhost:3", *UNBOUND, *YIELD, *NO_HAN, *OB1, *AGENT),
            {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        ),
        (
            plan(environ={"OMPI_MCA_pml": "ucx", "OMPI_MCA_mpi_yield_when_idle": "0"}),
            (V5.path, "-np", "2", "-H", "localhost:2", *UNBOUND, *NO_HAN, *AGENT),
            {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "1"},
        ),
        (
            two_hosts(mpi=V4, environ={"NCCL_DEBUG": "INFO", "HOME": "/root"}),
            (
                *(V4.path, "-np", "7", "-H", "a:4,[fd00::2]:3", *UNBOUND, *YIELD, *KEEPALIVE),
                *(
                    "-x",
                    "HVDTRAIN_RANKS_PER_HOST",
                    "-x",
                    "NCCL_DEBUG",
                    "-x",
                    "OMP_NUM_THREADS",
                    "-x",
                    "PYTHONUNBUFFERED",
                    *AGENT,
                ),
            ),
            {"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "HVDTRAIN_RANKS_PER_HOST": "4,3"},
        ),
        (
            two_hosts(),
            (
                *(V5.path, "-np", "7", "-H", "a:4,[fd00::2]:3", *UNBOUND, "--prefix", "/my venv"),
                *(*YIELD, *NO_HAN, *KEEPALIVE, "-x", "HVDTRAIN_RANKS_PER_HOST"),
                *("-x", "OMP_NUM_THREADS", "-x", "PYTHONUNBUFFERED", *AGENT),
            ),
            {"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "HVDTRAIN_RANKS_PER_HOST": "4,3"},
        ),
    ],
    ids=["v5", "v4-root", "gpus", "crowded", "user-mca", "v4-hosts", "v5-hosts"],
)
def test_mpirun(case, argv, env):
    command = OpenMpi().command(case)
    assert command.argv == argv
    assert command.env == env
    assert "--oversubscribe" not in command.argv


def test_local():
    command = Local().command(plan(log_dir=Path("/runs/x y/logs"), env={"HVDTRAIN_RUN": "1"}))
    agent = (*AGENT[:4], "--log-dir", "/runs/x y/logs", *AGENT[4:])
    assert command.argv == (PYTHON, "-P", "-m", "hvdtrain.launch.local", "2", *agent)
    assert command.env == {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "1", "HVDTRAIN_RUN": "1"}


def test_choices_are_told():
    assert OpenMpi().notes(plan()) == (
        "OMP_NUM_THREADS=4: 8 cores, 2 ranks on a host",
        "waiting ranks yield their core (mpi_yield_when_idle)",
    )
    assert OpenMpi().notes(plan(uses_gpus=True, environ={"OMP_NUM_THREADS": "1"})) == ()


def test_secrets_stay_on_this_host():
    secrets = ("NCCL_TOKEN", "HOROVOD_SECRET_KEY", "HVDTRAIN_PASSWORD", "UCX_API_KEY", "PYTHON_CREDENTIALS")
    others = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "CUDA_VISIBLE_DEVICES", "HOME")
    named = (
        *(
            "PATH",
            "NCCL_SOCKET_IFNAME",
            "PYTHONPATH",
            "LD_LIBRARY_PATH",
            "OMPI_MCA_btl",
            "HOROVOD_CYCLE_TIME",
        ),
        *("PYTHONHASHSEED", "PYTHON_KEYRING_BACKEND", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"),
    )
    environ = dict.fromkeys((*secrets, *others, *named), "x")
    assert forwarded_names(plan(environ=environ)) == tuple(sorted(named))


def test_threads_are_never_none():
    assert rank_environment(plan(3, cores=2))["OMP_NUM_THREADS"] == "1"
    assert rank_environment(plan(1, cores=2))["OMP_NUM_THREADS"] == "2"


def test_default_slots():
    assert default_slots(num_gpus=4, cores=64) == 4
    assert default_slots(num_gpus=0, cores=2) == 2


def test_choice_of_launcher():
    assert choose_launcher(plan()).name == "mpirun"
    assert choose_launcher(plan(mpi=None)).name == "local"
    assert choose_launcher(plan(), "local").name == "local"
    with pytest.raises(InputError, match="no launcher 'mpi'; legal: auto, mpirun, local"):
        choose_launcher(plan(), "mpi")
    with pytest.raises(InputError, match="pip install openmpi"):
        choose_launcher(plan(mpi=None), "mpirun")
    with pytest.raises(InputError, match="not on a, fd00::2"):
        choose_launcher(two_hosts(), "local")
    mpich = MpiFacts("/usr/bin/mpirun", "mpich", (4, 0), "/usr")
    with pytest.raises(InputError, match="mpich, not Open MPI"):
        choose_launcher(plan(mpi=mpich), "mpirun")


@pytest.mark.parametrize(
    ("text", "vendor", "version"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://...", "openmpi", (5, 0, 11)),
        ("mpirun (Open MPI) 4.1.4\n", "openmpi", (4, 1, 4)),
        ("mpirun (Open MPI) 5.0.0rc12\n", "openmpi", (5, 0, 0)),
        ("HYDRA build details:\n    Version:                                 4.1.2\n", "mpich", (4, 1, 2)),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230306 (id: d8)\n", "intel", (2021, 9)),
    ],
)
def test_versions(text, vendor, version):
    facts = parse_version("/opt/x/bin/mpirun", text)
    assert facts == MpiFacts("/opt/x/bin/mpirun", vendor, version, "/opt/x")


def test_unknown_mpirun():
    with pytest.raises(InputError, match=r"/x/mpirun --version says 'LAM 7\.1'"):
        parse_version("/x/mpirun", "LAM 7.1\nmore")


def test_mpirun_is_found_on_path_or_beside_python(tmp_path):
    made = {}
    for name in ("path", "an env"):
        made[name] = tmp_path / name / "bin" / "mpirun"
        made[name].parent.mkdir(parents=True)
        made[name].touch(mode=0o755)
    on_path, prefix = {"PATH": str(made["path"].parent)}, str(tmp_path / "an env")
    assert find_mpirun(on_path, prefix) == str(made["path"])
    assert find_mpirun({"PATH": str(tmp_path)}, prefix) == str(made["an env"])
    assert find_mpirun({}, prefix) == str(made["an env"])
    assert find_mpirun({}, str(tmp_path)) is None
