"""Draws a report as GitHub-flavoured Markdown. Text of the capture is shown as it is and never becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from executor.errors import plain
from profiler.report.blocks import Block, FindingList, Heading, Lines, Listing, Table
from profiler.report.report import Report, told_blocks

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~])")


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
