"""llama-bench's number lists: `512`, `64,256`, `1-4`, `0-1024+256`, `128-2048*2`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from executor.errors import HprofError

_ITEM: Final = re.compile(r"(-?\d{1,20})(?:-(\d{1,20})(?:([+*])(\d{1,20}))?)?")
_LARGEST: Final = 2**31 - 1
MAX_VALUES: Final = 256


def parse_numbers(text: str, option: str, lowest: int) -> tuple[int, ...]:
    """The whole numbers that `text` lists, in its order, each once.

    Raises HprofError, naming `option`, for anything else, for numbers below `lowest`, and for more than 256.
    """
    values: dict[int, None] = {}
    for item in text.split(","):
        for value in _expand(item.strip(), option):
            if not lowest <= value <= _LARGEST:
                raise HprofError(f"{option} {text[:60]}: {value} is out of range; give {lowest} to {_LARGEST}.")
            values[value] = None
            if len(values) > MAX_VALUES:
                raise HprofError(f"{option} {text[:60]} lists more than {MAX_VALUES} numbers; take larger steps.")
    return tuple(values)


def _expand(item: str, option: str) -> Iterator[int]:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise HprofError(f"{option} '{item[:60]}' is not a number: write 512, or 64,256, or a range: 128-2048*2.")
    first = int(match[1])
    if match[2] is None:
        yield first
        return
    last, operator, step = int(match[2]), match[3] or "+", int(match[4] or 1)
    _check_range(item, option, first, last, operator, step)
    value = first
    while value <= last:
        yield value
        value = value * step if operator == "*" else value + step


def _check_range(item: str, option: str, first: int, last: int, operator: str, step: int) -> None:
    if last < first:
        raise HprofError(f"{option} {item}: the range ends before it begins; write the smaller number first.")
    if step < (2 if operator == "*" else 1) or (operator == "*" and first < 1):
        raise HprofError(f"{option} {item}: such steps never end; use +1 or more, or *2 or more from 1 up.")
