"""Parses llama-bench's five output formats (json, jsonl, csv, md, sql) into raw rows: field name -> value as
spelled.

A text may hold several outputs, of several formats, as people paste them: `parse` cuts it where one begins. Log
lines around the rows are skipped, rows that cannot be read are counted. SQL is read as text and never executed.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from executor.files import bounded_read
from profiler.importers.llama_bench.csv_rows import is_csv_header, parse_csv
from profiler.importers.llama_bench.json_rows import parse_json, parse_jsonl
from profiler.importers.llama_bench.log import devices_named, title_of
from profiler.importers.llama_bench.md import is_md_header, md_rows
from profiler.importers.llama_bench.parsed import UNREADABLE, Format, ParsedRows
from profiler.importers.llama_bench.sql import parse_sql

Parser = Callable[[str], ParsedRows]

RUN: Final = "hprof_run"  # a raw row's number of the process that printed it
RUN_TITLE: Final = "run_title"
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

    Each row gets RUN, the number of its process as far as headers tell it, which counts in each format apart, as one
    process may print two. It also gets what its log lines say: RUN_TITLE, a heading or a command line above it, where
    there are several outputs, and `gpu_info`, where its format does not have that.
    """
    blocks = _blocks(text.splitlines(keepends=True))
    if not blocks:
        raise HprofError(
            f"{origin} holds no llama-bench rows; write them with llama-bench -o jsonl (or json, csv, sql, md)."
        )
    found = [parser("".join(lines)) for parser, _, lines in blocks]
    gpus: str | None = None
    n_headers: Counter[Parser] = Counter()
    for parsed, (parser, log, lines) in zip(found, blocks, strict=True):
        gpus = devices_named(log) or gpus
        title = title_of(log) if len(blocks) > 1 else None
        n_headers[parser] += _is_header(lines[0], parser)
        for row in parsed.rows:
            row |= {RUN: max(1, n_headers[parser])} | ({RUN_TITLE: title} if title else {})
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


def _blocks(lines: Sequence[str]) -> list[tuple[Parser, list[str], list[str]]]:
    """(parser, the log before, its lines) of each output: one begins at a header, or where the format changes."""
    blocks: list[tuple[Parser, list[str], list[str]]] = []
    log: list[str] = []
    for line in lines:
        parser = _parser_for(line.strip())
        if parser is not None and _begins(line, parser, blocks[-1][0] if blocks else None):
            blocks.append((parser, log, [line]))
            log = []
        elif blocks:
            # a line after the rows is also what stands above the next output
            log = [] if parser is not None else [*log, line]
            blocks[-1][2].append(line)
        else:
            log.append(line)
    return blocks


def _begins(line: str, parser: Parser, current: Parser | None) -> bool:
    if current is parse_json and parser is parse_jsonl:
        return False  # an object of the array
    return parser is not current or _is_header(line, parser)


def _is_header(line: str, parser: Parser) -> bool:
    """Whether a process prints the line once, before its rows; jsonl has none such."""
    return parser in (parse_md, parse_csv, parse_json) or line.lstrip()[:6].upper() == "CREATE"


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


def parse_md(text: str) -> ParsedRows:
    """The rows of every table."""
    found = md_rows(text, UNREADABLE)
    return ParsedRows("md", found.rows, found.dropped)
