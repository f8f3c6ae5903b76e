"""Draws a report for the terminal, as GitHub-flavoured Markdown, or as JSON. Text of the capture is shown as it is
and never becomes markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from executor.units import plain
from profiler.plain_text import json_text
from profiler.report.blocks import (
    Table,
    by_device_table,
    cell_tables,
    device_tables,
    header_lines,
    ordering_line,
    reasons_line,
    residency_table,
    sameness_line,
)
from profiler.report.cells import Cell
from profiler.report.report import REPORT_SCHEMA, Report

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
    yield from _markdown_list("Warnings", report.warnings)
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
    if (line := ordering_line(report)) is not None:
        yield f"{escape(line)}\n"
    yield from _markdown_list("The source could not say", report.cannot_say)
    yield from _markdown_list("Approximated", report.notes)
    findings = [f"{found.severity}, {found.rule}: {found.evidence} {found.advice}" for found in report.findings]
    yield from _markdown_list("Findings", findings)
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


def _markdown_list(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"## {title}\n"
        yield from (f"- {escape(line)}" for line in lines)
        yield ""


_SEVERITIES = {"serious": "bold red", "warning": "yellow", "info": "cyan"}
_LABEL_WIDTH, _ARM_WIDTH = 16, 36  # characters that the figures' names and one arm's figures need
_MAX_DEVICES = 16


def print_report(report: Report, console: Console) -> None:
    """Draw the report on `console`."""
    console.print(Group(*_parts(report, console.width)))


def _text(text: str, style: str = "") -> Text:
    indent = text[: len(text) - len(text.lstrip(" "))]
    return Text(indent + plain(text), style=style)


def _parts(report: Report, width: int) -> Iterator[RenderableType]:
    yield _text(f"{report.capture} ({report.state})", style="bold")
    yield from (_text(line, style="dim") for line in header_lines(report))
    yield from (_text(f"warning: {warning}", style="yellow") for warning in report.warnings)
    if (table := residency_table(report)) is not None:
        yield Text()
        yield draw_table(table)
    for cell in report.cells:
        yield Text()
        yield from _cell(cell, (width - _LABEL_WIDTH) // _ARM_WIDTH)
    if not report.cells:
        yield from (part for table in _few(device_tables(report.devices)) for part in (Text(), table))
    if (line := ordering_line(report)) is not None:
        yield Text()
        yield _text(line, style="yellow" if report.ordering is not None and report.ordering.is_clean is False else "")
    yield from _terminal_list("The source could not say", report.cannot_say)
    yield from _terminal_list("Approximated", report.notes)
    yield from _findings(report)
    yield Text()
    yield _text(report.summary)


def _cell(cell: Cell, max_arms: int) -> Iterator[RenderableType]:
    yield from (draw_table(table) for table in cell_tables(cell, max_arms))
    if (devices := by_device_table(cell)) is not None:
        yield draw_table(devices)
    if (reasons := reasons_line(cell)) is not None:
        yield _text(reasons, style="dim")
    if (line := sameness_line(cell)) is not None:
        is_fault = False in (cell.same_tokens, cell.bit_identical)
        yield _text(line, style="yellow" if is_fault else "")


def _few(tables: Iterable[Table]) -> Iterator[RenderableType]:
    found = list(tables)
    yield from map(draw_table, found[:_MAX_DEVICES])
    if len(found) > _MAX_DEVICES:
        yield _text(f"{len(found) - _MAX_DEVICES} more devices are in `--format md` and `--json`.")


def draw_table(table: Table) -> RichTable:
    """The table as rich draws it."""
    drawn = RichTable(title=_text(table.title, style="bold"), title_justify="left", box=None, pad_edge=False)
    for position, column in enumerate(table.columns):
        drawn.add_column(_text(column), justify="left" if position == 0 else "right", overflow="fold")
    for row in table.rows:
        style = "dim" if row[0].startswith("  ") else ""
        drawn.add_row(*(_text(text, style=style) for text in row))
    return drawn


def _terminal_list(title: str, lines: Iterable[str]) -> Iterator[RenderableType]:
    found = list(lines)
    if found:
        yield Text()
        yield _text(f"{title}:")
        yield from (Padding(_text(f"- {line}"), (0, 0, 0, 2)) for line in found)


def _findings(report: Report) -> Iterator[RenderableType]:
    for finding in report.findings:
        yield Text()
        yield _text(f"{finding.severity}: {finding.rule}", style=_SEVERITIES.get(finding.severity, ""))
        yield Padding(_text(finding.evidence), (0, 0, 0, 2))
        yield Padding(_text(finding.advice), (0, 0, 0, 2))


def render_json(report: Report) -> str:
    """Indented JSON text."""
    return json_text(report.to_json())


def render_many(reports: Sequence[Report], problems: Sequence[str]) -> str:
    """Several reports as indented JSON text; `problems` are the captures that could not be read, a sentence each."""
    found = {"schema": REPORT_SCHEMA, "reports": [report.to_json() for report in reports], "problems": problems}
    return json_text(found)
