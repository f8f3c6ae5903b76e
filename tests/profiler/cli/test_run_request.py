"""llama-bench's number lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.cli.run_request import MAX_VALUES, parse_numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", (512,)),
        ("64,256", (64, 256)),
        ("256, 64", (256, 64)),
        ("1-4", (1, 2, 3, 4)),
        ("0-1024+512", (0, 512, 1024)),
        ("128-2048*2", (128, 256, 512, 1024, 2048)),
        ("100-1000*3", (100, 300, 900)),
        ("5,1-5", (5, 1, 2, 3, 4)),
        ("7-7", (7,)),
    ],
)
def test_lists_and_ranges(text: str, expected: tuple[int, ...]) -> None:
    assert parse_numbers(text, "-ub", 0) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "-ub '' is not a number"),
        ("a", "-ub 'a' is not a number"),
        ("1,,2", "is not a number"),
        ("1.5", "is not a number"),
        ("-3", "-3 is out of range"),
        ("0", "0 is out of range; give 1 to 2147483647"),
        ("4-1", "ends before it begins"),
        ("1-8*1", "never end"),
        ("1-8+0", "never end"),
        ("1-2000000000", "lists more than 256 numbers"),
        ("9999999999", "out of range"),
        ("99999999999", "out of range"),
        ("1-2-3", "is not a number"),
    ],
)
def test_anything_else_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(HprofError, match=r"^-ub ") as caught:
        parse_numbers(text, "-ub", 1)
    assert message in str(caught.value)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=MAX_VALUES, unique=True))
def test_what_is_listed_comes_back(numbers: list[int]) -> None:
    assert parse_numbers(",".join(map(str, numbers)), "-p", 0) == tuple(numbers)


@given(st.text(max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        numbers = parse_numbers(text, "-p", 0)
    except HprofError:
        return
    assert 0 < len(numbers) <= MAX_VALUES
    assert min(numbers) >= 0
