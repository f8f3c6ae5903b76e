"""Text that comes from files and file names, made fit for terminals and JSON.

What a capture calls an arm may hold escape sequences, and a file name on Linux may hold bytes that are no UTF-8
(Python keeps them as lone surrogates, which no encoder takes). Both are other people's: they are shown, and steer
nothing.
"""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

import orjson

_FLOAT_BITS = 1023  # what every float can hold


def readable(text: str) -> str:
    """The text with `?` for what is no character, so that every encoder takes it."""
    return text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """The same lines, with `?` for control characters, so that no terminal obeys them."""
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(c if c.isprintable() or c == "\n" else " " if c.isspace() else "?" for c in text)


def json_text(data: object) -> str:
    """Indented JSON in which every control character is escaped, also those that JSON lets pass."""
    try:
        text = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
    except TypeError:  # a lone surrogate, from a name that is no UTF-8, or a whole number of more than 64 bits
        text = orjson.dumps(readable_inside(data), option=orjson.OPT_INDENT_2).decode()
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def readable_inside(data: object) -> Any:
    """The same JSON-like data, each text `readable`, and whole numbers of more than 64 bits as floats."""
    if isinstance(data, str):
        return readable(data)
    if isinstance(data, int) and not -(2**63) <= data < 2**64:
        return float(data) if data.bit_length() <= _FLOAT_BITS else None
    if isinstance(data, dict):
        return {readable_inside(key): readable_inside(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [readable_inside(item) for item in data]
    if is_dataclass(data) and not isinstance(data, type):
        return readable_inside(asdict(data))
    return data
