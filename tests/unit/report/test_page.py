"""The page needs nothing else, escapes what the job names, and says the same as the tables and the JSON."""

import io
import json
import re
from html.parser import HTMLParser

import pytest

from hvdtrain.errors import InputError
from hvdtrain.report.document import report_document
from hvdtrain.report.page import advice_page, is_page, page_of
from hvdtrain.report.recognise import make_report
from hvdtrain.report.terminal import show_report
from tests.unit.report.documents import ADVICE, MEASURED, NASTY, advice, metric_lines, write_run
from tests.unit.scaling.profiles import profile_document, rank_times

EMPTY = {"meta", "link", "br", "rect", "circle", "line", "path"}


class Reader(HTMLParser):
    """Checks that elements are closed, and keeps them."""

    def __init__(self):
        super().__init__()
        self.open, self.found, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def full_run(folder, name="flowers", host="a"):
    profile = profile_document(
        ranks=[rank_times(0, host=host), rank_times(1, host="b", load_s=0.01)], job=name
    )
    document = advice(job=name, verdict=name, notes=[name])
    write_run(
        folder,
        metric_lines(**{name: 1.0}),
        profile=profile,
        advice=document,
        status={"state": "failed", "error": name},
        plan={"size": 2, "ranks": [{"host": host}, {"host": "b"}]},
    )
    (folder / "job.yaml").write_text(json.dumps({"name": name, "model": {"name": name}}))
    return make_report(folder)


def test_the_page_needs_nothing_else(tmp_path):
    page = page_of(full_run(tmp_path))
    reader = read(page)
    assert "script" not in {tag for tag, _ in reader.found}
    for _, attributes in reader.found:
        assert not {"src", "srcset", "style", "onload", "xlink:href"} & set(attributes)
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"url\(|@import|https?://", page)


def test_every_picture_has_a_name_a_description_and_a_table(tmp_path):
    reader = read(page_of(full_run(tmp_path)))
    ids = [attributes["id"] for _, attributes in reader.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    pictures = [attributes for tag, attributes in reader.found if tag == "svg" and "role" in attributes]
    assert len(pictures) == 13
    assert len([tag for tag, _ in reader.found if tag == "table"]) == len(pictures)
    for picture in pictures:
        assert set(picture["aria-labelledby"].split()) <= set(ids)


def test_what_the_job_names_is_text(tmp_path):
    page = page_of(full_run(tmp_path, NASTY, NASTY))
    reader = read(page)
    assert "script" not in {tag for tag, _ in reader.found}
    assert any("<script>alert('\"&')</script> \u00fc\u6f22" in words for words in reader.words)
    assert "\x1b" not in page
    page.encode("utf-8")


def test_the_page_says_what_it_was_made_from(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(advice_page(ADVICE))
    assert is_page(page)
    assert is_page(tmp_path / "none.html")
    page.write_text("<title>mine</title>")
    assert not is_page(page)
    assert not is_page(tmp_path)


@pytest.mark.parametrize("document", [ADVICE, MEASURED])
def test_the_page_of_advice(document):
    page = advice_page(document)
    assert document["verdict"] in page
    assert read(page)


def test_no_advice_has_no_page():
    with pytest.raises(InputError, match="kind is 'profile'"):
        advice_page({"schema": 1, "kind": "profile"})


def test_a_long_table_is_thinned_and_says_so(tmp_path):
    report = make_report(write_run(tmp_path, metric_lines(epochs=500)))
    reader = read(page_of(report))
    assert "24 of 500 rows" in reader.words
    assert {"5,000", "10"} <= {words.replace("\u00a0", " ") for words in reader.words}


def test_page_tables_and_json_tell_the_same(tmp_path):
    report = full_run(tmp_path)
    document = json.loads(json.dumps(report_document(report, "run", None), allow_nan=False))
    told = io.StringIO()
    show_report(report, told)
    words = "".join(read(page_of(report)).words).replace("\u00a0", " ")
    assert document["schema"] == 1
    assert len(document["figures"]) == 13
    for figure in document["figures"].values():
        assert figure["rows"]
        for text in (figure["title"], figure["summary"]):
            assert text in told.getvalue()
            assert text in words


def test_the_terminal_is_not_steered(tmp_path):
    told = io.StringIO()
    show_report(full_run(tmp_path, NASTY, NASTY), told)
    assert "\x1b" not in told.getvalue()
    assert "[/b]" in _shown(tmp_path / "b", "x[/b]")


def _shown(folder, name):
    told = io.StringIO()
    folder.mkdir()
    show_report(full_run(folder, name), told)
    return told.getvalue()


def test_a_run_that_has_nothing_but_its_status(tmp_path):
    (tmp_path / "status.json").write_text('{"state": "starting"}')
    page = page_of(make_report(tmp_path))
    assert "no metrics yet" in page
    assert "starting" in page
