"""A table for terminals of any width: no word of it is broken. Where its columns do not fit beside each other, each row
stands below the other as a small list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from executor.units import plain
from profiler.report.blocks import Table

_GAP: Final = 2  # characters that rich leaves between columns
_INDENT: Final = "  "
_WORD: Final = re.compile(r"[+-]?\d[\d,.]* (?:[KMGT]?i?B|GB/s|[num]?s|t/s|%)(?!\S)|\S+")  # a number keeps its unit


class FittingTable:
    """Draws a block's table in as much room as the console has."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = column_widths(self._table, options.max_width)
        if widths is None:
            yield from self._stacked()
            return
        title = Text(plain(self._table.title), style="bold") if self._table.title else None
        drawn = RichTable(title=title, title_justify="left", box=None, pad_edge=False)
        for position, (column, width) in enumerate(zip(self._table.columns, widths, strict=True)):
            drawn.add_column(_text(column), justify="left" if position < self._table.n_left else "right", width=width)
        for row in self._table.rows:
            drawn.add_row(*map(_text, row), style="dim" if row[0].startswith(_INDENT) else "")
        yield drawn

    def _stacked(self) -> Iterator[Text]:
        if self._table.title:
            yield Text(plain(self._table.title), style="bold")
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


def _text(text: str) -> Text:
    """Made plain, with the spaces that it begins with: they set a row below another."""
    return Text(text[: len(text) - len(text.lstrip(" "))] + plain(text))


def _longest_word(text: str) -> int:
    return max(map(cell_len, _WORD.findall(text)), default=0) + (cell_len(text) - cell_len(text.lstrip()))
