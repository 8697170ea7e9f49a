"""Whether a wheel is installed is told by pip's own notes and the files that are there."""

import json

import pytest

from hvdtrain.tools.build_horovod.install import is_installed

SHA256 = "ab" * 32


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site-packages folder with a Horovod in it, as pip leaves one, before all others."""
    info = tmp_path / "horovod-0.28.1.dist-info"
    info.mkdir()
    library = tmp_path / "horovod/torch/mpi_lib_v2.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"library")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    (info / "RECORD").write_text(
        "horovod/torch/mpi_lib_v2.so,sha256=x,7\nhorovod-0.28.1.dist-info/RECORD,,\n"
    )
    source = {"url": "file:///c/horovod.whl", "archive_info": {"hashes": {"sha256": SHA256}}}
    (info / "direct_url.json").write_text(json.dumps(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_very_wheel(site):
    assert is_installed(SHA256)


def test_another_wheel(site):
    assert not is_installed("cd" * 32)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "https://x", "dir_info": {"editable": true}}'])
def test_an_installation_from_elsewhere(site, text):
    (site / "horovod-0.28.1.dist-info/direct_url.json").write_text(text)
    assert not is_installed(SHA256)


def test_an_installation_by_name_has_no_note(site):
    (site / "horovod-0.28.1.dist-info/direct_url.json").unlink()
    assert not is_installed(SHA256)


@pytest.mark.parametrize("damage", ["missing", "short", "no record"])
def test_an_installation_that_is_not_whole(site, damage):
    library = site / "horovod/torch/mpi_lib_v2.so"
    if damage == "missing":
        library.unlink()
    elif damage == "short":
        library.write_bytes(b"lib")
    else:
        (site / "horovod-0.28.1.dist-info/RECORD").unlink()
    assert not is_installed(SHA256)
