"""Parses llama-bench's five output formats (json, jsonl, csv, md, sql) into raw rows: field name -> value as
spelled.

Log lines around the rows are skipped, rows that cannot be read are counted. SQL is read as text and never
executed.

llama-bench writes every value in single quotes without escaping quotes inside it, so a path with a quote is no
valid SQL; sqlite3's `.dump` of such a table escapes them, leaves numbers bare and names no columns. Both are
read.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from executor.errors import HprofError
from executor.files import bounded_read
from profiler.importers.kineto.stream import scan

Format = Literal["json", "jsonl", "csv", "sql", "md"]
RawRow = dict[str, Any]

UNREADABLE: Final = "rows that cannot be read"


@dataclass(slots=True)
class ParsedRows:
    """The rows of one file, and how many were left out, by reason."""

    format: Format
    rows: list[RawRow] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    truncated: bool = False


MAX_BYTES: Final = 64 << 20  # of rows of about 1 kB


def read_text(path: Path) -> str:
    """The file as text; bytes that are no UTF-8 become a replacement mark."""
    data = bounded_read(path, MAX_BYTES, "llama-bench output", "name a file of its rows, or split it")
    return data.decode("utf-8-sig", errors="replace")


def parse(text: str, origin: str) -> ParsedRows:
    """The rows of `text`; HprofError, naming `origin`, where no line looks like llama-bench's."""
    offset = 0
    for line in text.splitlines(keepends=True):
        if (parser := _parser_for(line.strip())) is not None:
            return parser(text[offset:])
        offset += len(line)
    raise HprofError(
        f"{origin} holds no llama-bench rows; write them with llama-bench -o jsonl (or json, csv, sql, md)."
    )


def _parser_for(line: str) -> Callable[[str], ParsedRows] | None:
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


def parse_json(text: str) -> ParsedRows:
    """The objects of the array, or of an object's list `results`; the array need not be closed."""
    parsed = ParsedRows("json")
    inside = text[text.index("[") + 1 :].encode()
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


_CSV_HEADER = re.compile(r'^"?[a-z_]+"?(?:,"?[a-z_]+"?){5,}$')
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


# column:field, where the table's short name is not the field's
FIELD_OF_COLUMN: Final = {
    "model": "model_type",
    "backend": "backends",
    "threads": "n_threads",
    "ngl": "n_gpu_layers",
    "sm": "split_mode",
    "mg": "main_gpu",
    "nkvo": "no_kv_offload",
    "fa": "flash_attn",
    "dev": "devices",
    "ts": "tensor_split",
    "ot": "tensor_buft_overrides",
    "lm": "load_mode",
    "mmap": "use_mmap",
    "dio": "use_direct_io",
    "embd": "embeddings",
    "nopo": "no_op_offload",
    "noh": "no_host",
    "rpk": "repack",
    "fitt": "fit_target",
    "fitc": "fit_min_ctx",
    "pw": "prefetch_weights",
    "ncmoe": "n_cpu_moe",
    "rtr": "repack",
    "fmoe": "fused_moe",
    "mla": "mla_attn",
    "amb": "attn_max_batch",
}
_OVERRIDES: Final = "tensor_buft_overrides"
_SIZE: Final = re.compile(r"^([\d.]+) (B|KiB|MiB|GiB|TiB)$")
_COUNT: Final = re.compile(r"^([\d.]+) ([KMBT])$")
_SPEED: Final = re.compile(r"^([\d.]+)(?:\s+\S{1,3}\s+([\d.]+))?$")  # the plus-minus sign survives few pastes
_BUILD: Final = re.compile(r"^build: (\S+) \((\d+)\)$")


def is_md_header(line: str) -> bool:
    """Whether a line heads llama-bench's table."""
    names = _cells(line)
    return len(names) > 2 and names[0] == "model" and "t/s" in names


def parse_md(text: str) -> ParsedRows:
    """The rows of every table; a row's build is the one named below its table."""
    parsed = ParsedRows("md")
    columns: list[str] = []
    without_build: list[RawRow] = []
    for line in text.splitlines():
        if is_md_header(line):
            columns = _cells(line)
        elif (build := _BUILD.match(line.strip())) is not None:
            for row in without_build:
                row |= {"build_commit": build[1], "build_number": build[2]}
            without_build.clear()
        elif columns and line.lstrip().startswith("|") and not set(line) <= set("|-: \t"):
            found = _md_row(line, columns)
            if found is None:
                parsed.dropped[UNREADABLE] += 1
            else:
                parsed.rows.append(found)
                without_build.append(found)
    return parsed


def _md_row(line: str, columns: list[str]) -> RawRow | None:
    if not line.rstrip().endswith("|"):
        return None  # cut off, perhaps inside the rate: 3 of 37.06
    cells = _cells(line)
    fields = [FIELD_OF_COLUMN.get(name, name) for name in columns]
    surplus = len(cells) - len(fields)
    if surplus > 0 and _OVERRIDES in fields:
        # the pattern's own bars are not escaped: it is what both ends leave over
        at = fields.index(_OVERRIDES)
        cells[at : at + surplus + 1] = ["|".join(cells[at : at + surplus + 1])]
    if len(cells) != len(fields):
        return None
    row: RawRow = dict(zip(fields, cells, strict=True))
    speed = _SPEED.match(row.pop("t/s", ""))
    if speed is None:
        return None
    row |= {"avg_ts": speed[1], "stddev_ts": speed[2]}
    row |= {"model_size": _scaled(_SIZE, row.pop("size", ""), _BYTES)}
    row |= {"model_n_params": _scaled(_COUNT, row.pop("params", ""), _THOUSANDS)}
    return row


_BYTES: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_THOUSANDS: Final = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _scaled(pattern: re.Pattern[str], text: str, units: dict[str, int]) -> int | None:
    match = pattern.match(text)
    try:
        return round(float(match[1]) * units[match[2]]) if match else None
    except ValueError:
        return None


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


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
