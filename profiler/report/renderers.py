"""Draws a report for the terminal, as GitHub-flavoured Markdown, or as JSON. Text of the capture is shown as it is
and never becomes markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from executor.units import plain
from profiler.plain_text import json_text
from profiler.report.answer import ANSWER_ROOMS, answer_blocks
from profiler.report.blocks import ON_A_PAGE, Block, FindingList, Heading, LineKind, Lines, Listing, Room, Table
from profiler.report.report import REPORT_SCHEMA, Report, blocks

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~])")


def told_blocks(report: Report, room: Room = ON_A_PAGE) -> Iterator[Block]:
    """All blocks in order, but for the devices where there are cells, which say more."""
    for name, found in blocks(report, room).items():
        if name != "devices" or not report.cells:
            yield from found


def render_markdown(report: Report) -> str:
    """The whole report as one Markdown text."""
    return "\n".join(line for block in told_blocks(report) for line in block_lines(block)).rstrip() + "\n"


def escape(text: str) -> str:
    """`text` as literal markdown on one line."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def block_lines(block: Block) -> Iterator[str]:
    """A block as Markdown, line by line."""
    match block:
        case Heading(capture, state):
            yield f"# {escape(capture)} ({escape(state)})\n"
        case Lines("warning", lines):
            yield from block_lines(Listing("Warnings", lines))
        case Lines("summary", lines):
            yield "## In words\n"
            yield from map(escape, lines)
        case Lines(_, lines):
            yield from (f"{escape(line)}\n" for line in lines)
        case Listing(title, lines):
            if lines:
                yield f"## {escape(title)}\n"
                yield from (f"- {escape(line)}" for line in lines)
                yield ""
        case FindingList(findings):
            told = [f"{found.severity}, {found.rule}: {found.evidence} {found.advice}" for found in findings]
            yield from block_lines(Listing("Findings", told))
        case Table():
            yield from _table_lines(block)


def _table_lines(table: Table) -> Iterator[str]:
    """The table with its title as a heading, line by line."""
    yield f"## {escape(table.title)}\n"
    yield _row(table.columns)
    yield _row([":--"] * table.n_left + ["--:"] * (len(table.columns) - table.n_left), is_rule=True)
    yield from map(_row, table.rows)
    yield ""


def _row(texts: Sequence[str], is_rule: bool = False) -> str:
    return f"| {' | '.join(text if is_rule else escape(text) for text in texts)} |"


_SEVERITIES: Final = {"serious": "bold red", "warning": "yellow", "info": "cyan"}
_STYLES: Final[dict[LineKind, str]] = {
    "fact": "dim",
    "answer": "bold",
    "warning": "yellow",
    "note": "dim",
    "fault": "yellow",
}
_LABEL_WIDTH, _ARM_WIDTH = 16, 36  # characters that the figures' names and one arm's figures need
_MAX_DEVICES: Final = 16


def print_report(report: Report, console: Console) -> None:
    """Draw the report on `console`."""
    room = Room(max_arms=(console.width - _LABEL_WIDTH) // _ARM_WIDTH, max_devices=_MAX_DEVICES)
    for block in told_blocks(report, room):
        for part in drawn_block(block):
            console.print(part)


ANSWER_LINES: Final = 24  # a line that says where the capture is comes before them


def print_answer(report: Report, console: Console) -> None:
    """Draw the first screen on `console`: in as much room as ANSWER_LINES leave, whatever the terminal's width."""
    for room in ANSWER_ROOMS:
        parts = [part for block in answer_blocks(report, room) for part in drawn_block(block)]
        if sum(len(console.render_lines(part, pad=False)) for part in parts) <= ANSWER_LINES:
            break
    for part in parts:
        console.print(part)


def drawn_block(block: Block) -> Iterator[RenderableType]:
    """A block as rich draws it; an empty line sets tables, lists and findings apart."""
    from rich.padding import Padding

    from profiler.report.fitting_table import FittingTable

    match block:
        case Heading(capture, state):
            yield _text(f"{capture} ({state})", style="bold")
        case Lines("warning", lines):
            yield from (_text(f"warning: {line}", style=_STYLES["warning"]) for line in lines)
        case Lines("summary", lines):
            yield ""
            yield from map(_text, lines)
        case Lines(kind, lines):
            yield from (_text(line, style=_STYLES[kind]) for line in lines)
        case Listing(title, lines):
            if lines:
                yield ""
                yield _text(f"{title}:")
                yield from (Padding(_text(f"- {line}"), (0, 0, 0, 2)) for line in lines)
        case FindingList(findings):
            for finding in findings:
                yield ""
                yield _text(f"{finding.severity}: {finding.rule}", style=_SEVERITIES.get(finding.severity, ""))
                yield from (Padding(_text(text), (0, 0, 0, 2)) for text in (finding.evidence, finding.advice))
        case Table(title):
            if title:
                yield ""
            yield FittingTable(block)


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    indent = text[: len(text) - len(text.lstrip(" "))]
    return Text(indent + plain(text), style=style)


def render_json(report: Report) -> str:
    """Indented JSON text."""
    return json_text(report.to_json())


def render_many(reports: Sequence[Report], problems: Sequence[str]) -> str:
    """Several reports as indented JSON text; `problems` are the captures that could not be read, a sentence each."""
    found = {"schema": REPORT_SCHEMA, "reports": [report.to_json() for report in reports], "problems": problems}
    return json_text(found)
