"""Tables at any width: no word broken, nothing lost."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from profiler.report.blocks import Table
from profiler.report.terminal import FittingTable, column_widths

ARMS = ["off t/s", "experts-on-the-cpu-and-copied", "on"]
TABLE = Table(
    "prefill", ["", *ARMS], [["ub=512,d=8192", "1,009", "1.23 faster", "2.5"], ["  against off", "", "x0.7", ""]]
)


def drawn(table: Table, width: int) -> str:
    text = io.StringIO()
    Console(file=text, width=width, markup=False, emoji=False, highlight=False).print(FittingTable(table))
    return text.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_word_is_whole_at_every_width(width: int) -> None:
    words = set(drawn(TABLE, width).replace(":", " ").split())
    wanted = {word for row in [["prefill"], TABLE.columns, *TABLE.rows] for cell in row for word in cell.split()}
    assert wanted <= words
    assert max(map(len, drawn(TABLE, width).splitlines())) <= width


def test_columns_stand_beside_each_other_where_they_fit() -> None:
    assert column_widths(TABLE, 80) is not None
    assert column_widths(TABLE, 40) is None
    assert "experts-on-the-cpu-and-copied: 1.23 faster" in " ".join(drawn(TABLE, 40).split())


def test_a_row_is_narrowed_by_its_widest_cells_first() -> None:
    table = Table("", ["a", "b"], [["one two three", "x"]])
    assert column_widths(table, 16) == [13, 1]
    assert column_widths(table, 12) == [9, 1]
    assert column_widths(table, 7) is None


def test_a_number_keeps_its_unit() -> None:
    table = Table("", ["-m", "size"], [["glm-4.5-air", "60.3 GiB"]])
    assert column_widths(table, 21) == [11, 8]
    assert column_widths(table, 20) is None


CELLS = st.text("ab 1", max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=4), st.integers(8, 60))
def test_widths_fit_the_room_and_hold_the_longest_words(rows: list[list[str]], room: int) -> None:
    table = Table("", ["", "x", "y"], rows)
    widths = column_widths(table, room)
    longest = [max((len(word) for row in rows for word in row[at].split()), default=0) for at in range(3)]
    if widths is None:
        assert sum(longest) + 4 + max(len(row[at]) for row in rows for at in range(3)) > room - 8
    else:
        assert sum(widths) + 4 <= room
        assert all(width >= word for width, word in zip(widths, longest, strict=True))
