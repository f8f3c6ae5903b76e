"""Reads llama-bench's output: json, jsonl, csv, sql and md of any age, ik_llama's too. Rows become passes.

A pass is one repetition where the format lists them (`samples_ns`), else the mean of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from executor.errors import HprofError
from profiler.importers.base import Imported, ImportOptions
from profiler.importers.llama_bench.arms import DEFAULT_ARM, arm_name, arm_settings, unsaid_differences
from profiler.importers.llama_bench.facts import cannot_say, manifest_fields, warnings
from profiler.importers.llama_bench.formats import parse, read_text
from profiler.importers.llama_bench.parsed import Parsed, RawRow
from profiler.importers.llama_bench.passes import pass_columns
from profiler.importers.llama_bench.rows import BenchRow, bench_row
from profiler.storage.writer import conform


def read(path: Path, options: ImportOptions) -> Imported:
    """Read one file. Raises HprofError where it holds no usable row."""
    return read_rows(parse(read_text(path), str(path)), str(path), options.arm_by)


def read_rows(parsed: Parsed, origin: str, arm_by: Sequence[str] = ()) -> Imported:
    """What `read` does once the rows are parsed; `arm_by` names the fields that make arms."""
    rows, dropped = usable_rows(parsed)
    if not rows:
        raise HprofError(f"{origin} holds no llama-bench row that can be used ({_reasons(dropped)}); run it again.")
    names = arm_settings(rows, arm_by)
    return Imported(
        source="llama-bench",
        tables={"passes": conform("passes", pass_columns(rows, [arm_name(row, names) for row in rows]))},
        manifest_fields=manifest_fields(rows, names),
        cannot_say=cannot_say(rows, parsed.format),
        dropped=+dropped,
        default_arm=None if names else DEFAULT_ARM,
        warnings=warnings(rows, names, unsaid_differences(rows, names), truncated=parsed.truncated),
    )


def usable_rows(parsed: Parsed) -> tuple[list[BenchRow], Counter[str]]:
    """The rows that measured something, and how many were left out, by reason."""
    dropped = Counter(parsed.dropped)
    rows = []
    for raw in _without_repeats(parsed, dropped):
        row = bench_row(raw)
        if isinstance(row, str):
            dropped[row] += 1
        else:
            rows.append(row)
    return rows, dropped


def _without_repeats(parsed: Parsed, dropped: Counter[str]) -> Iterator[RawRow]:
    """Each row once: no two runs end in the same second with the same times. (An md row tells neither.)"""
    seen: set[str] = set()
    for raw in parsed.rows:
        text = repr(sorted(raw.items())) if raw.get("test_time") else ""
        if text in seen:
            dropped["rows that repeat another one to the last digit"] += 1
        else:
            yield raw
        seen |= {text} - {""}


def _reasons(dropped: Counter[str]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "it has none"
