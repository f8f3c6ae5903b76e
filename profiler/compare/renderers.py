"""A comparison for the terminal, as a comment for GitHub, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from profiler.compare.data import COMPARE_SCHEMA, Change, CompareResult
from profiler.compare.tables import (
    changes_table,
    devices_table,
    differences_table,
    gate_lines,
    headline,
    is_bad,
    reasons,
)
from profiler.report.markdown import escape, table_lines

if TYPE_CHECKING:
    from rich.console import Console


def print_comparison(result: CompareResult, console: Console, top: int) -> None:
    """Draw it on the terminal."""
    from rich.text import Text

    from profiler.report.terminal import draw_table

    for name, side in (("A", result.a), ("B", result.b)):
        console.print(Text(f"{name}: {side.spec} ({side.source}, {side.state})", style="bold"))
    for warning in result.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    for table in (differences_table(result), changes_table(result, top), devices_table(result)):
        if table.rows:
            console.print()
            console.print(draw_table(table))
    if told := reasons(result):
        console.print(Text(f"Inconclusive: {'; '.join(told)}.", style="dim"))
    console.print()
    console.print(Text(headline(result)))
    for gate, line in zip(result.gates, gate_lines(result), strict=True):
        console.print(Text(line, style="red" if is_bad(gate) else "green"))


def render_comment(result: CompareResult, top: int) -> str:
    """GitHub-flavoured markdown: the verdicts on top, details folded. Text of the captures cannot become markup."""
    return "\n".join(_comment_lines(result, top)).rstrip() + "\n"


def render_json(result: CompareResult) -> str:
    """Indented JSON, schema 1; every change is in it. Infinite ratios are null."""
    content = {
        "schema": COMPARE_SCHEMA,
        "a": asdict(result.a),
        "b": asdict(result.b),
        "differences": [asdict(difference) for difference in result.differences],
        "changes": [_change(change) for change in result.changes],
        "devices": [asdict(change) for change in result.devices],
        "gates": [asdict(gate) for gate in result.gates],
        "warnings": result.warnings,
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()


def _comment_lines(result: CompareResult, top: int) -> Iterator[str]:
    marks = {"passed": "✅", "failed": "❌", "inconclusive": "⚠️"}
    yield f"### hprof: {escape(headline(result))}\n"
    yield from (f"- {marks[g.state]} {escape(line)}" for g, line in zip(result.gates, gate_lines(result), strict=True))
    yield f"\nA: {escape(result.a.spec)} · B: {escape(result.b.spec)}\n"
    yield from (f"> {escape(warning)}\n" for warning in result.warnings)
    for table in (changes_table(result, top), devices_table(result)):
        if table.rows:
            yield from table_lines(table)
    if told := reasons(result):
        yield f"Inconclusive: {escape('; '.join(told))}.\n"
    configuration = differences_table(result)
    if configuration.rows:
        n = len(configuration.rows)
        differ = "1 setting differs" if n == 1 else f"{n} settings differ"
        yield f"<details><summary>Configuration: {differ}</summary>\n"
        yield from table_lines(configuration)
        yield "</details>"


def _change(change: Change) -> dict[str, Any]:
    found = change.against
    return {
        "cell": {"a": asdict(change.cell_a), "b": asdict(change.cell_b)},
        "arm": {"a": change.arm_a, "b": change.arm_b},
        "figure": change.figure,
        "per": change.per,
        "a": change.a,
        "b": change.b,
        "n": {"a": change.n_a, "b": change.n_b},
        "ratio": found.ratio if found is not None and math.isfinite(found.ratio) else None,
        "low": found.low if found is not None else None,
        "high": found.high if found is not None else None,
        "pairs": found.pairs if found is not None else min(change.n_a, change.n_b),
        "verdict": change.verdict,
        "reason": found.reason if found is not None and change.verdict == "inconclusive" else None,
    }
