"""The plan is literal: each command is checked word for word; each fact changes the key."""

from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod import plan
from hvdtrain.tools.build_horovod.cuda import GpuChoice, Nccl, Toolkit
from hvdtrain.tools.build_horovod.facts import Facts, PythonFacts
from hvdtrain.tools.build_horovod.mpi_facts import MpiFacts
from hvdtrain.tools.build_horovod.toolchain import BuildTools, CompilerFacts
from hvdtrain.tools.build_horovod.torch_facts import TorchFacts

ENV = Path("/env")
SITE = ENV / "lib/python3.11/site-packages"
FACTS = Facts(
    python=PythonFacts(ENV / "bin/python", ENV, SITE, "cpython-311-x86_64-linux-gnu", "linux-x86_64"),
    torch=TorchFacts(SITE / "torch", "2.13.0+cpu", "cf30", None, 17, True),
    mpi=MpiFacts("Open MPI", "5.0.11", ENV / "bin", ENV, (ENV / "lib",), "5ha"),
    compiler=CompilerFacts(("/opt/bin/g++-12",), "gcc", "12.2.0"),
    gpu=GpuChoice("none", "asked for"),
    instructions="-mavx",
    flags={},
)
NCCL = GpuChoice(
    "nccl",
    "asked for",
    Toolkit(Path("/usr/local/cuda-13.0"), "13.0.88"),
    Nccl(SITE / "nvidia/nccl/include", SITE / "nvidia/nccl/lib/libnccl.so.2", "2.28.9"),
    "80,90",
)
FOLDERS = plan.Folders(Path("/tmp/s"))
TOOLS = BuildTools(ENV / "bin/cmake", Path("/usr/bin/make"))
PIP = ("/env/bin/python", "-m", "pip")


def with_mpi(**changes) -> Facts:
    return replace(FACTS, mpi=replace(FACTS.mpi, **changes))


def test_fetching_lets_pip_check_the_hash_first():
    assert plan.fetch_command(FACTS, FOLDERS).argv == (
        *PIP, "download", "--disable-pip-version-check", "--no-deps", "--no-build-isolation",
        "--no-binary", ":all:", "--require-hashes",
        "--dest", "/tmp/s/sdist", "--requirement", "/tmp/s/requirement.txt",
    )  # fmt: skip
    assert plan.REQUIREMENT == (
        "horovod==0.28.1 --hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0\n"
    )


def test_a_cpu_build():
    environ = {"PATH": "/usr/bin", "HOROVOD_GPU_OPERATIONS": "NCCL", "MAKEFLAGS": "-j64", "HOME": "/root"}
    command = plan.build_command(FACTS, TOOLS, FOLDERS, 3, environ)
    assert command.argv == (
        *PIP, "wheel", "--disable-pip-version-check", "--verbose", "--no-deps", "--no-build-isolation",
        "--no-index", "--no-cache-dir", "--wheel-dir", "/tmp/s/wheel", "/tmp/s/horovod-0.28.1",
    )  # fmt: skip
    assert command.environment(environ) == {
        "HOME": "/root",
        "PATH": "/env/bin:/env/bin:/usr/bin",
        "TMPDIR": "/tmp/s/tmp",
        "MPI_HOME": "/env",
        "CXX": "/opt/bin/g++-12",
        "MAKEFLAGS": "-j3",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "HOROVOD_CMAKE": "/env/bin/cmake",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
        "HOROVOD_BUILD_ARCH_FLAGS": "-mavx",
        "HVDTRAIN_RPATH": "$ORIGIN/../../../..;$ORIGIN/../../torch/lib",
    }


