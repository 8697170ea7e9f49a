"""--gpu auto, none and nccl, over toolkits and NCCLs laid out as NVIDIA's are."""

import sys
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod.cuda import choose_gpu
from hvdtrain.tools.build_horovod.torch_facts import TorchFacts


def torch_for(cuda):
    return TorchFacts(Path("/torch"), "2.14.1", "", cuda, 20, True)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def make_toolkit(home: Path, version: str = "13.0.88") -> Path:
    top = f'echo "#\\$ TOP={home}/bin/.." >&2'
    script(home / "bin/nvcc", f"case $1 in --dryrun) {top};; *) echo 'release 13.0, V{version}';; esac")
    for name in ("include/cuda_runtime.h", "lib64/libcudart.so"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    return home


def make_nccl(home: Path) -> Path:
    text = '#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n#define NCCL_SUFFIX ""\n'
    for name, content in (("include/nccl.h", text), ("lib/libnccl.so.2", "")):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)
    return home


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A machine without a toolkit or an NCCL in the system's places."""
    monkeypatch.setattr("hvdtrain.tools.build_horovod.cuda._TOOLKITS", (str(tmp_path / "none"),))
    monkeypatch.setattr("hvdtrain.tools.build_horovod.cuda._SYSTEM_NCCL", ())
    monkeypatch.setattr("hvdtrain.tools.build_horovod.cuda.find_spec", lambda name: None)
    return {"PATH": "/nowhere"}


def test_variables_lead_to_both(tmp_path, nowhere):
    home, nccl = make_toolkit(tmp_path / "cuda"), make_nccl(tmp_path / "nccl")
    environ = {**nowhere, "CUDA_HOME": str(home), "NCCL_HOME": str(nccl)}
    choice = choose_gpu("auto", torch_for("13.0"), environ)
    assert choice.kind == "nccl"
    assert (choice.toolkit.home, choice.toolkit.version) == (home, "13.0.88")
    assert (choice.nccl.include, choice.nccl.library) == (nccl / "include", nccl / "lib/libnccl.so.2")
    assert choice.nccl.version == "2.28.9"
    assert choice.capabilities == ""


def test_an_nvcc_that_is_a_script_elsewhere_leads_to_the_real_toolkit(tmp_path, nowhere):
    home, nccl = make_toolkit(tmp_path / "cuda-13.0"), make_nccl(tmp_path / "nccl")
    wrapper = script(tmp_path / "bin/nvcc", f'exec {home}/bin/nvcc "$@"')
    environ = {"PATH": f"{wrapper.parent}:/usr/bin:/bin", "NCCL_HOME": str(nccl)}
    assert choose_gpu("nccl", torch_for("13.0"), environ).toolkit.home == home


def test_an_nvcc_that_is_a_link_leads_to_the_real_toolkit(tmp_path, nowhere):
    home, nccl = make_toolkit(tmp_path / "cuda-13.0"), make_nccl(tmp_path / "nccl")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").symlink_to(home / "bin/nvcc")
    environ = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "NCCL_HOME": str(nccl)}
    assert choose_gpu("nccl", torch_for("13.0"), environ).toolkit.home == home


def test_nccl_of_pips_packages_is_found_by_itself(tmp_path, nowhere, monkeypatch):
    make_nccl(tmp_path / "site/nvidia/nccl")
    monkeypatch.undo()
    monkeypatch.setattr("hvdtrain.tools.build_horovod.cuda._SYSTEM_NCCL", ())
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    environ = {"PATH": "/usr/bin:/bin", "CUDA_HOME": str(make_toolkit(tmp_path / "cuda"))}
    choice = choose_gpu("nccl", torch_for("13.0"), environ)
    assert choice.nccl.library == tmp_path / "site/nvidia/nccl/lib/libnccl.so.2"


def test_nccl_beside_the_toolkit_is_found(tmp_path, nowhere):
    home = make_nccl(make_toolkit(tmp_path / "cuda"))
    choice = choose_gpu("nccl", torch_for("13.0"), {**nowhere, "CUDA_HOME": str(home)})
    assert choice.nccl.library == home / "lib/libnccl.so.2"


def test_an_incomplete_toolkit_is_passed_over(tmp_path, nowhere):
    bare, home = make_toolkit(tmp_path / "bare"), make_nccl(make_toolkit(tmp_path / "cuda"))
    (bare / "lib64/libcudart.so").unlink()
    environ = {**nowhere, "CUDA_HOME": str(bare), "CUDA_PATH": str(home)}
    assert choose_gpu("nccl", torch_for("13.0"), environ).toolkit.home == home


@pytest.mark.parametrize("lack", ["torch", "toolkit", "version", "nccl"])
def test_what_is_missing_is_named_by_nccl_and_is_the_reason_for_auto(tmp_path, nowhere, lack):
    home, nccl = (
        make_toolkit(tmp_path / "cuda", "12.4.1" if lack == "version" else "13.0.88"),
        tmp_path / "nccl",
    )
    if lack != "nccl":
        make_nccl(nccl)
    environ = {**nowhere, "NCCL_HOME": str(nccl)}
    if lack != "toolkit":
        environ["CUDA_HOME"] = str(home)
    torch = torch_for(None if lack == "torch" else "13.0")
    reason = {
        "torch": "torch 2.14.1 is a CPU build",
        "toolkit": "no CUDA toolkit",
        "version": f"torch 2.14.1 is for CUDA 13.0, but {home} is CUDA 12.4.1",
        "nccl": "no NCCL (nccl.h and libnccl.so)",
    }[lack]
    choice = choose_gpu("auto", torch, environ)
    assert choice.kind == "none"
    assert reason in choice.why
    with pytest.raises(InputError) as raised:
        choose_gpu("nccl", torch, environ)
    assert reason in str(raised.value)
    assert raised.value.do


def test_none_asks_nobody():
    assert choose_gpu("none", torch_for("13.0"), {"CUDA_HOME": "/usr/local/cuda"}).kind == "none"


@pytest.mark.parametrize(
    ("text", "fits"), [("80,90", True), ("90", True), ("80;90", False), ("sm_90", False)]
)
def test_capabilities_are_checked(tmp_path, nowhere, text, fits):
    home = make_nccl(make_toolkit(tmp_path / "cuda"))
    environ = {**nowhere, "CUDA_HOME": str(home), "HOROVOD_BUILD_CUDA_CC_LIST": text}
    if fits:
        assert choose_gpu("auto", torch_for("13.0"), environ).capabilities == text
    else:
        with pytest.raises(InputError, match="HOROVOD_BUILD_CUDA_CC_LIST"):
            choose_gpu("auto", torch_for("13.0"), environ)
