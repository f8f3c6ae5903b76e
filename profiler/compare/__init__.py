"""Holds two captures, or two cells or arms, against each other: per token and per pass, never whole-file totals.

result = compare_captures("traces/before", "traces/after#on", fail_on=["ttft>+5%"])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from profiler.arithmetic.stats import DEFAULT_NOISE
from profiler.compare.changes import changes, device_changes, not_seen, process_warnings, token_warnings
from profiler.compare.data import Change, ComparedSide, CompareResult, Difference, Gate
from profiler.compare.gate import decide, parse_limit
from profiler.compare.same_data import same_data_warnings
from profiler.compare.settings import differences
from profiler.compare.sides import OpenedSide, Pairs, matched, open_side

__all__ = ["Change", "CompareResult", "Difference", "Gate", "Side", "compare_captures"]

_UNTIMED: Final = "recorded beside timed runs, so that its own times are not compared."


def compare_captures(a: str, b: str, *, noise: float = DEFAULT_NOISE, fail_on: Sequence[str] = ()) -> CompareResult:
    """Compare B with A, each `CAPTURE` or `CAPTURE#ARM,ub=512` (cell sizes p, n, ub, d).

    fail_on: limits such as "ttft>+5%", or of what the programs printed, "step_ms>+5%". Raises HprofError for what
    cannot be read or matched.
    """
    left, right = open_side(a), open_side(b)
    limits = [parse_limit(text, {**left.readings, **right.readings}) for text in fail_on]
    pairs = matched(left, right)
    found = changes(left, right, pairs, noise=noise)
    devices = [] if pairs else device_changes(left, right)
    gates, ground = decide(limits, found, {one.figure: not_seen(left, right, pairs, one.figure) for one in limits})
    return CompareResult(
        a=_side(left),
        b=_side(right),
        differences=differences(left.capture.manifest, right.capture.manifest, {x[1]: y[1] for x, y in pairs}),
        changes=found,
        devices=devices,
        warnings=[
            *same_data_warnings(left, right, pairs, devices),
            *_warnings("A", left),
            *_warnings("B", right),
            *_unmatched(left, right, pairs),
        ],
        gates=gates,
        ground=ground if gates else None,
    )


def _side(side: OpenedSide) -> ComparedSide:
    manifest = side.capture.manifest
    return ComparedSide(side.spec, side.capture.path, manifest.source, manifest.state)


def _warnings(name: str, side: OpenedSide) -> list[str]:
    dropped = side.capture.manifest.dropped
    left_out = [f"{sum(dropped.values()):,} rows of the source were left out."] if dropped else []
    untimed = [_UNTIMED] if side.capture.manifest.is_untimed else []
    return [f"{name}: {text}" for text in [*side.capture.warnings, *left_out, *untimed]]


def _unmatched(a: OpenedSide, b: OpenedSide, pairs: Pairs) -> list[str]:
    """What only one side has, and cells that did other work."""
    found = [*process_warnings(a, b), *token_warnings(a, b, pairs)]
    taken = ({x for x, _ in pairs}, {y for _, y in pairs})
    for name, side, used in (("A", a, taken[0]), ("B", b, taken[1])):
        alone = [f"{cell.flags} · {arm}" for cell, arm in side.groups if (cell, arm) not in used]
        if alone and pairs:
            more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
            found.append(f"Only {name} has {'; '.join(alone[:3])}{more}.")
    if not pairs:
        found.append("There are no passes to hold against each other, so nothing was judged: one trace each.")
    return found