def test_an_nccl_build_adds_the_toolkit_and_nccl():
    facts = replace(FACTS, gpu=NCCL)
    env = plan.build_command(facts, TOOLS, FOLDERS, 3, {"PATH": "/usr/bin"}).env
    cpu = plan.build_command(FACTS, TOOLS, FOLDERS, 3, {"PATH": "/usr/bin"}).env
    assert {name: value for name, value in env.items() if cpu.get(name) != value} == {
        "PATH": "/env/bin:/usr/local/cuda-13.0/bin:/env/bin:/usr/bin",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "CUDA_HOME": "/usr/local/cuda-13.0",
        "HOROVOD_CUDA_HOME": "/usr/local/cuda-13.0",
        "CUDAToolkit_ROOT": "/usr/local/cuda-13.0",
        "HOROVOD_NCCL_HOME": "/tmp/s/nccl",
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": "80,90",
        "HVDTRAIN_RPATH": "$ORIGIN/../../../..;$ORIGIN/../../torch/lib;$ORIGIN/../../nvidia/nccl/lib",
    }
    assert plan.links(facts, FOLDERS) == {
        Path("/tmp/s/nccl/include"): SITE / "nvidia/nccl/include",
        Path("/tmp/s/nccl/lib/libnccl.so"): SITE / "nvidia/nccl/lib/libnccl.so.2",
        Path("/tmp/s/nccl/lib/libnccl.so.2"): SITE / "nvidia/nccl/lib/libnccl.so.2",
    }


def test_an_mpi_without_a_blank_needs_no_link():
    assert plan.links(FACTS, FOLDERS) == {}


def test_an_open_mpi_whose_path_has_a_blank_is_built_through_links(tmp_path):
    prefix = tmp_path / "my env"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/opal_wrapper").write_text("")
    facts = with_mpi(prefix=prefix, bin_dir=prefix / "bin")
    wrapper = prefix / "bin/opal_wrapper"
    assert plan.links(facts, FOLDERS) == {
        Path("/tmp/s/mpi/prefix"): prefix,
        Path("/tmp/s/mpi/bin/mpicxx"): wrapper,
        Path("/tmp/s/mpi/bin/mpic++"): wrapper,
        Path("/tmp/s/mpi/bin/mpicc"): wrapper,
        Path("/tmp/s/mpi/bin/mpiexec"): prefix / "bin/mpiexec",
    }
    env = plan.build_command(facts, TOOLS, FOLDERS, 3, {"PATH": "/usr/bin"}).env
    assert (env["MPI_HOME"], env["OPAL_PREFIX"]) == ("/tmp/s/mpi", "/tmp/s/mpi/prefix")
    assert env["PATH"].startswith("/tmp/s/mpi/bin:")


def test_another_mpi_whose_path_has_a_blank_is_refused(tmp_path):
    with pytest.raises(InputError, match="MPICH's path has a blank"):
        plan.links(with_mpi(vendor="MPICH", prefix=tmp_path / "my mpi"), FOLDERS)


