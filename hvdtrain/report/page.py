"""Writes a report as one HTML page that needs nothing else: no network, no script, no font."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvdtrain.report.content import Report, clean
from hvdtrain.report.recognise import report_of_advice
from hvdtrain.version import __version__

GENERATOR = "hvdtrain"
_TEMPLATES = Path(__file__).parent / "templates"
_MOST_ROWS = 24
_KINDS = {"run": "Run report", "profile": "Profile", "advice": "Scaling advice"}


def advice_page(document: dict[str, Any]) -> str:
    """The page of the document that ``hvdtrain advise --json`` prints.

    Raises:
        InputError: The document is no advice.
    """
    from hvdtrain.report.advice_record import parse_advice
    from hvdtrain.scaling.fields import Fields

    return page_of(report_of_advice(parse_advice(Fields(document, "advice"))))


def page_of(report: Report) -> str:
    """The page's text, in UTF-8's characters only; what the job names is escaped."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    return environment.get_template("page.html.j2").render(
        report=report,
        kind=_KINDS[report.kind],
        style=Markup((_TEMPLATES / "page.css").read_text("utf-8")),
        # svg.py has escaped every text in a picture
        draw=Markup,
        keep=_keep_together,
        most_rows=_MOST_ROWS,
        generator=GENERATOR,
        version=__version__,
    )


def _keep_together(text: str) -> str:
    """A number stays with its unit; a range may break before its second number."""
    return text.replace(" ", "\u00a0").replace("\u00a0to\u00a0", "\u00a0to ")


def is_page(path: Path) -> bool:
    """Whether a file is a page that this module wrote, or none is there: both may be written."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as file:
            return f'<meta name="generator" content="{GENERATOR} ' in file.read(2000)
    except FileNotFoundError:
        return True
    except OSError:
        return False
