"""csv: a bare header, then rows of quoted values; read by name, so any age's fields do."""

from __future__ import annotations

import csv
import re

from profiler.importers.llama_bench.parsed import UNREADABLE, Parsed

HEADER = re.compile(r'^"?[a-z_]+"?(?:,"?[a-z_]+"?){5,}$')
_KNOWN = ("avg_ts", "avg_ns")


def is_header(line: str) -> bool:
    """Whether a line is llama-bench's csv header."""
    return HEADER.match(line) is not None and any(name in line for name in _KNOWN)


def parse_csv(text: str) -> Parsed:
    """Rows below each header (files put after one another repeat it); lines of another width are counted."""
    parsed = Parsed("csv")
    header: list[str] = []
    reader = csv.reader(text.replace("\x00", "").splitlines())
    try:
        for values in reader:
            if is_header(",".join(values)):
                header = values
            elif header and len(values) == len(header):
                parsed.rows.append(dict(zip(header, values, strict=True)))
            elif header and len(values) > 1:
                parsed.dropped[UNREADABLE] += 1
                parsed.truncated = True
    except csv.Error:
        parsed.dropped[UNREADABLE] += 1
    return parsed
