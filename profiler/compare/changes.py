"""Judges B's figures against A's, each divided by its own tokens, in the cells and arms that were paired. Traces
without passes are compared by rates and shares of their devices alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from profiler.arithmetic.stats import Comparison, CountUnit, Grounds, PairDesign
from profiler.compare.data import PER_TOKEN, Change, DeviceChange, DeviceUnit
from profiler.compare.same_data import SAME_PASSES, are_same_passes, is_one_capture
from profiler.compare.sides import GroupKey, OpenedSide, Pairs
from profiler.metrics import (
    FIGURES,
    DeviceFigures,
    Figure,
    device_figures,
)
from profiler.metrics.passes import CellKey
from profiler.report.judged_cells import AFTER_FIRST_TOKEN, OTHER_EXPERTS
from profiler.report.measured import what_was_measured
from profiler.report.pairs import Repeats, counted, judge, pair_keys, samples
from profiler.report.sameness import same_work


def changes(a: OpenedSide, b: OpenedSide, pairs: Pairs, *, noise: float) -> list[Change]:
    """Every figure that both sides have, the largest change first."""
    found = [change for x, y in pairs for change in _group_changes(a, b, x, y, noise)]
    return sorted(found, key=lambda change: (-change.size, change.where, change.figure))


def token_warnings(a: OpenedSide, b: OpenedSide, pairs: Pairs) -> list[str]:
    """A sentence for each cell and arm in which B generated other tokens than A from the same repetition's input."""
    return [f"{y[0]} · {y[1]}: B generated other tokens than A." for x, y in pairs if _has_other_tokens(a, b, x, y)]


def different_work(a: OpenedSide, b: OpenedSide, x: CellKey, y: CellKey) -> str | None:
    """Why two groups did not do the same work, so that no verdict may be given; None where they did."""
    for name in ("n_prompt", "n_gen", "n_depth"):
        sizes = getattr(x, name), getattr(y, name)
        if sizes[0] != sizes[1]:
            return f"{name} " + " against ".join("unknown" if size is None else str(size) for size in sizes)
    names = [side.capture.manifest.model.get("name") for side in (a, b)]
    if names[0] != names[1] and None not in names:
        return "another model"
    digests = [side.capture.manifest.model.get("digest") for side in (a, b)]
    return "other weights" if digests[0] != digests[1] and None not in digests else None


def _group_changes(a: OpenedSide, b: OpenedSide, x: GroupKey, y: GroupKey, noise: float) -> Iterator[Change]:
    work = different_work(a, b, x[0], y[0])
    tokens_route = a.tokens_route or b.tokens_route
    after_first = OTHER_EXPERTS if tokens_route and _has_other_tokens(a, b, x, y) else None
    is_one_run = is_one_capture(a, b) and x[0] == y[0]
    is_itself = are_same_passes(a, b, x, y)
    readings = {name: figure for name, figure in a.readings.items() if name in b.readings}
    for name, figure in {**FIGURES, **readings}.items():
        design = pair_design(a, b, figure)
        per: Literal["token", "pass"] = "token" if _by_token(name, x[0], y[0]) else "pass"
        of_a, of_b = _samples(a, b, x, y, name, per, design)
        if of_a and of_b:
            different = work or (after_first if name in AFTER_FIRST_TOKEN else None)
            units = [list(counted(of, design.unit).values()) for of in (of_a, of_b)]
            a_median, b_median = (float(np.median(of)) for of in units)
            better = figure.better or "lower"
            against: Comparison | None = None
            if min(a_median, b_median) > 0:
                same = SAME_PASSES if is_itself else _same_work(a, b, x, y, name) if is_one_run else None
                grounds = Grounds(different, same)
                against = judge(of_a, of_b, design, better=better, noise=noise, grounds=grounds, with_zeros=True)
            n_pairs = against.pairs if against is not None else min(map(len, units))
            yield Change(
                cell_a=x[0],
                cell_b=y[0],
                arm_a=x[1],
                arm_b=y[1],
                figure=name,
                per=per,
                a=a_median,
                b=b_median,
                n_a=len(of_a),
                n_b=len(of_b),
                pairs=n_pairs,
                unit=design.unit,
                against=against,
                different=different,
                is_itself=is_itself,
                samples=samples(of_a, of_b, design),
                reading=readings.get(name),
            )


def not_seen(a: OpenedSide, b: OpenedSide, pairs: Pairs, figure: str) -> list[str]:
    """Where a figure cannot be compared, so that no limit on it is known to be kept: a cell and arm in which one side
    alone has it, and those that a side lacks because it was not finished.
    """
    found = []
    for x, y in pairs:
        has = [bool(_values(side, key, figure, None)) for side, key in ((a, x), (b, y))]
        if has[0] != has[1]:
            found.append(f"only {'A' if has[0] else 'B'} has it in {x[0].flags} · {x[1]}")
    taken = ({x for x, _ in pairs}, {y for _, y in pairs})
    for name, side, other, used in (("A", a, b, taken[1]), ("B", b, a, taken[0])):
        lacking = [key for key in other.groups if key not in used]
        if lacking and side.capture.manifest.state != "complete":
            found.append(f"{name} was not finished and lacks {lacking[0][0].flags} · {lacking[0][1]}")
    return found


