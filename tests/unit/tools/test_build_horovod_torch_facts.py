"""torch's facts are read from its files; torch itself stays out of the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod.torch_facts import find_torch, read_torch

ATEN = """#pragma once

#if !defined(_MSC_VER) && __cplusplus < {macro}L
#error C++{standard} or later compatible compiler is required to use ATen.
#endif
"""


def make_torch(
    root: Path, *, standard: int = 17, all_h: int | None = None, cmake: str = "", version: str = ""
) -> Path:
    files = {
        "version.py": version
        or "from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.13.0+cpu'\n"
        "debug = False\ncuda: Optional[str] = None\ngit_version = 'cf30153c'\nhip: Optional[str] = None\n",
        "include/ATen/ATen.h": ATEN.format(macro=201703, standard=standard),
        "include/torch/csrc/api/include/torch/all.h": ATEN.format(macro=201703, standard=all_h or standard),
        "share/cmake/Torch/TorchConfig.cmake": cmake,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_installed_torch_agrees_with_what_torch_says_of_itself():
    facts = find_torch()
    script = (
        "import torch; print(torch.__version__, torch.version.git_version, torch.version.cuda, "
        "torch.compiled_with_cxx11_abi(), torch.__file__)"
    )
    told = (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        .stdout.strip()
        .split(maxsplit=4)
    )
    assert [facts.version, facts.git, str(facts.cuda), str(facts.cxx11_abi)] == told[:4]
    assert facts.root == Path(told[4]).parent
    assert facts.cxx_standard in (17, 20)


@pytest.mark.parametrize("standard", [17, 20])
def test_the_standard_comes_from_the_headers(tmp_path, standard):
    assert read_torch(make_torch(tmp_path, standard=standard)).cxx_standard == standard


def test_the_stricter_header_decides(tmp_path):
    assert read_torch(make_torch(tmp_path, standard=17, all_h=20)).cxx_standard == 20


def test_headers_that_name_no_standard_are_an_error(tmp_path):
    root = make_torch(tmp_path)
    for name in ("include/ATen/ATen.h", "include/torch/csrc/api/include/torch/all.h"):
        (root / name).write_text("#pragma once\n")
    with pytest.raises(InputError, match="do not name the C\\+\\+ standard"):
        read_torch(root)


@pytest.mark.parametrize(
    ("cmake", "abi"),
    [
        ('set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")', False),
        ('set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")', True),
        ("", True),
    ],
)
def test_the_abi_comes_from_torchs_cmake_file(tmp_path, cmake, abi):
    assert read_torch(make_torch(tmp_path, cmake=cmake)).cxx11_abi is abi


def test_cuda_builds_are_known_from_either_form_of_assignment(tmp_path):
    version = "__version__ = '2.4.0+cu121'\ngit_version = 'e4ee3be4'\ncuda = '12.1'\nhip = None\n"
    facts = read_torch(make_torch(tmp_path, version=version))
    assert (facts.version, facts.cuda) == ("2.4.0+cu121", "12.1")


def test_rocm_is_refused(tmp_path):
    version = "__version__ = '2.13.0+rocm7.0'\ncuda = None\nhip = '7.0'\n"
    with pytest.raises(InputError, match="ROCm"):
        read_torch(make_torch(tmp_path, version=version))


def test_a_broken_torch_names_the_file(tmp_path):
    with pytest.raises(InputError, match=r"version\.py: cannot read a file of torch"):
        read_torch(tmp_path)
