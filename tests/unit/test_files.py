"""What a disk has before a rename may be trusted."""

import hashlib
import os

import pytest

from hvdtrain.files import sha256_of, sync, write_atomically


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "a"
    for text in ("one", "two"):
        write_atomically(path, text)
        sync(path)
        sync(tmp_path)
        assert path.read_text() == text
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert sha256_of(path) == hashlib.sha256(b"two").hexdigest()


def test_a_replacement_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        write_atomically(tmp_path / "a", "x")
    assert os.listdir(tmp_path) == ["a"]


def test_the_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, done = tmp_path / "a", []
    real = os.fsync

    def fsync(descriptor):
        synced = tmp_path / os.readlink(f"/proc/self/fd/{descriptor}")
        done.append((synced.read_text(), path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(path, "content")
    assert done == [("content", False)]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/a")
    write_atomically(tmp_path / "link", "one")
    write_atomically(tmp_path / "link", "two")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "a").read_text() == "two"
