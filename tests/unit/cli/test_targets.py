"""Where no file may be written is told before anything is done."""

import json
import os

import pytest

from hvdtrain.cli.documents import MODEL, NETWORK, PAGE, PROFILE, TRACE
from hvdtrain.cli.main import main
from hvdtrain.cli.targets import check_target
from hvdtrain.errors import InputError
from hvdtrain.measure.profile_times import table_of
from hvdtrain.measure.profile_trace import trace_document
from hvdtrain.report.page import advice_page
from tests.unit.report.documents import ADVICE
from tests.unit.scaling.profiles import profile_document


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
        (tmp_path / ("x" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(InputError, match=rf"^--save: .*{told}"):
            check_target("--save", path, tmp_path / "input", kind=NETWORK)


def test_places_that_take_one(tmp_path):
    (tmp_path / "old").write_text("")
    check_target("--save", None, kind=NETWORK)
    check_target("--save", tmp_path / "old", tmp_path / "other", kind=NETWORK)
    check_target("--save", tmp_path / "new", tmp_path / "new", kind=NETWORK)


CONTENTS = {
    "profile": json.dumps(profile_document()).encode(),
    "network file": b'{"schema": 1, "kind": "allreduce"}',
    "trace": json.dumps(trace_document([[]], table_of([[[1.0] * 7]]), ["a"])).encode(),
    "report": advice_page(ADVICE).encode(),
    "safetensors file": (2).to_bytes(8, "little") + b"{}",
}


@pytest.mark.parametrize("kind", [PROFILE, NETWORK, TRACE, PAGE, MODEL], ids=lambda kind: kind.name)
def test_only_an_older_one_of_its_kind_is_replaced(tmp_path, kind):
    others = {
        "text": b"mine",
        "bytes": b"\xff\xfe",
        "JSON": b"[1]",
        "deep": b"[" * 100_000,
        "an object": b"{}",
    }
    for name, content in {**CONTENTS, **others}.items():
        path = tmp_path / "file"
        path.write_bytes(content)
        if name == kind.name:
            check_target("--save", path, kind=kind)
            continue
        told = f"is there already, and no {kind.name}; legal: a new file, or an older {kind.name}"
        with pytest.raises(InputError, match=f"^--save: {path} {told}"):
            check_target("--save", path, kind=kind)
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bench", "import", "x", "--save", "x"], "--save: x is the input itself"),
        (["bench", "import", "x", "--save", "/dev/null"], "--save: /dev/null is no regular file"),
        (["bench", "allreduce", "-np", "2", "--save", "none/x"], "--save: there is no folder none"),
        (
            ["bench", "allreduce", "-np", "2", "--save", "x"],
            "--save: x is there already, and no network file",
        ),
        (["advise", "--measured", "1:9,8:70", "--html", "x"], "--html: x is there already, and no report"),
        (["profile", "--output", "x"], "--output: x is there already, and no profile"),
        (["profile", "--output", "new", "--trace", "x"], "--trace: x is there already, and no trace"),
        (["train", "--set", "tuning.timeline=x"], "tuning.timeline: x is there already, and no timeline"),
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