OPEN_MPI_WORDS = ("/env/bin/mpirun", "-np", "2", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE")
PROGRAM = ("/env/bin/python", "-m", "hvdtrain.backends.horovod")


def test_the_proof_of_an_unpacked_wheel_sees_that_wheel_first():
    environ = {"PYTHONPATH": "/mine", "LD_LIBRARY_PATH": "/libs"}
    command = plan.proof_command(FACTS, environ, FOLDERS.site, root=False)
    assert command.argv == OPEN_MPI_WORDS + PROGRAM
    assert command.env == {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PYTHONPATH": "/tmp/s/site:/mine",
        "LD_LIBRARY_PATH": "/env/lib:/libs",
    }


def test_the_proof_of_an_installation_gets_no_help_in_finding_it():
    command = plan.proof_command(FACTS, {"PYTHONPATH": "/mine"}, None, root=True)
    assert command.env == {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def test_the_proof_does_not_take_itself_for_a_part_of_an_outer_job():
    outer = {"SLURM_JOB_ID": "1", "PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "HOROVOD_RANK": "0"}
    kept = {"OMPI_MCA_btl": "self,vader", "PATH": "/usr/bin"}
    command = plan.proof_command(FACTS, {**outer, **kept}, None, root=False)
    environment = command.environment({**outer, **kept})
    assert not outer.keys() & environment.keys()
    assert kept.items() <= environment.items()


def test_mpich_gets_none_of_open_mpis_words():
    command = plan.proof_command(with_mpi(vendor="MPICH"), {}, None, root=True)
    assert command.argv == ("/env/bin/mpirun", "-np", "2", *PROGRAM)
    assert command.env == {}


def test_an_mpi_elsewhere_is_looked_for_where_it_is():
    facts = with_mpi(prefix=Path("/opt/my mpi"), library_dirs=(Path("/opt/my mpi/lib"),))
    assert facts.rpath == ("/opt/my mpi/lib", "$ORIGIN/../../torch/lib")


def test_the_wheels_name():
    assert FACTS.wheel_name == "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


@pytest.mark.parametrize(
    "other",
    [
        replace(FACTS, torch=replace(FACTS.torch, version="2.12.0+cpu")),
        replace(FACTS, torch=replace(FACTS.torch, git="0000")),
        replace(FACTS, torch=replace(FACTS.torch, cxx11_abi=False)),
        replace(FACTS, torch=replace(FACTS.torch, cxx_standard=20)),
        replace(FACTS, python=replace(FACTS.python, abi="cpython-312-x86_64-linux-gnu")),
        replace(FACTS, python=replace(FACTS.python, platform="linux-aarch64")),
        with_mpi(vendor="MPICH"),
        with_mpi(version="5.0.10"),
        with_mpi(library_sha256="5hb"),
        with_mpi(prefix=Path("/usr")),
        replace(FACTS, compiler=replace(FACTS.compiler, version="13.1.0")),
        replace(FACTS, compiler=replace(FACTS.compiler, argv=("/usr/bin/g++",))),
        replace(FACTS, instructions=""),
        replace(FACTS, flags={"CXXFLAGS": "-O0"}),
        replace(FACTS, gpu=NCCL),
    ],
)
def test_whatever_the_wheel_depends_on_changes_the_key(other):
    assert other.key != FACTS.key


@pytest.mark.parametrize(
    "other",
    [
        replace(NCCL, toolkit=replace(NCCL.toolkit, version="13.1.0")),
        replace(NCCL, nccl=replace(NCCL.nccl, version="2.29.1")),
        replace(NCCL, capabilities=""),
    ],
)
def test_whatever_an_nccl_wheel_depends_on_changes_the_key(other):
    assert replace(FACTS, gpu=other).key != replace(FACTS, gpu=NCCL).key


def test_environments_with_the_same_mpi_inside_share_a_wheel():
    there = Path("/home/me/my env")
    site = there / "lib/python3.11/site-packages"
    facts = replace(
        with_mpi(prefix=there, bin_dir=there / "bin", library_dirs=(there / "lib",)),
        python=replace(FACTS.python, executable=there / "bin/python", prefix=there, site=site),
        torch=replace(FACTS.torch, root=site / "torch"),
    )
    assert facts.key == FACTS.key


def test_an_environment_called_by_a_link_is_the_same_one(tmp_path):
    real, link = tmp_path / "gpfs/env", tmp_path / "home"
    site = real / "lib/python3.11/site-packages"
    (site / "torch/lib").mkdir(parents=True)
    link.symlink_to(tmp_path / "gpfs")
    called = link / "env"
    facts = replace(
        with_mpi(prefix=real, bin_dir=called / "bin", library_dirs=(real / "lib",)),
        python=replace(FACTS.python, prefix=called, site=called / "lib/python3.11/site-packages"),
        torch=replace(FACTS.torch, root=called / "lib/python3.11/site-packages/torch"),
    )
    assert facts.key == FACTS.key


def test_the_reason_for_a_cpu_build_and_the_mpi_passed_over_do_not_change_the_key():
    assert replace(FACTS, gpu=GpuChoice("none", "no toolkit")).key == FACTS.key
    assert with_mpi(passed_over=Path("/usr/bin")).key == FACTS.key
