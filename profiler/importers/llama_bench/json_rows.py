"""Reads llama-bench's json and jsonl, with the lines that it prints between them."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from profiler.importers.kineto.stream import scan
from profiler.importers.llama_bench.md import RawRow
from profiler.importers.llama_bench.parsed import UNREADABLE, ParsedRows

# `[2/6] warming up` between the rows of an array
_PROGRESS: Final = re.compile(r"^[ \t]*\[[^\]\n{\"]*\][ \t]*[^,\s\]}][^\n]*$", re.MULTILINE)


def parse_json(text: str) -> ParsedRows:
    """The objects of the array, or of an object's list `results`; the array need not be closed."""
    parsed = ParsedRows("json")
    inside = _PROGRESS.sub("", text[text.index("[") + 1 :]).encode()
    found = scan(inside)
    for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True):
        _take(parsed, _loads(inside[start:end]))
    parsed.truncated = found.array_end is None
    return parsed


def parse_jsonl(text: str) -> ParsedRows:
    """One object a line; other lines are the log that llama-bench prints beside its rows."""
    parsed = ParsedRows("jsonl")
    lines = [line for line in text.splitlines() if line.lstrip().startswith("{")]
    for line in lines:
        _take(parsed, _loads(line.encode()))
    if parsed.dropped and lines and _loads(lines[-1].encode()) is None:
        parsed.truncated = True
    return parsed


def _take(parsed: ParsedRows, row: RawRow | None) -> None:
    if row is None:
        parsed.dropped[UNREADABLE] += 1
    else:
        parsed.rows.append(row)


def _loads(text: bytes) -> RawRow | None:
    try:
        value: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
