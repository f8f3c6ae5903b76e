"""A forecast as blocks of text and tables, which the report's renderers draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from executor.units import (
    UNKNOWN,
    format_bytes,
    format_change,
    format_factor,
    format_interval,
    format_share,
    format_value,
    listed,
)
from profiler.predicting.forecast import Forecast
from profiler.predicting.measured import Miss
from profiler.predicting.predictor import Prediction
from profiler.report.blocks import Block, Lines, Table

_MOST_TABLES = 64
Times = Mapping[int, float | None]
"""Time to first token in ns by ubatch."""


def forecast_blocks(forecast: Forecast) -> Iterator[Block]:
    """Where it comes from, a table a cell, and what was measured beside it."""
    yield Lines("fact", [*forecast.notes, f"predicted, not measured: {forecast.model}", *_ground(forecast)])
    cells = list(forecast.by_cell())
    if forecast.misses:
        yield _misses_table(forecast)
        yield Lines("summary", list(_summary(forecast)))
        return
    if answer := list(_answer(forecast)):
        yield Lines("fact", answer)
    for cell, arms in cells[:_MOST_TABLES]:
        title = f"-p {cell.n_prompt} -n {cell.n_gen} -ub {cell.n_ubatch} -d {cell.n_depth}"
        columns = ["", "TTFT", "prefill t/s", "decode t/s", "copied", "device memory", "x as fast"]
        yield Table(title, columns, [_arm_row(forecast, one, arms) for one in arms])
    if len(cells) > _MOST_TABLES:
        yield Lines("note", [f"{len(cells) - _MOST_TABLES:,} more cells: ask for --json."])
    outside = sum(not one.in_range for one in forecast.predictions)
    if forecast.fitted_to and outside:
        yield Lines("note", ["* outside what was fitted: sizes, depths or steps that it does not show."])


def _answer(forecast: Forecast) -> Iterator[str]:
    """Of several ubatches: which arm and ubatch is fastest, and from where each arm beats the baseline."""
    groups: dict[tuple[int, int, int], list[Prediction]] = {}
    for one in forecast.predictions:
        if one.ttft_ns is not None:
            groups.setdefault((one.cell.n_prompt, one.cell.n_gen, one.cell.n_depth), []).append(one)
    for (n_prompt, _, depth), found in groups.items():
        base = {one.cell.n_ubatch: one.ttft_ns for one in found if one.label == forecast.baseline}
        if len(base) < 2:
            continue
        best = min(found, key=lambda one: one.ttft_ns or 0.0)
        at = f"At -p {n_prompt} -d {depth}"
        yield f"{at} the least TTFT is {best.label}'s at -ub {best.cell.n_ubatch}: {format_value(best.ttft_ns, 'ns')}."
        for label in dict.fromkeys(one.label for one in found if one.label != forecast.baseline):
            own = {one.cell.n_ubatch: one.ttft_ns for one in found if one.label == label}
            yield _from_which(label, forecast.baseline, own, base)


def _from_which(label: str, baseline: str, own: Times, base: Times) -> str:
    """From which ubatch on an arm is faster than the baseline."""
    both = sorted(own.keys() & base.keys())
    faster = [ub for ub in both if (own[ub] or 0.0) < (base[ub] or 0.0)]
    if not faster:
        return f"{label} is faster than {baseline} at no -ub that was asked for."
    if len(faster) == len(both):
        return f"{label} is faster than {baseline} at every -ub that was asked for."
    if faster == both[-len(faster) :]:
        return f"{label} is faster than {baseline} from -ub {faster[0]} on."
    return f"{label} is faster than {baseline} at -ub {', '.join(map(str, faster))}."


def _ground(forecast: Forecast) -> Iterator[str]:
    if forecast.fitted_to:
        spreads = [f"{name} ± {format_share(value)}" for name, value in forecast.spread.items() if value is not None]
        sure = f"intervals from what that misses: {listed(spreads)}" if spreads else "nothing says how far off that is"
        yield f"fitted to {listed(forecast.fitted_to)}; {sure}"


def _arm_row(forecast: Forecast, one: Prediction, arms: list[Prediction]) -> list[str]:
    base = next((arm for arm in arms if arm.label == forecast.baseline), None)
    fast = base.ttft_ns / one.ttft_ns if base is not None and one.ttft_ns and base.ttft_ns else None
    mark = "" if one.in_range or not forecast.fitted_to else " *"
    return [
        one.label + mark,
        _spelled(forecast.ttft(one), "ns"),
        _spelled(forecast.prefill_tokens_per_s(one), "tokens/s"),
        _spelled(forecast.decode_tokens_per_s(one), "tokens/s"),
        format_bytes(one.bytes_h2d),
        format_bytes(sum(one.vram.values())),
        "baseline" if one is base else UNKNOWN if fast is None else format_factor(fast),
    ]


def _spelled(figure: dict[str, Any] | None, unit: str) -> str:
    return UNKNOWN if figure is None else format_interval(figure["median"], figure["low"], figure["high"], unit)


def _misses_table(forecast: Forecast) -> Table:
    columns = ["", "-p", "-ub", "-d", "fitted", "TTFT", "prefill", "decode", "bytes", "to blame in the prompt"]
    rows = [_miss_row(miss) for miss in sorted(forecast.misses, key=lambda miss: miss.is_fitted)]
    return Table("predicted against measured", columns, rows)


def _miss_row(miss: Miss) -> list[str]:
    cell, blame = miss.prediction.cell, miss.to_blame()
    return [
        miss.prediction.label,
        *(str(number) for number in (cell.n_prompt, cell.n_ubatch, cell.n_depth)),
        "yes" if miss.is_fitted else "no",
        *(_error(miss.error(figure)) for figure in ("ttft_ns", "prefill_ns", "decode_ns", "bytes_h2d")),
        UNKNOWN if blame is None else f"{blame[0]} {blame[1] * 100:+.1f} %",
    ]


def _error(error: float | None) -> str:
    return UNKNOWN if error is None else format_change(1 + error)


def _summary(forecast: Forecast) -> Iterator[str]:
    names = {"ttft_ns": "TTFT", "prefill_ns": "prefill", "decode_ns": "decode", "bytes_h2d": "bytes"}
    for fitted, what in ((False, "not fitted"), (True, "fitted")):
        found = {name: errors for figure, name in names.items() if (errors := forecast.errors(figure, fitted=fitted))}
        if found:
            told = [f"{name} {one['median'] * 100:.1f} % ({one['p90'] * 100:.1f} %)" for name, one in found.items()]
            yield f"{what} cells are off by, median (90th percentile): {listed(told)}."
