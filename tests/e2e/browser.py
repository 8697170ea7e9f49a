"""Looks at a page in Chromium: at a width, in light or dark, as on paper; and measures what it sees.

The page stands in a frame of a page that measures it, since no window of Chromium is as narrow as a phone.
"""

import html
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import run_command

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MEASURE = (Path(__file__).parent / "browser_measure.js").read_text()
PAPER, PAPER_HEIGHT = 703, 1016  # CSS pixels of A4 without margins of 12 and 14 mm
_DARK, _LIGHT = "0", "1"  # blink::mojom::PreferredColorScheme


def find_browser():
    """The program's path, None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@dataclass
class Browser:
    """A Chromium that keeps nothing: each call has a profile of its own in ``folder``."""

    program: str
    folder: Path

    def console(self, page):
        """What a page that is opened as a file writes to the console."""
        return re.findall(r"CONSOLE.*", self._run(page, "--dump-dom", "--enable-logging=stderr", "--v=0").err)

    def measure(self, page, widths, *, is_dark=False):
        """What ``browser_measure.js`` tells of a page at each width, and as ``PAPER``, by the width."""
        text = page.read_text("utf-8")
        frames = dict.fromkeys(widths, text) | {PAPER: _on_paper(text)}
        around = self.folder / "around.html"
        around.write_text(
            '<!DOCTYPE html><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
            + "".join(
                f'<iframe style="border:0" width="{width}" height="900" srcdoc="{html.escape(one)}"></iframe>'
                for width, one in frames.items()
            )
            + f"<pre id=told></pre><script>{_MEASURE}</script>",
            "utf-8",
        )
        scheme = f"--blink-settings=preferredColorScheme={_DARK if is_dark else _LIGHT}"
        out = self._run(around, "--dump-dom", scheme).out
        (told,) = re.findall(r'<pre id="told">(.+?)</pre>', out, re.DOTALL)
        return dict(zip(frames, json.loads(html.unescape(told)), strict=True))

    def print(self, page):
        """The PDF's bytes."""
        target = self.folder / "page.pdf"
        self._run(page, f"--print-to-pdf={target}", "--no-pdf-header-footer")
        return target.read_bytes()

    def _run(self, page, *options):
        profile = self.folder / "profile"
        shutil.rmtree(profile, ignore_errors=True)
        argv = [
            self.program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
        ]
        argv += ["--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"]
        argv += ["--disable-sync", "--disable-quic", f"--user-data-dir={profile}"]
        ended = run_command([*argv, *options, page.as_uri()], self.folder)
        assert ended.code == 0, ended.err
        return ended


def _on_paper(text):
    """A copy in which print's rules hold always, and the dark ones never: a print-out cannot be measured."""
    for rule, other in (("@media print {", "@media all {"), ("@media screen and", "@media not all and")):
        assert text.count(rule) == 1
        text = text.replace(rule, other)
    return text
