"""Reads llama-bench's json, jsonl, csv and sql as rows of named values, as they are spelled there.

Lines between the rows are the log and skipped; rows that cannot be read are counted. SQL is read as text and never
executed. llama-bench writes every value of it in single quotes without escaping quotes inside, so a path with a quote
is no valid SQL; sqlite3's `.dump` of such a table escapes them, leaves numbers bare and names no columns. Both are
read.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from profiler.importers.kineto.stream import scan

Format = Literal["json", "jsonl", "csv", "sql", "md"]
RawRow = dict[str, Any]

UNREADABLE: Final = "rows that cannot be read"
_OTHER_WIDTH: Final = "rows of another width than their header"

# `[2/6] warming up` between the rows of an array
_PROGRESS: Final = re.compile(r"^[ \t]*\[[^\]\n{\"]*\][ \t]*[^,\s\]}][^\n]*$", re.MULTILINE)
_CSV_HEADER: Final = re.compile(r'^"?[a-z0-9_]+"?(?:,"?[a-z0-9_]+"?){5,}$')
_CSV_FIELDS: Final = ("avg_ts", "avg_ns")
_STATEMENT: Final = re.compile(r"^\s*(?=CREATE\s+TABLE\b|INSERT\s+INTO\b)", re.IGNORECASE | re.MULTILINE)
_CREATE: Final = re.compile(r"CREATE\s+TABLE\b[^(]*\((?P<columns>[^;]*)\)\s*;?\s*$", re.IGNORECASE)
_INSERT: Final = re.compile(
    r"INSERT\s+INTO\s+\S+?\s*(?:\((?P<columns>[\w\s,\"`]*)\))?\s*VALUES\s*\((?P<values>.*)\)\s*(?:;.*)?$",
    re.IGNORECASE | re.DOTALL,
)
_LITERAL: Final = re.compile(r"\s*(?:'((?:[^']|'')*)'|(NULL|[-+.\w]+))\s*(?:,|$)", re.IGNORECASE)


@dataclass(slots=True)
class ParsedRows:
    """The rows of one text, and how many were left out, by reason."""

    format: Format  # of the first rows
    rows: list[RawRow] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    truncated: bool = False
    unshared: frozenset[str] = frozenset()  # fields that only some of the text's formats have

    def add(self, other: ParsedRows) -> None:
        """Append what a further output in the same text holds."""
        self.rows += other.rows
        self.dropped += other.dropped
        self.truncated |= other.truncated


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


def is_csv_header(line: str) -> bool:
    """Whether a line is llama-bench's csv header."""
    return _CSV_HEADER.match(line) is not None and any(name in line for name in _CSV_FIELDS)


def parse_csv(text: str) -> ParsedRows:
    """Rows below each header (files put after one another repeat it); lines of another width are counted."""
    parsed = ParsedRows("csv")
    header: list[str] = []
    reader = csv.reader(text.replace("\x00", "").splitlines())
    try:
        for values in reader:
            if is_csv_header(",".join(values)):
                header = values
            elif header and len(values) == len(header):
                parsed.rows.append(dict(zip(header, values, strict=True)))
                parsed.truncated = False
            elif header and len(values) > 1:
                parsed.dropped[_OTHER_WIDTH] += 1
                parsed.truncated = len(values) < len(header)
            elif values:  # text below the rows, so that they do not end the file
                parsed.truncated = False
    except csv.Error:
        parsed.dropped[UNREADABLE] += 1
    return parsed


def parse_sql(text: str) -> ParsedRows:
    """The rows of every INSERT; those whose values do not match their columns are counted."""
    parsed = ParsedRows("sql")
    table_columns: list[str] = []
    for statement in _STATEMENT.split(text):
        if created := _CREATE.match(statement):
            table_columns = [_bare(line.split()[0]) for line in created["columns"].split(",") if line.strip()]
        elif statement[:6].upper() == "INSERT":
            row = _sql_row(statement, table_columns)
            if row is None:
                parsed.dropped[UNREADABLE] += 1
                parsed.truncated |= ")" not in statement.rstrip()[-2:]
            else:
                parsed.rows.append(row)
    last_line = text.splitlines()[-1].strip() if text else ""
    parsed.truncated |= bool(last_line) and "INSERT INTO".startswith(last_line.upper())
    return parsed


def _sql_row(statement: str, table_columns: list[str]) -> dict[str, str | None] | None:
    match = _INSERT.match(statement.strip())
    if match is None:
        return None
    columns = [_bare(name) for name in match["columns"].split(",")] if match["columns"] else table_columns
    values = _literals(match["values"])
    if values is None or len(values) != len(columns):
        values = _unescaped(match["values"])
    return dict(zip(columns, values, strict=True)) if len(values) == len(columns) else None


def _literals(text: str) -> list[str | None] | None:
    """The values of valid SQL; None for what is not."""
    values: list[str | None] = []
    at = 0
    while at < len(text):
        match = _LITERAL.match(text, at)
        if match is None:
            return None
        quoted, bare = match[1], match[2]
        values.append(quoted.replace("''", "'") if quoted is not None else None if bare.upper() == "NULL" else bare)
        at = match.end()
    return values


def _unescaped(text: str) -> list[str | None]:
    """The values where every one is quoted and quotes inside are not escaped."""
    inner = text.strip()
    return list(re.split(r"',\s*'", inner[1:-1])) if inner[:1] == inner[-1:] == "'" else []


def _bare(name: str) -> str:
    return name.strip().strip('"`')
