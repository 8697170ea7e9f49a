"""Whether a wheel is installed is told by what it and the installation record of the libraries."""

import zipfile

import pytest

from hvdtrain.tools.build_horovod.install import is_installed

LIBRARY = "horovod/torch/mpi_lib_v2.so"
INFO = "horovod-0.28.1.dist-info"


def record(digest):
    return f"{LIBRARY},sha256={digest},7\n{INFO}/RECORD,,\n"


@pytest.fixture
def make_wheel(tmp_path):
    def make(digest):
        path = tmp_path / f"{digest}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(LIBRARY, b"library")
            archive.writestr(f"{INFO}/RECORD", record(digest))
        return path

    return make


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site-packages folder with a Horovod in it, as pip leaves one, before all others."""
    place = tmp_path / "site"
    (place / INFO).mkdir(parents=True)
    (place / LIBRARY).parent.mkdir(parents=True)
    (place / LIBRARY).write_bytes(b"library")
    (place / INFO / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    (place / INFO / "RECORD").write_text(record("one"))
    monkeypatch.syspath_prepend(str(place))
    return place


def test_the_very_wheel(site, make_wheel):
    assert is_installed(make_wheel("one"))


def test_another_wheel(site, make_wheel):
    assert not is_installed(make_wheel("two"))


@pytest.mark.parametrize("damage", ["missing", "short", "no record"])
def test_an_installation_that_is_not_whole(site, make_wheel, damage):
    if damage == "missing":
        (site / LIBRARY).unlink()
    elif damage == "short":
        (site / LIBRARY).write_bytes(b"lib")
    else:
        (site / INFO / "RECORD").unlink()
    assert not is_installed(make_wheel("one"))
