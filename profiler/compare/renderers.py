"""A comparison laid out as tables, and drawn for the terminal, as a comment for GitHub, and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from executor.units import format_change, format_count, format_factor, format_in_words, format_value
from profiler.compare.data import COMPARE_SCHEMA, Change, CompareResult, DeviceChange, Gate
from profiler.compare.gate import level_told
from profiler.compare.leading import MAX_PLACES, cause, leading_changes, undecided
from profiler.compare.setting_words import setting_name, setting_value
from profiler.metrics.passes import varied_keys
from profiler.plain_text import json_text
from profiler.report.blocks import Table
from profiler.report.markdown import block_lines, escape
from profiler.report.verdicts import factor_range, times_as_fast, told_bounds, verdict_word

if TYPE_CHECKING:
    from rich.console import Console

VERDICTS: Final = ("slower", "faster", "more", "less", "no difference", "inconclusive")
DEFAULT_TOP: Final = 20
_STATES: Final = {"passed": "passed", "failed": "FAILED", "inconclusive": "INCONCLUSIVE"}


def headline(result: CompareResult) -> str:
    """`B against A: 2 slower, 1 faster, of 3 judged figures; memory: 1 more.`, or that nothing was judged."""
    if result.changes and all(change.is_itself for change in result.changes):
        return "A and B are the same data: nothing was judged."
    judged = [change for change in result.changes if change.verdict is not None]
    speed, memory = ([change for change in judged if change.is_memory == is_memory] for is_memory in (False, True))
    told = [f"{_counted_verdicts(speed)}, of {len(speed)} judged figures"] if speed else []
    told += [f"memory: {_counted_verdicts(memory)}"] if memory else []
    return f"B against A: {'; '.join(told)}." if told else "Nothing was judged."


def differences_table(result: CompareResult) -> Table:
    """The settings that A and B do not share."""
    arms = {d.key: (d.a, d.b) for d in result.differences if "." not in d.key}
    rows = [
        [setting_name(d.key), setting_value(d.key, d.a), setting_value(d.key, d.b)]
        for d in result.differences
        if "." not in d.key or arms.get(d.key.partition(".")[0]) != (d.a, d.b)  # the arm's name under another key
    ]
    return Table("Configuration", ["setting", "A", "B"], rows)


def leading_table(result: CompareResult, left_out: Collection[str] = ()) -> Table:
    """What leads, how many times as fast B is as A, and the verdict; the places that changed most, but `left_out`."""
    leading = [change for change in leading_changes(result.changes) if change.where not in left_out]
    places = list(dict.fromkeys(change.where for change in leading))
    shown = [change for change in leading if change.where in places[:MAX_PLACES]]
    more = f" ({MAX_PLACES} of {len(places)} cells and arms)" if len(places) > MAX_PLACES else ""
    columns = ["figure", "A", "B", "x as fast", "95 % interval", "verdict"]
    return _placed(result, f"B against A{more}", columns, shown, [_leading_row(change) for change in shown])


def undecided_line(changes: Sequence[Change]) -> str:
    """`Inconclusive in 16 cells and arms (one process an arm): prefill 0.99 to 1.02 x as fast.`"""
    factors: dict[str, list[float]] = {}
    for change in changes:
        if change.against is not None:
            factor = times_as_fast(change.against.ratio, change.described.better)
            factors.setdefault(change.described.label, []).append(factor)
    told = ", ".join(f"{label} {factor_range(found)}" for label, found in factors.items())
    n_places = len({change.where for change in changes})
    return f"Inconclusive in {n_places} cells and arms ({'; '.join(reasons(changes))}): {told}."


def changes_table(result: CompareResult, top: int) -> Table:
    """The largest changes, with verdicts where one way is better."""
    shown = [change for change in result.changes if change.size > 0][:top]
    columns = ["figure", "A", "B", "change", "95 % interval", "verdict"]
    title = f"changes, largest first ({_counted(result, len(shown))})"
    return _placed(result, title, columns, shown, [_change_row(change) for change in shown])


def _placed(
    result: CompareResult, title: str, columns: list[str], shown: Sequence[Change], rows: list[list[str]]
) -> Table:
    """A table of changes; the cell and arm that all share stand in the title, others in columns of their own,
    cells by the sizes that vary."""
    shared: list[str] = []
    keys = varied_keys([cell for change in result.changes for cell in (change.cell_a, change.cell_b)])
    in_short = {change.cell: change.named(keys) or change.cell for change in result.changes}
    for name, places in (("arm", [c.arm for c in result.changes]), ("cell", [c.cell for c in result.changes])):
        if len(set(places)) == 1:
            shared.insert(0, places[0])
        else:
            columns = [name, *columns]
            told = [getattr(change, name) for change in shown]
            rows = [[in_short.get(place, place), *row] for place, row in zip(told, rows, strict=True)]
    return Table(": ".join([" · ".join(shared), title] if shared else [title]), columns, rows)


def reasons(changes: Sequence[Change]) -> list[str]:
    """Why verdicts are inconclusive, each reason once."""
    found = [
        change.against.reason
        for change in changes
        if change.verdict == "inconclusive" and change.against is not None and change.against.reason
    ]
    return list(dict.fromkeys(found))


def devices_table(result: CompareResult) -> Table:
    """Rates and shares of whole traces."""
    return Table("Devices", ["device", "figure", "A", "B", "change"], [_device_row(d) for d in result.devices])


def gate_lines(result: CompareResult) -> Iterator[str]:
    """One line a gate, passed ones too."""
    for gate in result.gates:
        yield f"{_STATES[gate.state]}: fail on {gate.expression}: {gate.reason}"


def gate_ground(result: CompareResult) -> str | None:
    """How sure each of several comparisons had to be of its limit; None where one decides."""
    if result.ground is None or result.ground.comparisons < 2:
        return None
    return f"To fail, a comparison has to be beyond its limit by {level_told(result.ground)}."


def is_bad(gate: Gate) -> bool:
    """Whether a gate did not pass."""
    return gate.state != "passed"


def _counted_verdicts(judged: Sequence[Change]) -> str:
    """`2 slower, 1 faster`."""
    counts = Counter(change.verdict for change in judged)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _counted(result: CompareResult, n_shown: int) -> str:
    n_changed = sum(change.size > 0 for change in result.changes)
    same = len(result.changes) - n_changed
    return f"{n_shown} of {n_changed}" + (f", {same} equal" if same else "")


def _leading_row(change: Change) -> list[str]:
    figure = change.described
    values = [format_in_words(value, figure.unit) for value in (change.a, change.b)]
    if (found := change.against) is None:
        return [figure.label, *values, "", "", ""]
    factor = format_factor(times_as_fast(found.ratio, figure.better))
    return [figure.label, *values, factor, told_bounds(found, figure.better) or "", verdict_word(found)]


def _change_row(change: Change) -> list[str]:
    figure = change.described
    suffix = {"token": " / token", "pass": ""}[change.per]
    bounds = ""
    if change.against is not None and change.against.low is not None and change.against.high is not None:
        bounds = f"{format_change(change.against.low)} .. {format_change(change.against.high)}"
    ratio = change.against.ratio if change.against is not None else _ratio(change.a, change.b)
    values = (format_value(value, figure.unit) for value in (change.a, change.b))
    return [figure.label + suffix, *values, format_change(ratio), bounds, change.verdict or ""]


def _device_row(change: DeviceChange) -> list[str]:
    known = change.a is not None and change.b is not None
    ratio = format_change(_ratio(change.a or 0.0, change.b or 0.0)) if known else ""
    return [change.device, change.figure, *(format_value(v, change.unit) for v in (change.a, change.b)), ratio]


def _ratio(a: float, b: float) -> float:
    if a == b:
        return 1.0
    return b / a if a > 0 else math.inf


def print_comparison(
    result: CompareResult, console: Console, top: int | None, how_to_see_more: str | None = None
) -> None:
    """Draw it on the terminal, with the `top` largest changes; None: what leads alone, if anything does.

    how_to_see_more: the option that shows the changes which are left out.
    """
    from rich.text import Text

    leading = leading_changes(result.changes)
    is_short = top is None and bool(leading)
    for name, side in (("A", result.a), ("B", result.b)):
        console.print(Text(f"{name}: {side.spec} ({side.source}, {side.state})", style="bold"))
    for warning in result.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    folded = undecided(leading) if is_short else []
    places = {change.where for change in folded}
    leads = leading_table(result, places)
    _print_tables(console, leads)
    if told := cause(result.changes):
        console.print(Text(told, style="bold"))
    _print_tables(console, differences_table(result))
    if not is_short:
        _print_tables(console, changes_table(result, top or DEFAULT_TOP), devices_table(result))
    if folded:
        console.print(Text(undecided_line(folded)))
    if not_judged := reasons(
        [change for change in leading if change.where not in places] if is_short else result.changes
    ):
        console.print(Text(f"Inconclusive: {'; '.join(not_judged)}.", style="dim"))
    console.print()
    console.print(Text(headline(result)))
    if is_short and how_to_see_more and len(result.changes) > len(leads.rows):
        console.print(Text(f"All {format_count(len(result.changes), 'figure')}: {how_to_see_more}.", style="dim"))
    for gate, line in zip(result.gates, gate_lines(result), strict=True):
        console.print(Text(line, style="red" if is_bad(gate) else "green"))
    if ground := gate_ground(result):
        console.print(Text(ground, style="dim"))


def _print_tables(console: Console, *tables: Table) -> None:
    from profiler.report.terminal import drawn_block

    for table in tables:
        for part in drawn_block(table) if table.rows else ():
            console.print(part)


def render_comment(result: CompareResult, top: int | None) -> str:
    """GitHub-flavoured markdown: the verdicts on top, details folded. Text of the captures cannot become markup."""
    return "\n".join(_comment_lines(result, top or DEFAULT_TOP)).rstrip() + "\n"


def render_json(result: CompareResult) -> str:
    """Indented JSON, schema 1; every change is in it. Infinite ratios are null."""
    content = {
        "schema": COMPARE_SCHEMA,
        "a": asdict(result.a),
        "b": asdict(result.b),
        "cause": cause(result.changes),
        "differences": [asdict(difference) for difference in result.differences],
        "changes": [_change(change) for change in result.changes],
        "devices": [asdict(change) for change in result.devices],
        "gates": [asdict(gate) for gate in result.gates],
        "gate_ground": None if result.ground is None else asdict(result.ground),
        "warnings": result.warnings,
    }
    return json_text(content)


def _comment_lines(result: CompareResult, top: int) -> Iterator[str]:
    marks = {"passed": "✅", "failed": "❌", "inconclusive": "⚠️"}
    yield f"### hprof: {escape(headline(result))}\n"
    yield from (f"- {marks[g.state]} {escape(line)}" for g, line in zip(result.gates, gate_lines(result), strict=True))
    if ground := gate_ground(result):
        yield f"\n{escape(ground)}"
    yield f"\nA: {escape(result.a.spec)} · B: {escape(result.b.spec)}\n"
    yield from (f"> {escape(warning)}\n" for warning in result.warnings)
    if (leading := leading_table(result)).rows:
        yield from block_lines(leading)
    if told := cause(result.changes):
        yield f"{escape(told)}\n"
    for table in (changes_table(result, top), devices_table(result)):
        if table.rows:
            yield from block_lines(table)
    if not_judged := reasons(result.changes):
        yield f"Inconclusive: {escape('; '.join(not_judged))}.\n"
    configuration = differences_table(result)
    if configuration.rows:
        n = len(configuration.rows)
        differ = f"{format_count(n, 'setting')} {'differs' if n == 1 else 'differ'}"
        yield f"<details><summary>Configuration: {differ}</summary>\n"
        yield from block_lines(configuration)
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
        "pairs": change.pairs,
        "verdict": change.verdict,
        "reason": found.reason if found is not None and change.verdict == "inconclusive" else None,
    }
