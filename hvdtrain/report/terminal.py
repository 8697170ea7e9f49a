"""A report as tables in the terminal: the same figures, in the same order."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from hvdtrain.report.content import Cell, Report, Section, Table, clean

_FILE_WIDTH = 120
_MOST_ROWS = 12


def show_report(report: Report, file: IO[str] | None = None) -> None:
    """Prints the title, the verdict, the numbers that matter and a table per figure."""
    console = Console(highlight=False, markup=False, file=file)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, file=file, width=_FILE_WIDTH)  # a file has no width
    state = f"  ({report.state[0]})" if report.state else ""
    console.print(Text(clean(report.title + state), "bold"), soft_wrap=True)
    if report.lead:
        console.print(clean(report.lead), soft_wrap=True)
    for tile in report.tiles:
        detail = f"  ({tile.detail})" if tile.detail else ""
        console.print(clean(f"  {tile.name}: {tile.text}{detail}"), soft_wrap=True)
    for gate in report.gates:
        console.print(clean(f"{'ok' if gate.holds else 'REFUSED'}: {gate.sentence}"), soft_wrap=True)
    for section in report.sections:
        _show_section(console, section)
    for note in report.notes:
        console.print(clean(f"- {note}"), soft_wrap=True)


def _show_section(console: Console, section: Section) -> None:
    for figure in section.figures:
        console.print()
        console.print(Text(clean(figure.title), "bold"), soft_wrap=True)
        console.print(clean(figure.summary), soft_wrap=True)
        console.print(_table(figure.table))
        if (count := len(figure.table.rows)) > _MOST_ROWS:
            console.print(f"{_MOST_ROWS} of {count:,} rows; --json has all")
    if section.facts:
        console.print()
        console.print(Text(section.title, "bold"))
        width = max(len(fact.name) for fact in section.facts)
        for fact in section.facts:
            console.print(clean(f"  {fact.name:<{width}}  {fact.text}"), soft_wrap=True)


def _table(table: Table) -> RichTable:
    shown = table.thinned(_MOST_ROWS)
    made = RichTable(box=None, pad_edge=False, header_style="bold")
    for column in shown.columns:
        made.add_column(clean(column.heading), justify="left" if column.is_words else "right")
    for i, row in enumerate(shown.rows):
        cells = [_told(cell) for cell in row]
        if i == shown.marked:
            cells[0] = f"*{cells[0]}"
        made.add_row(*(Text(cell) for cell in cells))
    return made


def _told(cell: Cell) -> str:
    return clean(f"{cell.text} ({cell.detail})" if cell.detail else cell.text)
