"""A report for the terminal, drawn by rich. Text of the capture is shown as it is, never read as markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from profiler.capture import CaptureSummary
from profiler.report.data import Cell, Report
from profiler.report.tables import Table, cell_tables, device_table, header_lines, sameness_line

_SEVERITIES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def print_report(report: Report, console: Console) -> None:
    """Draw the report on `console`."""
    console.print(Group(*_parts(report)), soft_wrap=False)


def _parts(report: Report) -> Iterator[RenderableType]:
    yield Text(f"{report.capture} ({report.state})", style="bold")
    yield from (Text(line, style="dim") for line in header_lines(report))
    yield from (Text(f"warning: {warning}", style="yellow") for warning in report.warnings)
    for cell in report.cells:
        yield Text()
        yield from _cell(cell)
    if not report.cells and (table := device_table(report.devices)) is not None:
        yield Text()
        yield _drawn(table)
    yield from _listed("The source could not say", report.cannot_say)
    yield from _listed("Approximated", report.notes)
    yield from _findings(report)
    yield Text()
    yield Text(report.summary)


def _cell(cell: Cell) -> Iterator[RenderableType]:
    yield from (_drawn(table) for table in cell_tables(cell))
    if (line := sameness_line(cell)) is not None:
        is_fault = False in (cell.same_tokens, cell.bit_identical)
        yield Text(line, style="yellow" if is_fault else "")


def _drawn(table: Table) -> RichTable:
    drawn = RichTable(title=Text(table.title, style="bold"), title_justify="left", box=None, pad_edge=False)
    for position, column in enumerate(table.columns):
        drawn.add_column(Text(column), justify="left" if position == 0 else "right", overflow="fold")
    for row in table.rows:
        style = "dim" if row[0].startswith("  ") else ""
        drawn.add_row(*(Text(text, style=style) for text in row))
    return drawn


def _listed(title: str, lines: Iterable[str]) -> Iterator[RenderableType]:
    found = list(lines)
    if found:
        yield Text()
        yield Text(f"{title}:")
        yield from (Padding(Text(f"- {line}"), (0, 0, 0, 2)) for line in found)


def _findings(report: Report) -> Iterator[RenderableType]:
    for finding in report.findings:
        yield Text()
        yield Text(f"{finding.severity}: {finding.rule}", style=_SEVERITIES.get(finding.severity, ""))
        yield Padding(Text(finding.evidence), (0, 0, 0, 2))
        yield Padding(Text(finding.advice), (0, 0, 0, 2))


def print_captures(captures: Iterable[CaptureSummary], console: Console) -> None:
    """One line a capture; those that cannot be read say why."""
    table = RichTable(box=None, pad_edge=False)
    for column in ("capture", "state", "source", "model", "arms", "passes", "created (UTC)"):
        table.add_column(column, overflow="fold")
    problems = []
    for capture in captures:
        if capture.problem:
            problems.append(capture.problem)
        passes = "" if capture.n_passes is None else str(capture.n_passes)
        arms, created = ", ".join(capture.arms), (capture.created_utc or "")[:19].replace("T", " ")
        texts = [capture.name, capture.state, capture.source, capture.model, arms, passes, created]
        table.add_row(*(Text(text or "") for text in texts))
    console.print(table)
    console.print(*(Text(problem, style="yellow") for problem in problems), sep="\n", end="")
