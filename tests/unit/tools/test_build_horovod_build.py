"""What happens to a wheel of the cache: who holds its lock, and an installation that does not start."""

import fcntl
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.errors import BuildError, InputError
from hvdtrain.tools.build_horovod import build
from hvdtrain.tools.build_horovod.cache import Cache
from hvdtrain.tools.build_horovod.install import install
from hvdtrain.tools.build_horovod.progress import LineReporter


@pytest.fixture
def builder(tmp_path):
    """Makes a builder for this environment whose cache has its wheel."""

    def make(**request):
        cache = Cache(tmp_path / "cache")
        try:
            made = build.Builder(build.Request(gpu="none", **request), os.environ, cache, LineReporter())
        except InputError as error:
            pytest.skip(f"nothing can be built here: {error}")
        cache.prepare()
        key, wheel, log = made.facts.key, tmp_path / made.facts.wheel_name, tmp_path / "log"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("horovod-0.28.1.dist-info/RECORD", "horovod/torch/mpi_lib_v2.so,sha256=none,7\n")
        log.write_text("")
        cache.publish(key, wheel, {"proof": {"size": 2}}, log)
        return made

    return make


def is_held(builder) -> bool:
    """Whether the key's lock is held."""
    with builder.cache.lock(builder.facts.key).open() as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_lock_is_held_while_the_wheel_is_copied(builder, tmp_path, monkeypatch):
    made, held = builder(wheel_dir=tmp_path / "wheels"), []
    copy = build.copy_into
    monkeypatch.setattr(build, "copy_into", lambda *args: held.append(is_held(made)) or copy(*args))
    outcome = made.run()
    assert held == [True]
    assert zipfile.is_zipfile(outcome.wheel)
    assert not is_held(made)


def test_the_lock_is_held_while_the_wheel_is_installed_and_proven(builder, monkeypatch):
    made, held = builder(), []
    monkeypatch.setattr(build, "install", lambda *args: held.append(is_held(made)))
    monkeypatch.setattr(build, "prove", lambda *args: held.append(is_held(made)) or {"size": 2})
    assert made.run().installed
    assert held == [True, True]
    assert not is_held(made)


def test_an_installation_that_does_not_start_is_a_build_error(builder):
    made = builder()
    wheel = made.cache.find(made.facts.key, print)
    facts = replace(made.facts, python=replace(made.facts.python, executable=Path("/nowhere/python")))
    with pytest.raises(BuildError, match=rf"pip could not install {wheel.wheel}: .*'/nowhere/python'"):
        install(facts, wheel)
