"""A report as the JSON document of ``hvdtrain report --json``, schema 1."""

from __future__ import annotations

from typing import Any

from hvdtrain.report.content import Report, Section, Table


def report_document(report: Report, source: str, page: str | None) -> dict[str, Any]:
    """The document.

    Args:
        report: The report.
        source: What it is of, as the user named it.
        page: The page that was written, None if none was.
    """
    return {
        "schema": 1,
        "kind": "report",
        "of": report.kind,
        "source": source,
        "page": page,
        "title": report.title,
        "state": report.state[0] if report.state else None,
        "verdict": report.lead or None,
        "gates": [{"sentence": gate.sentence, "holds": gate.holds} for gate in report.gates],
        "facts": {fact.key: fact.value for section in report.sections for fact in section.facts},
        "figures": {key: value for section in report.sections for key, value in _figures(section)},
        "notes": list(report.notes),
    }


def _figures(section: Section) -> list[tuple[str, dict[str, Any]]]:
    return [
        (figure.key, {"title": figure.title, "summary": figure.summary, "rows": _rows(figure.table)})
        for figure in section.figures
    ]


def _rows(table: Table) -> list[dict[str, Any]]:
    return [
        {column.key: cell.value for column, cell in zip(table.columns, row, strict=True)}
        for row in table.rows
    ]
