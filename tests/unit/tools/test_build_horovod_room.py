"""Where to compile: fit folders, and errors that name the numbers."""

import tempfile
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod import room
from hvdtrain.tools.build_horovod.cache import Cache


@pytest.fixture
def disks(monkeypatch):
    """Sets what is free, in MiB, below folders; everything else has plenty."""
    sizes = {}

    def free_mib(path: Path) -> int:
        return next((size for folder, size in sizes.items() if path.is_relative_to(folder)), 100_000)

    monkeypatch.setattr(room, "free_mib", free_mib)
    return sizes


@pytest.fixture
def tmpdir_is(monkeypatch):
    return lambda path: monkeypatch.setattr(tempfile, "tempdir", str(path))


def test_tmpdir_comes_first(tmp_path, disks, tmpdir_is):
    tmpdir_is(tmp_path)
    assert room.choose_scratch_parent(Cache(tmp_path / "cache"), "none") == tmp_path


def test_a_tmpdir_with_a_blank_is_passed_over(tmp_path, disks, tmpdir_is):
    blank = tmp_path / "my tmp"
    blank.mkdir()
    tmpdir_is(blank)
    assert room.choose_scratch_parent(Cache(tmp_path / "cache"), "none") == Path("/tmp")


def test_a_full_tmpdir_is_passed_over(tmp_path, disks, tmpdir_is):
    tmpdir_is(tmp_path)
    disks[tmp_path / "cache"] = 5000
    disks[tmp_path] = 100
    assert room.choose_scratch_parent(Cache(tmp_path / "cache"), "none") == Path("/tmp")


def test_an_nccl_build_needs_more(tmp_path, disks, tmpdir_is):
    tmpdir_is(tmp_path)
    disks[tmp_path] = 800
    assert room.choose_scratch_parent(Cache(tmp_path / "cache"), "none") == tmp_path
    assert room.choose_scratch_parent(Cache(tmp_path / "cache"), "nccl") == Path("/tmp")


def test_too_little_everywhere_names_the_numbers(tmp_path, disks, tmpdir_is):
    tmpdir_is(tmp_path)
    disks[tmp_path / "cache"] = 5000
    disks[Path("/")] = 100
    (tmp_path / "cache/horovod").mkdir(parents=True)
    (tmp_path / "cache/horovod").chmod(0o500)
    disks[tmp_path / "cache"] = 300
    with pytest.raises(InputError, match=r"100 MiB are free, the build needs 768 MiB; .*TMPDIR"):
        room.choose_scratch_parent(Cache(tmp_path / "cache"), "none")


def test_too_little_for_the_cache_names_it(tmp_path, disks, tmpdir_is):
    tmpdir_is("/tmp")
    disks[tmp_path] = 10
    with pytest.raises(InputError, match=r"cache/horovod: too little disk: 10 MiB .*HVDTRAIN_CACHE"):
        room.choose_scratch_parent(Cache(tmp_path / "cache"), "none")


def test_free_space_is_asked_of_the_nearest_folder_that_exists(tmp_path):
    assert room.free_mib(tmp_path / "a/b/c") == pytest.approx(room.free_mib(tmp_path), abs=64)


@pytest.mark.parametrize(
    ("cores", "memory_mib", "jobs"),
    [(8, 100_000, 8), (8, 4 * 1536, 4), (8, 4 * 1536 - 1, 3), (8, 10, 1), (1, 100_000, 1)],
)
def test_as_many_jobs_as_cores_and_memory_allow(cores, memory_mib, jobs):
    assert room.default_jobs(cores, memory_mib) == jobs
