"""Reads llama-bench's sql as text: nothing of it is ever executed.

llama-bench writes every value in single quotes without escaping quotes inside it, so a path with a quote is no
valid SQL; sqlite3's `.dump` of such a table escapes them, leaves numbers bare and names no columns. Both are
read.
"""

from __future__ import annotations

import re
from typing import Final

from profiler.importers.llama_bench.parsed import UNREADABLE, ParsedRows

_STATEMENT: Final = re.compile(r"^\s*(?=CREATE\s+TABLE\b|INSERT\s+INTO\b)", re.IGNORECASE | re.MULTILINE)
_CREATE: Final = re.compile(r"CREATE\s+TABLE\b[^(]*\((?P<columns>[^;]*)\)\s*;?\s*$", re.IGNORECASE)
_INSERT: Final = re.compile(
    r"INSERT\s+INTO\s+\S+?\s*(?:\((?P<columns>[\w\s,\"`]*)\))?\s*VALUES\s*\((?P<values>.*)\)\s*(?:;.*)?$",
    re.IGNORECASE | re.DOTALL,
)
_LITERAL: Final = re.compile(r"\s*(?:'((?:[^']|'')*)'|(NULL|[-+.\w]+))\s*(?:,|$)", re.IGNORECASE)


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
