"""Parses llama-bench's five output formats (json, jsonl, csv, md, sql) into raw rows: field name -> value as
spelled.

A text may hold several outputs, of several formats, as people paste them: `parse` cuts it where one begins. Log
lines around the rows are skipped, rows that cannot be read are counted. SQL is read as text and never executed.

llama-bench writes every value in single quotes without escaping quotes inside it, so a path with a quote is no
valid SQL; sqlite3's `.dump` of such a table escapes them, leaves numbers bare and names no columns. Both are
read.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from executor.errors import HprofError
from executor.files import bounded_read
from profiler.importers.kineto.stream import scan
from profiler.importers.llama_bench.log import devices_named, title_of
from profiler.importers.llama_bench.md import RawRow, is_md_header, md_rows

Format = Literal["json", "jsonl", "csv", "sql", "md"]

UNREADABLE: Final = "rows that cannot be read"
RUN: Final = "hprof_run"  # a raw row's number of the output that it stands in
RUN_TITLE: Final = "run_title"


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


MAX_BYTES: Final = 64 << 20  # of rows of about 1 kB


def read_text(path: Path) -> str:
    """The file as text; bytes that are no text become a replacement mark."""
    return decoded(bounded_read(path, MAX_BYTES, "llama-bench output", "name a file of its rows, or split it"))


def decoded(data: bytes) -> str:
    """UTF-8, or the UTF-16 that PowerShell's `>` writes: known by its mark, or by zeros in every other byte."""
    head = data[:64]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    for encoding, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
        if len(zeros) > 4 and not any(zeros):
            return data.decode(encoding, errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def looks_like_rows(head: bytes) -> bool:
    """Whether a line of the file's first bytes begins rows; log lines may come before."""
    return any(_parser_for(line.strip()) in (parse_md, parse_csv) for line in decoded(head).splitlines())


def parse(text: str, origin: str) -> ParsedRows:
    """The rows of every output in `text`; HprofError, naming `origin`, where no line looks like llama-bench's.

    Each row gets RUN, the number of its output, and what its log lines say: RUN_TITLE, a heading or a command line
    above it, where there are several outputs, and `gpu_info`, where its format does not have that.
    """
    blocks = _blocks(text.splitlines(keepends=True))
    if not blocks:
        raise HprofError(
            f"{origin} holds no llama-bench rows; write them with llama-bench -o jsonl (or json, csv, sql, md)."
        )
    found = [parser("".join(lines)) for parser, _, lines in blocks]
    gpus: str | None = None
    for number, (parsed, (_, log, _)) in enumerate(zip(found, blocks, strict=True)):
        gpus = devices_named(log) or gpus
        title = title_of(log) if len(blocks) > 1 else None
        for row in parsed.rows:
            row |= {RUN: number} | ({RUN_TITLE: title} if title else {})
            if gpus and "gpu_info" not in row:
                row["gpu_info"] = gpus
    whole = replace(found[0], unshared=_unshared(found))
    for further in found[1:]:
        whole.add(further)
    return whole


def _unshared(found: Sequence[ParsedRows]) -> frozenset[str]:
    fields: dict[Format, set[str]] = {}
    for one in found:
        if one.rows:
            fields.setdefault(one.format, set()).update(*one.rows)
    of_all = set[str]().union(*fields.values())
    return frozenset(name for name in of_all if any(name not in known for known in fields.values()))


Parser = Callable[[str], "ParsedRows"]


def _blocks(lines: Sequence[str]) -> list[tuple[Parser, list[str], list[str]]]:
    """(parser, the log before, its lines) of each output: one begins at a header, or where the format changes."""
    blocks: list[tuple[Parser, list[str], list[str]]] = []
    log: list[str] = []
    for line in lines:
        parser = _parser_for(line.strip())
        if parser is not None and _begins(parser, blocks[-1][0] if blocks else None):
            blocks.append((parser, log, [line]))
            log = []
        elif blocks:
            # a line after the rows is also what stands above the next output
            log = [] if parser is not None else [*log, line]
            blocks[-1][2].append(line)
        else:
            log.append(line)
    return blocks


def _begins(parser: Parser, current: Parser | None) -> bool:
    if current is parse_json and parser is parse_jsonl:
        return False  # an object of the array
    return parser is not current or parser in (parse_md, parse_csv, parse_json)


def _parser_for(line: str) -> Parser | None:
    if line.startswith('{"'):
        return parse_jsonl
    if line == "[" or line.startswith(("[{", "[ {")):
        return parse_json
    if line.upper().startswith(("CREATE TABLE", "INSERT INTO")):
        return parse_sql
    if is_csv_header(line):
        return parse_csv
    if is_md_header(line):
        return parse_md
    return None


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


_CSV_HEADER = re.compile(r'^"?[a-z0-9_]+"?(?:,"?[a-z0-9_]+"?){5,}$')
_CSV_FIELDS = ("avg_ts", "avg_ns")


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
            elif header and len(values) > 1:
                parsed.dropped[UNREADABLE] += 1
                parsed.truncated = True
    except csv.Error:
        parsed.dropped[UNREADABLE] += 1
    return parsed


def parse_md(text: str) -> ParsedRows:
    """The rows of every table."""
    found = md_rows(text, UNREADABLE)
    return ParsedRows("md", found.rows, found.dropped)


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
