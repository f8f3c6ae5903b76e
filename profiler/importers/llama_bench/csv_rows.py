"""Reads llama-bench's csv, whose header tells it from a log."""

from __future__ import annotations

import csv
import re

from profiler.importers.llama_bench.parsed import UNREADABLE, ParsedRows

_OTHER_WIDTH = "rows of another width than their header"

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
                parsed.truncated = False
            elif header and len(values) > 1:
                parsed.dropped[_OTHER_WIDTH] += 1
                parsed.truncated = len(values) < len(header)
            elif values:  # text below the rows, so that they do not end the file
                parsed.truncated = False
    except csv.Error:
        parsed.dropped[UNREADABLE] += 1
    return parsed
