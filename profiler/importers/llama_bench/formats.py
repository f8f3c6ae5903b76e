"""Tells the format of llama-bench's output and parses it; log lines around the rows are skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from profiler.importers.llama_bench import csv_rows, md_rows
from profiler.importers.llama_bench.csv_rows import parse_csv
from profiler.importers.llama_bench.md_rows import parse_md
from profiler.importers.llama_bench.objects import parse_json, parse_jsonl
from profiler.importers.llama_bench.parsed import Parsed
from profiler.importers.llama_bench.sql_rows import parse_sql

MAX_BYTES: Final = 64 << 20  # of rows of about 1 kB


def read_text(path: Path) -> str:
    """The file as text; bytes that are no UTF-8 become a replacement mark."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise HprofError(f"{path} cannot be read: {error.strerror}; check the path.") from error
    if len(data) > MAX_BYTES:
        raise HprofError(f"{path} is larger than {MAX_BYTES >> 20} MiB, which no llama-bench output is; split it.")
    return data.decode("utf-8-sig", errors="replace")


def parse(text: str, origin: str) -> Parsed:
    """The rows of `text`; HprofError, naming `origin`, where no line looks like llama-bench's."""
    offset = 0
    for line in text.splitlines(keepends=True):
        if (parser := _parser_for(line.strip())) is not None:
            return parser(text[offset:])
        offset += len(line)
    raise HprofError(
        f"{origin} holds no llama-bench rows; write them with llama-bench -o jsonl (or json, csv, sql, md)."
    )


def _parser_for(line: str) -> Callable[[str], Parsed] | None:
    if line.startswith('{"'):
        return parse_jsonl
    if line == "[" or line.startswith(("[{", "[ {")):
        return parse_json
    if line.upper().startswith(("CREATE TABLE", "INSERT INTO")):
        return parse_sql
    if csv_rows.is_header(line):
        return parse_csv
    if md_rows.is_header(line):
        return parse_md
    return None
