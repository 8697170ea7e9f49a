"""The report of a real run and of real advice, in a real browser.

Without a Chromium these tests are skipped; with HVDTRAIN_BROWSER=require they fail.
"""

import json
import os
import sys

import pytest

from tests.conftest import run_command
from tests.e2e.browser import PAPER, PAPER_HEIGHT, PROGRAMS, Browser, find_browser
from tests.unit.report.documents import NASTY
from tests.unit.scaling.profiles import profile_document, rank_times

PHONE, DESKTOP = 360, 1100
NAMES = ["run", "profile", "advice", "measured", "nasty"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_browser()
    if program is None:
        reason = f"no browser: none of {', '.join(PROGRAMS)} (apt-get install chromium)"
        if os.environ.get("HVDTRAIN_BROWSER") == "require":
            pytest.fail(reason)
        pytest.skip(reason)
    return Browser(program, tmp_path_factory.mktemp("browser"))


def ranks(count, host="node-{}.cluster.example.org"):
    return [
        rank_times(
            i,
            host=host.format(i // 8),
            load_s=0.004,
            exposed_s=0.01,
            wait_s=0.002 * (count - i),
            forward_s=0.03 + 0.002 * i,
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages by name, made by the command: a run trained here, with profile and advice, and others."""
    folder = tmp_path_factory.mktemp("reports")

    def hvdtrain(*words):
        ended = run_command([sys.executable, "-P", "-m", "hvdtrain.cli.main", *words], folder)
        assert ended.code == 0, ended.err
        return ended.out

    hvdtrain("train", "--run-dir", "run", "--set", "epochs=2", "--set", "output.metrics_every_steps=5")
    profile = profile_document(ranks=ranks(16), noise_scale={"simple": 5200.0, "num_steps": 100})
    (folder / "profile.json").write_text(json.dumps(profile))
    told = hvdtrain(
        "advise", "profile.json", "--network", "25GbE", "--price", "2.5", "--max-gpus", "1024", "--json"
    )
    (folder / "advice.json").write_text(told)
    (folder / "run" / "advice.json").write_text(told)
    (folder / "run" / "profile.json").write_text(json.dumps(profile_document()))
    rows = ("--measured", "1:872,8:6679", "--params", "25.6M", "--network", "25GbE", "--predict", "16,32,64")
    (folder / "measured.json").write_text(hvdtrain("advise", *rows, "--gpus-per-node", "8", "--json"))
    long = profile_document(ranks=ranks(2, NASTY + "x" * 200), job=NASTY * 4, device_name="W" * 80)
    (folder / "nasty.json").write_text(json.dumps(long))
    for name in NAMES:
        source = name if name == "run" else f"{name}.json"
        hvdtrain("report", source, "-o", f"{name}.html")
    return {name: folder / f"{name}.html" for name in NAMES}


@pytest.fixture(scope="module")
def seen(browser, pages):
    """What is seen of each page at each width, by name and whether it is dark."""
    return {
        (name, is_dark): browser.measure(pages[name], (PHONE, DESKTOP), is_dark=is_dark)
        for name in NAMES
        for is_dark in (False, True)
    }


@pytest.mark.parametrize("name", NAMES)
def test_nothing_goes_to_the_console(browser, pages, name):
    assert browser.console(pages[name]) == []


def test_the_console_is_really_listened_to(browser, tmp_path):
    page = tmp_path / "broken.html"
    page.write_text("<!DOCTYPE html><script>nothing.there()</script>")
    assert "nothing is not defined" in "".join(browser.console(page))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_figures_are_there_and_no_words_are_cut(seen, name, width, is_dark):
    page = seen[name, is_dark][width]
    assert page["width"] == width
    assert page["scrolls"] <= page["width"]
    assert len(page["pictures"]) >= 3
    for picture in page["pictures"]:
        assert picture["width"] > 250, picture
        assert picture["height"] > 40, picture
        assert picture["shapes"] > 0, picture
        assert picture["words"] > 0, picture
        assert picture["size"] >= 9, picture
        assert picture["cut"] == [], picture
        assert picture["crossed"] == [], picture
    assert page["cut"] == []
    assert page["faint"] == []


def test_dark_is_dark_and_light_is_light(seen):
    assert seen["run", False][PHONE]["background"] == "rgb(244, 246, 249)"
    assert seen["run", True][PHONE]["background"] == "rgb(15, 20, 28)"


@pytest.mark.parametrize("name", NAMES)
def test_on_paper_no_figure_is_cut(seen, name):
    page = seen[name, True][PAPER]
    assert {figure["breaks"] for figure in page["figures"]} == {"avoid"}
    assert max(figure["height"] for figure in page["figures"]) < PAPER_HEIGHT
    assert page["scrolls"] <= page["width"]
    assert page["cut"] == []
    assert page["faint"] == []  # ink on paper, whatever the screen's colours


def test_the_page_prints(browser, pages):
    pdf = browser.print(pages["run"])
    assert pdf.startswith(b"%PDF-")
    assert 2 <= pdf.count(b"/Type /Page\n") <= 8
