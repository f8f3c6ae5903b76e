"""Which arm of a cell is the best, by time to first token and by prefill speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from profiler.manifest import Arm
from profiler.metrics import FIGURES
from profiler.report.data import Cell
from profiler.report.placements import FULL
from profiler.report.units import format_value

_BEST_BY: Final = {"ttft_ns": "Shortest time to first token", "prefill_tokens_per_s": "highest prefill speed"}


def best_arms(cell: Cell, arms: Sequence[Arm]) -> dict[str, str]:
    """The best arm by each figure that the cell has; the earlier one of equals.

    Beside `full`, which copies nothing: it is the limit, and not what one chooses among.
    """
    whole = {arm.name for arm in arms if arm.requested == FULL}
    chosen = [name for name in cell.arms if name not in whole]
    found = {}
    for figure in _BEST_BY:
        known = {name: value for name in chosen if (value := cell.arms[name].median(figure)) is not None}
        if known:
            pick = min if FIGURES[figure].better == "lower" else max
            found[figure] = pick(known, key=lambda name: known[name])
    return found


def said_best(cell: Cell, arms: Sequence[Arm]) -> Iterator[str]:
    """One sentence where there are more than two arms; of two the verdict says it."""
    best = best_arms(cell, arms)
    if len(cell.arms) > 2 and best:
        text = "; ".join(f"{_BEST_BY[figure]}: {_told(cell, figure, name, arms)}" for figure, name in best.items())
        yield f"{text[0].upper()}{text[1:]}."


def _told(cell: Cell, figure: str, name: str, arms: Sequence[Arm]) -> str:
    compared = cell.against_baseline.get(name, {}).get(figure)
    against = f"x{compared.ratio:.3f} of {cell.baseline}, {compared.verdict}" if compared is not None else None
    limits = [
        f"{arm.name}: {_value(cell, figure, arm.name)}"
        for arm in arms
        if arm.requested == FULL and arm.name in cell.arms
    ]
    beside = "; ".join(part for part in (against, *limits) if part)
    return f"{name} with {_value(cell, figure, name)}{f' ({beside})' if beside else ''}"


def _value(cell: Cell, figure: str, name: str) -> str:
    value = cell.arms[name].median(figure)
    unit = FIGURES[figure].unit
    return "unknown" if value is None else f"{format_value(value, unit)}{' t/s' if unit == 'tokens/s' else ''}"
