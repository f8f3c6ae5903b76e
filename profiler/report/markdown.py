"""A report as GitHub-flavoured markdown, safe to paste: text of the capture cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from profiler.report.report import Report
from profiler.report.tables import (
    Table,
    by_device_table,
    cell_tables,
    device_tables,
    header_lines,
    reasons_line,
    residency_table,
    sameness_line,
)
from profiler.report.units import plain

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~])")


def render_markdown(report: Report) -> str:
    """The whole report as one markdown text."""
    return "\n".join(_lines(report)).rstrip() + "\n"


def escape(text: str) -> str:
    """`text` as literal markdown on one line."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def _lines(report: Report) -> Iterator[str]:
    yield f"# {escape(report.capture)} ({escape(report.state)})\n"
    yield from (f"{escape(line)}\n" for line in header_lines(report))
    yield from _listed("Warnings", report.warnings)
    if (memory := residency_table(report)) is not None:
        yield from table_lines(memory)
    for cell in report.cells:
        for table in (*cell_tables(cell), by_device_table(cell)):
            if table is not None:
                yield from table_lines(table)
        yield from (f"{escape(line)}\n" for line in (reasons_line(cell), sameness_line(cell)) if line)
    if not report.cells:
        for table in device_tables(report.devices):
            yield from table_lines(table)
    yield from _listed("The source could not say", report.cannot_say)
    yield from _listed("Approximated", report.notes)
    findings = [f"{found.severity}, {found.rule}: {found.evidence} {found.advice}" for found in report.findings]
    yield from _listed("Findings", findings)
    yield "## In words\n"
    yield escape(report.summary)


def table_lines(table: Table) -> Iterator[str]:
    """The table with its title as a heading, line by line."""
    yield f"## {escape(table.title)}\n"
    yield _row(table.columns)
    yield _row([":--", *["--:"] * (len(table.columns) - 1)], is_rule=True)
    yield from map(_row, table.rows)
    yield ""


def _row(texts: Sequence[str], is_rule: bool = False) -> str:
    return f"| {' | '.join(text if is_rule else escape(text) for text in texts)} |"


def _listed(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"## {title}\n"
        yield from (f"- {escape(line)}" for line in lines)
        yield ""
