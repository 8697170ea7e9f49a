"""Where no file may be written is told before anything is done."""

import os

import pytest

from hvdtrain.cli.main import main
from hvdtrain.cli.targets import check_target
from hvdtrain.errors import InputError


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No site file, and no launcher or scheduler around."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "OMPI_COMM_WORLD_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_places_that_take_no_file(tmp_path):
    os.mkfifo("pipe")
    (tmp_path / "input").write_text("x")
    (tmp_path / "link").symlink_to("input")
    for path, told in (
        (tmp_path, "is a folder; name a file"),
        (tmp_path / "none" / "a", "there is no folder"),
        (tmp_path / "pipe", "is no regular file"),
        (tmp_path / "/dev/null", "is no regular file"),
        (tmp_path / "link", "is the input itself"),
    ):
        with pytest.raises(InputError, match=rf"^--save: .*{told}"):
            check_target("--save", path, tmp_path / "input")


def test_places_that_take_one(tmp_path):
    (tmp_path / "old").write_text("x")
    check_target("--save", None)
    check_target("--save", tmp_path / "old", tmp_path / "other")
    check_target("--save", tmp_path / "new", tmp_path / "new")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bench", "import", "x", "--save", "x"], "--save: x is the input itself"),
        (["bench", "import", "x", "--save", "/dev/null"], "--save: /dev/null is no regular file"),
        (["bench", "allreduce", "-np", "2", "--save", "none/x"], "--save: there is no folder none"),
        (["advise", "p", "--html", "p"], "--html: p is the input itself"),
        (["advise", "p", "--network", "x", "--html", "x"], "--html: x is the input itself"),
        (["profile", "job.yaml", "--output", "job.yaml"], "--output: job.yaml is the input itself"),
        (["profile", "--output", "x", "--", "sh", "x"], "--output: x is the input itself"),
        (["profile", "--output", "new", "--trace", "./new"], "--trace: new is the file of --output"),
    ],
)
def test_verbs_ask_before_they_begin(capsys, tmp_path, words, told):
    for name in ("x", "p", "job.yaml"):
        (tmp_path / name).write_text("mine")
    assert main(words) == 2
    assert told in capsys.readouterr().err
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}
