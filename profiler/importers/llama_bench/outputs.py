"""Cuts a text into llama-bench's outputs: it may hold several, of several formats, as people paste them.

What the log lines above an output say of it, the devices found and what the author calls the run, goes into its rows.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from executor.files import bounded_read
from profiler.importers.llama_bench.formats import (
    Format,
    ParsedRows,
    is_csv_header,
    parse_csv,
    parse_json,
    parse_jsonl,
    parse_sql,
)
from profiler.importers.llama_bench.md import is_md_header, parse_md

Parser = Callable[[str], ParsedRows]

RUN: Final = "hprof_run"  # a raw row's number of the process that printed it
RUN_TITLE: Final = "run_title"
MAX_BYTES: Final = 64 << 20  # of rows of about 1 kB

_MAX_TITLE: Final = 80
_DEVICE: Final = re.compile(
    r"^\s*Device \d+: (?P<cuda>[^,]+),"  # CUDA and HIP
    r"|^ggml_vulkan: \d+ = (?P<vulkan>[^|]+?)(?: \([^()]*\))?\s*\|"
    r"|^ggml_metal_\w+: GPU name:\s*(?P<metal>.+)$"
)
_HEADING: Final = re.compile(r"^(?:#+|\*\*|=+|-{2,})\s*(?P<text>[^#*=|-][^|]*?)\s*(?:#*|\**|=*|-*)$")
# tells runs apart and says nothing of them
_NUMBER_ONLY: Final = re.compile(r"(?:(?:run|boot|try|attempt|pass|round|test)\s*)?[#.:]?\s*\d+[.:]?", re.IGNORECASE)
# rows of any format, a fence, the build, progress, what llama.cpp logs, and what `time` prints
_PRINTED: Final = re.compile(
    r"[|{}\]]|\[$|\[\s*\d+(?:/\d+|\s*%)\]|\"\w+\"[:,]|(?:[^,]*,){8}|```|build: |[\W\d]+$"
    r"|~?(?:ggml|gguf|llama|llm|load|print|common|register|sched)\w*\s*:|(?:warning|error|main|system_info)\s*: "
    r"|Device \d+: .*,|(?:real|user|sys)\s+\d+m"
)
_TAG: Final = re.compile(r"<[^>]*>")


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


def devices_named(lines: Sequence[str]) -> str | None:
    """The devices that the log says were found, as llama-bench's gpu_info has them; null where it names none."""
    found = [match for line in lines if (match := _DEVICE.match(line)) is not None]
    return ", ".join(next(filter(None, match.groups())).strip() for match in found) or None


def title_of(lines: Sequence[str]) -> str | None:
    """What stands above an output: its heading, and the author's last line below that; without both the last command.

    A line above another table is that table's. Null where there is nothing, or a number alone.
    """
    heading: str | None = None
    line_above: str | None = None
    command: str | None = None
    for line in map(str.strip, lines):
        if (match := _HEADING.match(line)) is not None:
            heading, line_above = match["text"], None
        elif line.startswith("|"):
            line_above = None
        elif "llama-bench" in line and line[:1] not in '|"{':
            command = line.lstrip("$> ")
        elif text := _authors_text(line):
            line_above = text
    said = [text for text in (heading, line_above) if text] or [command or ""]
    return ": ".join(text for text in said if not _NUMBER_ONLY.fullmatch(text))[:_MAX_TITLE] or None


def _authors_text(line: str) -> str:
    """The line without its marks (`GPU 0` for "- **GPU 0**:"); nothing for what a program printed, and for rows."""
    if _PRINTED.match(line) is not None:
        return ""
    return _TAG.sub("", line).strip("`*_~=-+>#: ")
