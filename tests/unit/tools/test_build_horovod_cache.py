"""The cache holds whole wheels or none; locks and scratch folders die with their owners."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.files import sha256_of
from hvdtrain.tools.build_horovod.build import copy_into
from hvdtrain.tools.build_horovod.cache import (
    MANIFEST,
    Cache,
    cache_root,
    copy_whole,
    locked,
    scratch_folder,
)

KEY = "0123456789abcdef0123"


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path / "my cache")
    cache.prepare()
    return cache


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    path.write_bytes(b"wheel" * 1000)
    return path


def publish(cache, wheel, **manifest):
    cache.log(KEY).write_text("built\n")
    return cache.publish(KEY, wheel, manifest, cache.log(KEY))


def no_warning(text):
    raise AssertionError(text)


def test_what_is_published_is_found_again(cache, wheel):
    published = publish(cache, wheel, proof={"sum": 3.0})
    found = cache.find(KEY, no_warning)
    assert found == published
    assert found.wheel == cache.entry(KEY) / wheel.name
    assert found.wheel.read_bytes() == wheel.read_bytes()
    assert found.sha256 == sha256_of(wheel)
    assert found.manifest["proof"] == {"sum": 3.0}
    assert {path.name for path in cache.entry(KEY).iterdir()} == {wheel.name, MANIFEST, "build.log"}


def test_publishing_again_replaces(cache, wheel):
    publish(cache, wheel)
    wheel.write_bytes(b"other")
    publish(cache, wheel)
    assert cache.find(KEY, no_warning).wheel.read_bytes() == b"other"
    assert not list(cache.horovod.glob(f"{KEY}.new-*"))


def test_nothing_there_is_no_hit_and_no_warning(cache):
    assert cache.find(KEY, no_warning) is None


def test_a_folder_without_its_manifest_is_no_hit(cache, wheel):
    publish(cache, wheel)
    (cache.entry(KEY) / MANIFEST).unlink()
    assert cache.find(KEY, no_warning) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"wheel": {"name": "a.whl"}}', '{"wheel": 3}'])
def test_a_broken_manifest_is_no_hit_and_said_once(cache, wheel, text):
    publish(cache, wheel)
    (cache.entry(KEY) / MANIFEST).write_text(text)
    warnings = []
    assert cache.find(KEY, warnings.append) is None
    assert len(warnings) == 1
    assert MANIFEST in warnings[0]


@pytest.mark.parametrize("damage", [b"whale" * 1000, b"wheel" * 999, None])
def test_a_wheel_that_is_not_the_one_built_is_no_hit_and_said_once(cache, wheel, damage):
    kept = publish(cache, wheel).wheel
    if damage is None:
        kept.unlink()
    else:
        kept.write_bytes(damage)
    warnings = []
    assert cache.find(KEY, warnings.append) is None
    assert len(warnings) == 1
    assert str(kept) in warnings[0]


def test_a_publication_killed_half_way_is_no_hit_and_is_swept(cache, wheel):
    staged = cache.horovod / f"{KEY}.new-abc"
    staged.mkdir()
    (staged / wheel.name).write_bytes(b"half")
    other = cache.horovod / "ffff.new-abc"
    other.mkdir()
    assert cache.find(KEY, no_warning) is None
    cache.sweep(KEY)
    assert not staged.exists()
    assert other.exists()


def test_a_root_that_cannot_be_made_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    for check in (cache.check_writable, cache.prepare):
        with pytest.raises(InputError, match="HVDTRAIN_CACHE"):
            check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_root_without_the_right_to_write_is_an_input_error(tmp_path):
    tmp_path.chmod(0o500)
    cache = Cache(tmp_path / "cache")
    for check in (cache.check_writable, cache.prepare):
        with pytest.raises(InputError, match="HVDTRAIN_CACHE"):
            check()


def test_checking_creates_nothing(tmp_path):
    Cache(tmp_path / "a/b").check_writable()
    assert list(tmp_path.iterdir()) == []


def test_the_root_is_the_variables_or_the_users(tmp_path):
    assert cache_root({"HVDTRAIN_CACHE": str(tmp_path)}) == tmp_path
    assert cache_root({"HVDTRAIN_CACHE": ""}).parts[-2:] == (".cache", "hvdtrain")


@contextmanager
def full_disk():
    """Every file that this process writes ends after 1,000 bytes.

    Around the one call only: pytest itself may write its report to a file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_copy_that_does_not_fit_leaves_nothing(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "target"
    folder.mkdir()
    with source.open("wb") as file:
        os.truncate(file.fileno(), 1000)
    large = Path(sys.executable).resolve()
    with full_disk():
        copy_whole(source, folder / "whole")
        with pytest.raises(OSError, match="File too large"):
            copy_whole(large, folder / "whole")
    assert [(path.name, path.stat().st_size) for path in folder.iterdir()] == [("whole", 1000)]


def test_a_wheel_that_does_not_fit_is_an_input_error(tmp_path):
    with (
        full_disk(),
        pytest.raises(InputError, match=r"--wheel-dir .*: cannot put the wheel there: .*File too large"),
    ):
        copy_into(Path(sys.executable).resolve(), tmp_path / "wheels")
    assert list((tmp_path / "wheels").iterdir()) == []


HOLDER = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from hvdtrain.tools.build_horovod.cache import locked, scratch_folder
with ExitStack() as stack:
    if sys.argv[1] == "lock":
        stack.enter_context(locked(Path(sys.argv[2]), print))
        print("held", flush=True)
    else:
        print(stack.enter_context(scratch_folder(Path(sys.argv[2]), "s-")), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder():
    """Starts a process that holds a lock or a scratch folder until its stdin closes."""
    children = []

    def start(what, path):
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, what, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child, child.stdout.readline().strip()

    yield start
    for child in children:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def test_a_second_one_waits_and_names_the_first(tmp_path, holder):
    path = tmp_path / "key.lock"
    child, _ = holder("lock", path)
    waits = []

    def on_wait(text):
        waits.append(text)
        child.stdin.close()  # the first one ends once the second is known to wait

    with locked(path, on_wait):
        assert child.wait() == 0
    assert len(waits) == 1
    assert f"process {child.pid} on host" in waits[0]


def test_a_killed_holder_holds_nothing(tmp_path, holder):
    path = tmp_path / "key.lock"
    child, _ = holder("lock", path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    with locked(path, no_warning):
        pass


def test_a_scratch_folder_is_gone_afterwards(tmp_path):
    def fail_inside():
        with scratch_folder(tmp_path, "s-") as folder:
            (folder / "file").write_text("")
            raise RuntimeError(folder)

    with pytest.raises(RuntimeError, match=r"/s-\w+$"):
        fail_inside()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_owners_scratch_folder_is_swept_a_living_ones_is_not(tmp_path, holder):
    dead, dead_folder = holder("scratch", tmp_path)
    _, living_folder = holder("scratch", tmp_path)
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    assert os.path.isdir(dead_folder)
    with scratch_folder(tmp_path, "s-") as mine:
        names = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert names == {mine.name, os.path.basename(living_folder)}


def test_a_lock_file_names_its_holder_while_held(tmp_path):
    path = tmp_path / "a.lock"
    with locked(path, no_warning):
        assert f"process {os.getpid()} " in path.read_text()
        with path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_manifest_is_json_a_person_can_read(cache, wheel):
    publish(cache, wheel, facts={"torch": "2.13.0"})
    text = (cache.entry(KEY) / MANIFEST).read_text()
    assert json.loads(text)["wheel"] == {
        "name": wheel.name,
        "size": wheel.stat().st_size,
        "sha256": sha256_of(wheel),
    }
    assert '\n  "facts": {\n' in text
