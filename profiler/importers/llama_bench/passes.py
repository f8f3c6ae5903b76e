"""Rows of llama-bench as the `passes` table: one pass a repetition, or a row's mean where it lists none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from profiler.importers.llama_bench.arms import cell
from profiler.importers.llama_bench.rows import BenchRow


def pass_columns(
    rows: Sequence[BenchRow], arms: Sequence[str], *, first_id: int = 0, boot: int = 0, start_ns: int = 0
) -> dict[str, list[Any]]:
    """The table's columns for rows of these arms, from `start_ns` on.

    Samples are laid end to end: what lay between them (loading, warming up) was not recorded.
    """
    columns: dict[str, list[Any]] = {}
    repetitions: Counter[Any] = Counter()
    now_ns = start_ns
    for row, arm in zip(rows, arms, strict=True):
        for prefill_ns, decode_ns, total_ns in _times(row):
            repetition = repetitions[arm, cell(row)]
            repetitions[arm, cell(row)] += 1
            number = first_id + len(columns.get("arm", ()))
            values = {
                "pass_id": number,
                "arm": arm,
                "n_ubatch": row.n_ubatch,
                "n_depth": row.n_depth,
                "n_prompt": row.n_prompt,
                "n_gen": row.n_gen,
                "repetition": repetition,
                "order": number,
                "boot": boot,
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
