"""``hvdtrain report``: what it writes where, and what it refuses."""

import json
import os
import sys

import pytest

from hvdtrain.cli.main import main
from tests.unit.report.documents import ADVICE, write_run
from tests.unit.scaling.profiles import profile_document


@pytest.fixture
def inputs(tmp_path):
    """A run, a profile and advice, in a folder of their own each."""
    write_run(tmp_path / "run", status={"state": "done"})
    for name, document in (("profile", profile_document()), ("advice", ADVICE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("source", "page", "first"),
    [
        ("run", "run/report.html", "run  (done)"),
        ("profile/profile.json", "profile/profile.html", "digits"),
        ("advice/advice.json", "advice/advice.html", "flowers"),
    ],
)
def test_the_page_lies_beside_the_input_and_the_tables_are_printed(inputs, capsys, source, page, first):
    assert main(["report", str(inputs / source)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == first
    assert out.splitlines()[-1] == f"page: {inputs / page}"
    assert (inputs / page).read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("option", ["--text", "--json"])
def test_text_and_json_write_no_page_of_their_own(inputs, capsys, option):
    before = files(inputs / "run")
    assert main(["report", str(inputs / "run"), option]) == 0
    out = capsys.readouterr().out
    assert files(inputs / "run") == before
    if option == "--json":
        assert json.loads(out)["page"] is None
    else:
        assert "page:" not in out


def test_json_tells_the_page_that_it_wrote(inputs, capsys):
    page = inputs / "mine.html"
    assert main(["report", str(inputs / "advice" / "advice.json"), "--json", "-o", str(page)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["page"] == str(page)
    assert document["of"] == "advice"
    assert document["figures"]["efficiency"]["rows"][2]["gpus"] == 4
    assert page.is_file()


def test_a_page_is_written_anew(inputs, capsys):
    for _ in range(2):
        assert main(["report", str(inputs / "run")]) == 0
    assert files(inputs / "run") == ["metrics.jsonl", "report.html", "status.json"]


def refused(capsys, *words):
    assert main(["report", *map(str, words)]) == 2
    ended = capsys.readouterr()
    (line,) = ended.err.splitlines()
    assert line.startswith("hvdtrain: error: ")
    assert not ended.out
    return line


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\xff\xfe", "it is no text"),
        (b'{"schema": 1, "kind":', "it is no JSON"),
        (b"[1]", "it holds no JSON object"),
        (b"[" * 100_000, "it is no JSON"),
        (b'{"kind": "advice"}', "is no report's input: it has no key schema"),
        (b'{"schema": 2, "kind": "advice"}', "schema 2"),
        (b'{"schema": 1}', "is neither a profile nor advice; legal: a run directory, a profile.json"),
        (b'{"schema": 1, "kind": "report"}', "is neither a profile nor advice"),
        (b'{"schema": 1, "kind": "allreduce"}', "is a network file"),
        (b'{"schema": 1, "kind": "advice"}', "predictions is missing"),
        (b'{"schema": 1, "ranks": [], "steps": 1}', "the profile holds one step"),
    ],
)
def test_a_file_that_is_nothing_to_report(tmp_path, capsys, content, told):
    path = tmp_path / "input.json"
    path.write_bytes(content)
    line = refused(capsys, path)
    assert told in line
    assert str(path) in line
    assert files(tmp_path) == ["input.json"]


def test_inputs_that_are_not_there_or_no_files(tmp_path, capsys):
    assert "does not exist; legal: a run directory" in refused(capsys, tmp_path / "none")
    assert "is no run directory" in refused(capsys, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in refused(capsys, tmp_path / "pipe")
    assert "the path is empty" in refused(capsys, "")


def test_places_where_no_page_may_go(inputs, capsys):
    advice = inputs / "advice" / "advice.json"
    before = advice.read_text()
    assert "is the input itself" in refused(capsys, advice, "-o", advice)
    assert advice.read_text() == before
    assert "is a folder" in refused(capsys, advice, "-o", inputs)
    assert "there is no folder" in refused(capsys, advice, "-o", inputs / "none" / "page.html")
    profile = inputs / "profile" / "profile.json"
    before = profile.read_text()
    line = refused(capsys, advice, "-o", profile)
    assert (
        f"--output: {profile} is there already, and no report; legal: a new file, or an older report" in line
    )
    assert profile.read_text() == before
    assert files(inputs) == ["advice", "profile", "run"]


def test_a_page_of_somebody_elses_is_not_replaced(inputs, capsys):
    mine = inputs / "advice" / "advice.html"
    mine.write_text("<title>mine</title>")
    line = refused(capsys, inputs / "advice" / "advice.json")
    assert "is there already, and no report; name another with -o FILE" in line
    assert mine.read_text() == "<title>mine</title>"


def test_text_and_json_exclude_each_other(inputs, capsys):
    assert main(["report", str(inputs / "run"), "--text", "--json"]) == 2
    assert "--text and --json, both given" in capsys.readouterr().err


def test_a_login_node_reports_without_torch(inputs, run_program):
    program = (
        "import sys\n"
        "from hvdtrain.cli.main import main\n"
        f"assert main(['report', {str(inputs / 'advice' / 'advice.json')!r}]) == 0\n"
        "print(sorted({'torch', 'horovod', 'mpi4py', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    ended = run_program([sys.executable, "-c", program])
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == "[]"
