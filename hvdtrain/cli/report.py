"""``hvdtrain report``: a run, a profile or advice as one HTML page, as terminal tables, as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hvdtrain.cli.documents import PAGE
from hvdtrain.cli.option_types import FilledPath
from hvdtrain.cli.targets import check_target
from hvdtrain.errors import ExitCode, InputError


@click.command()
@click.argument("source", metavar="RUN|PROFILE|ADVICE", type=FilledPath())
@click.option(
    "-o",
    "--output",
    type=FilledPath(),
    metavar="FILE",
    help="The page; RUN/report.html, or FILE.html beside the input, if not given.",
)
@click.option("--text", "as_text", is_flag=True, help="Tables only, no page unless -o names one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, no page unless -o names one.")
def command(source: Path, output: Path | None, as_text: bool, as_json: bool) -> int:
    """Show a run, a profile or advice in pictures.

    Writes one HTML page that needs no network, and prints the same figures as tables. The input is known by
    what it holds: a run directory, the profile.json of `hvdtrain profile`, or a document of
    `hvdtrain advise --json`.

    \b
    hvdtrain report runs/digits
    hvdtrain report profile.json -o /tmp/profile.html
    hvdtrain report advice.json --text
    """  # noqa: D301 - \b is click's
    from hvdtrain.report.recognise import make_report

    if as_text and as_json:
        raise InputError("--text and --json, both given", legal="one of them")
    check_target("--output", output, source, kind=PAGE)
    report = make_report(source)
    page = output or (None if as_text or as_json else _beside(source))
    if page:
        from hvdtrain.report.page import page_of

        write_page(page, page_of(report))
    if as_json:
        from hvdtrain.report.document import report_document

        print(json.dumps(report_document(report, str(source), str(page) if page else None), allow_nan=False))
        return int(ExitCode.DONE)
    from hvdtrain.report.terminal import show_report

    show_report(report)
    if page:
        print(f"\npage: {page}")
    return int(ExitCode.DONE)


def _beside(source: Path) -> Path:
    """Where the page goes if nobody says; a file of that name that is no report is never replaced."""
    from hvdtrain.report.page import is_page

    page = source / "report.html" if source.is_dir() else source.with_suffix(".html")
    if not is_page(page):
        raise InputError("is there already, and no report", where=str(page), do="name another with -o FILE")
    return page


def write_page(page: Path, text: str) -> None:
    """Replaces a page at once: who looks at it sees the old or the new one whole.

    Args:
        page: Where it goes, which ``check_target`` or ``_beside`` has found fit for it.
        text: Its HTML.

    Raises:
        InputError: It cannot be written.
    """
    from hvdtrain.files import write_atomically

    try:
        write_atomically(page, text)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(page)) from None
