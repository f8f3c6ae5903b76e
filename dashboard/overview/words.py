"""Figures, intervals and changes between arms, as short texts."""

from __future__ import annotations

from typing import Final

from dashboard.text import SIGNS, percent
from profiler.arithmetic.stats import Comparison, Estimate
from profiler.report.units import format_value

UNKNOWN: Final = "–"


def interval(found: Estimate | None, unit: str) -> str:
    """`501 ms [420 ms, 587 ms]`; the interval where six passes or more gave one."""
    if found is None:
        return "not known"
    text = format_value(found.median, unit)
    edges = [format_value(edge, unit) for edge in (found.low, found.high) if edge is not None]
    return text if len(set(edges)) < 2 else f"{text} [{edges[0]}, {edges[1]}]"


def spread(found: Estimate | None, unit: str) -> str:
    """What a single arm's figure is the median of, and its interval."""
    if found is None:
        return "not known"
    bounds = interval(found, unit).partition(" [")[2]
    passes_read = f"median of {found.n} passes" if found.n > 1 else "one pass"
    return f"{passes_read}, 95 % interval [{bounds}" if bounds else passes_read


def bounds(compared: Comparison | None, form: str) -> str:
    """Both ends of the ratio's interval in this form, `{low:.2f} to {high:.2f}`; nothing where there is none."""
    if compared is None or compared.low is None or compared.high is None:
        return ""
    return form.format(low=compared.low, high=compared.high)


def judged(compared: Comparison) -> str:
    """`▲ 31 % faster (×0.66 to ×0.71)`."""
    is_change = compared.verdict not in ("inconclusive", "no difference")
    words = f"{percent(compared)} {compared.verdict}" if is_change else compared.verdict
    return f"{SIGNS[compared.verdict]} {words}{bounds(compared, ' (×{low:.2f} to ×{high:.2f})')}"


def relative(ratio: float) -> str:
    """A change of a figure that no verdict is given on: `12 % more`."""
    if abs(ratio - 1) < 0.0005:
        return "= the same"
    if ratio >= 2:
        return f"{ratio:.2g} times as much"
    return f"{abs(ratio - 1) * 100:.3g} % {'more' if ratio > 1 else 'less'}"
