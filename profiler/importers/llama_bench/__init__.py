"""Reads llama-bench's output: json, jsonl, csv, sql and md of any age, ik_llama's too. Rows become passes.

A pass is one repetition where the format lists them (`samples_ns`), else the mean of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executor.errors import HprofError
from profiler.importers.base import Imported, ImportOptions
from profiler.importers.llama_bench.arms import DEFAULT_ARM, arm_name, arm_settings, cell, unsaid_differences
from profiler.importers.llama_bench.facts import cannot_say, manifest_fields, warnings
from profiler.importers.llama_bench.formats import parse, read_text
from profiler.importers.llama_bench.parsed import Parsed
from profiler.importers.llama_bench.rows import BenchRow, bench_row
from profiler.writer import conform


def read(path: Path, options: ImportOptions) -> Imported:
    """Read one file. Raises HprofError where it holds no usable row."""
    return read_rows(parse(read_text(path), str(path)), str(path), options.arm_by)


def read_rows(parsed: Parsed, origin: str, arm_by: Sequence[str] = ()) -> Imported:
    """What `read` does once the rows are parsed; `arm_by` names the fields that make arms."""
    dropped = Counter(parsed.dropped)
    rows = []
    for raw in parsed.rows:
        row = bench_row(raw)
        if isinstance(row, str):
            dropped[row] += 1
        else:
            rows.append(row)
    if not rows:
        raise HprofError(f"{origin} holds no llama-bench row that can be used ({_reasons(dropped)}); run it again.")
    names = arm_settings(rows, arm_by)
    return Imported(
        source="llama-bench",
        tables={"passes": conform("passes", _passes(rows, [arm_name(row, names) for row in rows]))},
        manifest_fields=manifest_fields(rows, names),
        cannot_say=cannot_say(rows, parsed.format),
        dropped=+dropped,
        default_arm=None if names else DEFAULT_ARM,
        warnings=warnings(names, unsaid_differences(rows, names), truncated=parsed.truncated),
    )


def _passes(rows: Sequence[BenchRow], arms: Sequence[str]) -> dict[str, list[Any]]:
    """The passes table's columns. Samples are laid end to end: what lay between them was not recorded."""
    columns: dict[str, list[Any]] = {}
    repetitions: Counter[Any] = Counter()
    now_ns = 0
    for row, arm in zip(rows, arms, strict=True):
        for prefill_ns, decode_ns, total_ns in _times(row):
            repetition = repetitions[arm, cell(row)]
            repetitions[arm, cell(row)] += 1
            order = len(columns.get("arm", ()))
            values = {
                "pass_id": order,
                "arm": arm,
                "n_ubatch": row.n_ubatch,
                "n_depth": row.n_depth,
                "n_prompt": row.n_prompt,
                "n_gen": row.n_gen,
                "repetition": repetition,
                "order": order,
                "boot": 0,
                "warmup": False,
                "t_start": now_ns,
                "t_end": now_ns + total_ns,
                "prefill_ns": prefill_ns,
                "decode_ns": decode_ns,
                "n_decoded": row.n_gen if decode_ns is not None else None,
            }
            for name, value in values.items():
                columns.setdefault(name, []).append(value)
            now_ns += total_ns
    return columns


def _times(row: BenchRow) -> list[tuple[int | None, int | None, int]]:
    """(prefill, decode, total) of each pass; a test that prompts and generates has one time for both."""
    if row.parts_ns is not None:
        return [(*row.parts_ns, sum(row.parts_ns))]
    return [(ns if row.n_gen == 0 else None, ns if row.n_prompt == 0 else None, ns) for ns in row.samples_ns]


def _reasons(dropped: Counter[str]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "it has none"
