"""Finds where the objects of a JSON array begin and end in raw bytes, without parsing them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_STEP = np.zeros(256, dtype=np.int8)
_STEP[[ord("{"), ord("[")]] = 1
_STEP[[ord("}"), ord("]")]] = -1


@dataclass(frozen=True, slots=True)
class Scan:
    """The whole objects in a piece of an array, and the array's closing bracket when it is there."""

    starts: NDArray[np.int64]  # offset of each whole object's "{"
    ends: NDArray[np.int64]  # offset just after its "}"
    array_end: int | None  # offset of the "]" that closes the array


def scan(piece: bytes) -> Scan:
    """The whole objects of `piece`, which begins between two elements of an array."""
    text = np.frombuffer(piece, dtype=np.uint8)
    brackets = np.flatnonzero(_STEP[text])
    quotes = _string_quotes(text)
    outside = np.searchsorted(quotes, brackets) % 2 == 0
    brackets = brackets[outside]
    depth = np.cumsum(_STEP[text[brackets]], dtype=np.int64)
    closing = np.flatnonzero(depth < 0)
    array_end = int(brackets[closing[0]]) if len(closing) else None
    if array_end is not None:
        brackets, depth = brackets[: closing[0]], depth[: closing[0]]
    opens = (text[brackets] == ord("{")) & (depth == 1)
    closes = (text[brackets] == ord("}")) & (depth == 0)
    ends = brackets[closes] + 1
    return Scan(brackets[opens][: len(ends)], ends, array_end)


def _string_quotes(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Offsets of the quotes that open or close a string: those not escaped by an odd run of backslashes."""
    quotes = np.flatnonzero(text == _QUOTE)
    backslash = text == _BACKSLASH
    if not backslash.any():
        return quotes
    other = np.where(backslash, -1, np.arange(len(text)))
    last_other = np.maximum.accumulate(other)
    before = np.where(quotes > 0, last_other[quotes - 1], quotes - 1)
    run = quotes - 1 - before
    unescaped: NDArray[np.int64] = quotes[run % 2 == 0]
    return unescaped
