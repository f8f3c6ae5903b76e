"""Draws a report for the terminal. Text of the capture is shown as it is, without markup and control characters.

Tables fit terminals of any width, and no word of them is broken: where a table's columns do not fit beside each other,
each row stands below the other as a small list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from executor.errors import plain
from profiler.report.answer import ANSWER_ROOMS, answer_blocks
from profiler.report.blocks import Block, FindingList, Heading, LineKind, Lines, Listing, Room, Table
from profiler.report.report import Report, told_blocks

ANSWER_LINES: Final = 24  # a line that says where the capture is comes before them
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
_GAP: Final = 2  # characters that rich leaves between columns
_INDENT: Final = "  "
_WORD: Final = re.compile(r"[+-]?\d[\d,.]* (?:[KMGT]?i?B|GB/s|[num]?s|t/s|%)(?!\S)|\S+")  # a number keeps its unit


def print_report(report: Report, console: Console) -> None:
    """Draw the report on `console`."""
    room = Room(max_arms=(console.width - _LABEL_WIDTH) // _ARM_WIDTH, max_devices=_MAX_DEVICES)
    for block in told_blocks(report, room):
        print_block(block, console)


def print_answer(report: Report, console: Console) -> None:
    """Draw the first screen on `console`: in as much room as ANSWER_LINES leave, whatever the terminal's width."""
    for room in ANSWER_ROOMS:
        parts = [part for block in answer_blocks(report, room) for part in drawn_block(block)]
        if sum(len(console.render_lines(part, pad=False)) for part in parts) <= ANSWER_LINES:
            break
    for part in parts:
        console.print(part)


def print_block(block: Block, console: Console) -> None:
    """Draw a block on `console`; lines to be copied get no line breaks, whatever its width."""
    if isinstance(block, Lines) and block.kind == "command":
        for line in block.lines:
            console.print(_text(line), soft_wrap=True)
        return
    for part in drawn_block(block):
        console.print(part)


def drawn_block(block: Block) -> Iterator[RenderableType]:
    """A block as rich draws it; an empty line sets tables, lists and findings apart."""
    match block:
        case Heading(capture, state):
            yield _text(f"{capture} ({state})", style="bold")
        case Lines("warning", lines):
            yield from (_text(f"warning: {line}", style=_STYLES["warning"]) for line in lines)
        case Lines("summary", lines):
            yield ""
            yield from map(_text, lines)
        case Lines(kind, lines):
            yield from (_text(line, style=_STYLES.get(kind, "")) for line in lines)
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


class FittingTable:
    """Draws a block's table in as much room as the console has."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._table.title:  # rich would break it at the table's width
            yield Text(plain(self._table.title), style="bold")
        widths = column_widths(self._table, options.max_width)
        if widths is None:
            yield from self._stacked()
            return
        drawn = RichTable(box=None, pad_edge=False)
        for position, (column, width) in enumerate(zip(self._table.columns, widths, strict=True)):
            drawn.add_column(_text(column), justify="left" if position < self._table.n_left else "right", width=width)
        for row in self._table.rows:
            drawn.add_row(*map(_text, row), style="dim" if row[0].startswith(_INDENT) else "")
        yield drawn

    def _stacked(self) -> Iterator[Text]:
        for first, *others in self._table.rows:
            yield _text(first)
            for column, text in zip(self._table.columns[1:], others, strict=True):
                if text:
                    yield Text(f"{_INDENT * 2}{plain(column)}: {plain(text)}")


def column_widths(table: Table, room: int) -> list[int] | None:
    """How wide each column is drawn, none below its longest word; None where they do not fit into `room`."""
    texts = [[name, *(row[at] for row in table.rows)] for at, name in enumerate(table.columns)]
    least = [max(map(_longest_word, of_column), default=0) for of_column in texts]
    widths = [max(map(cell_len, of_column), default=0) for of_column in texts]
    room -= _GAP * (len(widths) - 1)
    if sum(least) > room:
        return None
    while (excess := sum(widths) - room) > 0:
        _narrow_the_widest(widths, least, excess)
    return widths


def _narrow_the_widest(widths: list[int], least: Sequence[int], excess: int) -> None:
    """Take from the widest column that may still give, down to the next widest."""
    giving = [at for at, width in enumerate(widths) if width > least[at]]
    widest = max(giving, key=lambda at: widths[at])
    next_widest = max((widths[at] for at in giving if widths[at] < widths[widest]), default=0)
    floor = max(least[widest], next_widest if next_widest < widths[widest] else 0, widths[widest] - excess)
    widths[widest] = min(floor, widths[widest] - 1)


def _text(text: str, style: str = "") -> Text:
    """Made plain, with the spaces that it begins with: they set a row below another."""
    indent = text[: len(text) - len(text.lstrip(" "))]
    return Text(indent + plain(text), style=style)


def _longest_word(text: str) -> int:
    return max(map(cell_len, _WORD.findall(text)), default=0) + (cell_len(text) - cell_len(text.lstrip()))