def pair_design(a: OpenedSide, b: OpenedSide, figure: Figure) -> PairDesign:
    """The arms of one capture were measured in turn; two captures were not, and are resampled apart.

    Two captures are different processes, so what takes time counts once a process; so does all that another tool
    measured. Bytes and memory of hprof's own passes do not vary by process. Where no clock was read nothing varies but
    the routing, which arms of one seed share.
    """
    manifests = [side.capture.manifest for side in (a, b)]
    if all(what_was_measured(manifest).is_exact for manifest in manifests):
        is_routed = any(side.tables.experts.num_rows for side in (a, b))
        share_seeds = manifests[0].seeds == manifests[1].seeds
        return PairDesign(are_pairs=share_seeds, unit="routings" if is_routed else "results")
    if is_one_capture(a, b):
        return PairDesign(are_pairs=True, unit="boots" if manifests[0].has_process_per_arm else "pairs")
    is_own = all(manifest.source == "hprof" for manifest in manifests)
    return PairDesign(are_pairs=False, unit="pairs" if is_own and figure.unit == "bytes" else "boots")


def process_warnings(a: OpenedSide, b: OpenedSide) -> list[str]:
    """A sentence where captures of hprof are one process each, so that their times get no verdict."""
    design = pair_design(a, b, FIGURES["ttft_ns"])
    is_own = all(side.capture.manifest.source == "hprof" for side in (a, b))
    if design.are_pairs or design.unit != "boots" or not is_own or not (a.groups and b.groups):
        return []
    one = [name for name, side in (("A", a), ("B", b)) if side.passes["boot"].nunique(dropna=False) == 1]
    if not one:
        return []
    sides = "A and B are one process each" if len(one) == 2 else f"{one[0]} is one process"
    return [f"{sides}: two processes of one program differ, so times get no verdict; run both with --boots 6."]


def _samples(
    a: OpenedSide,
    b: OpenedSide,
    x: GroupKey,
    y: GroupKey,
    name: str,
    per: Literal["token", "pass"],
    design: PairDesign,
) -> tuple[Repeats, Repeats]:
    of_a, of_b = (
        _values(side, key, name, key[0].n_tokens if per == "token" else None) for side, key in ((a, x), (b, y))
    )
    if not design.are_pairs:
        return of_a, of_b
    return _paired(of_a, of_b, design.unit), _paired(of_b, of_a, design.unit)


def _paired(values: Repeats, others: Repeats, unit: CountUnit) -> Repeats:
    """The values that have a partner: the same boot and repetition, or the same boot."""
    if unit != "boots":
        return {key: value for key, value in values.items() if key in others}
    boots = {boot for boot, _ in others}
    return {key: value for key, value in values.items() if key[0] in boots}


def _has_other_tokens(a: OpenedSide, b: OpenedSide, x: GroupKey, y: GroupKey) -> bool:
    """Whether a repetition that both sides ran in the same cell gave other tokens."""
    if x[0] != y[0]:
        return False
    left, right = (_tokens(side.groups[key]) for side, key in ((a, x), (b, y)))
    return any(left[key] != right[key] for key in left.keys() & right.keys())


def _tokens(rows: pd.DataFrame) -> dict[tuple[float, ...], tuple[int, ...]]:
    found = zip(pair_keys(rows), rows["tokens"], strict=True)
    return {key: tuple(value) for key, value in found if value is not None and len(value)}


def _same_work(a: OpenedSide, b: OpenedSide, x: GroupKey, y: GroupKey, name: str) -> str | None:
    works = [a.work_done.of(key[1], side.groups[key]["pass_id"].tolist()) for side, key in ((a, x), (b, y))]
    return same_work(name, *works)


def _by_token(name: str, x: CellKey, y: CellKey) -> bool:
    return name in PER_TOKEN and x.n_tokens is not None and y.n_tokens is not None


def _values(side: OpenedSide, key: GroupKey, name: str, n_tokens: int | None) -> Repeats:
    """The figure of each pass by (boot, repetition); unknown ones are left out."""
    if name not in side.columns:
        return {}
    repetitions, rows = side.repetitions[key]
    values = side.columns[name][rows] / (n_tokens or 1)
    return {at: value for at, value in zip(repetitions, values.tolist(), strict=True) if math.isfinite(value)}


def device_changes(a: OpenedSide, b: OpenedSide) -> list[DeviceChange]:
    """Rates, shares and sizes of each device, in the order of the traces; devices are paired by their place."""
    left, right = (device_figures(side.tables.recording) for side in (a, b))
    found: list[DeviceChange] = []
    for place in range(max(len(left), len(right))):
        of_a, of_b = (dict(_figures(side, place)) for side in (left, right))
        label = _label(left, right, place)
        found += [
            DeviceChange(label, name, unit, of_a.get((name, unit)), of_b.get((name, unit)))
            for name, unit in dict.fromkeys([*of_a, *of_b])
        ]
    return found


def _figures(devices: Sequence[DeviceFigures], place: int) -> Iterator[tuple[tuple[str, DeviceUnit], float | None]]:
    if place >= len(devices):
        return
    device = devices[place]
    for direction, copies in device.copies.items():
        yield (f"{direction} rate", "GB/s"), copies.gb_s
        yield (f"{direction} hidden", "share"), copies.hidden_ratio
        yield (f"{direction} bytes a copy", "bytes"), None if copies.bytes is None else copies.bytes / copies.count
        if direction == "h2d" and copies.bytes and copies.pageable_bytes is not None:
            yield (f"{direction} from pageable memory", "share"), copies.pageable_bytes / copies.bytes
    if (h2d := device.copies.get("h2d")) is not None and device.compute_busy_ns:
        yield ("copying against computing", "share"), h2d.busy_ns / device.compute_busy_ns


def _label(left: Sequence[DeviceFigures], right: Sequence[DeviceFigures], place: int) -> str:
    numbers = [str(side[place].device) if place < len(side) else "none" for side in (left, right)]
    return f"device {numbers[0]}" if numbers[0] == numbers[1] else f"device {numbers[0]} → {numbers[1]}"
