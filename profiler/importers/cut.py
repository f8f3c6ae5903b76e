"""One trace as several arms: `off` and `on` that ran in one process, each a stretch of the trace's time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.errors import HprofError
from executor.units import format_ns, listed
from profiler.importers.base import Imported
from profiler.importers.combine import span_of, with_column, work_span_of
from profiler.importers.hprof_passes import with_bytes_h2d
from profiler.manifest import ManifestArm
from profiler.schema import PASSES

if TYPE_CHECKING:
    from executor.arrays import Int64

_DRIFT: Final = (
    "The arms are stretches of one trace that ran one after the other: what else changed meanwhile (clocks, "
    "temperature, other programs) is part of their difference."
)
_FAR_NS: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class ArmRange:
    """A stretch of a trace that is an arm: ns from the trace's first row, as the timeline counts. An arm that has
    several is repeated."""

    arm: str
    start_ns: int
    end_ns: int

    def __str__(self) -> str:
        return f"{self.arm} ({format_ns(self.start_ns)} to {format_ns(self.end_ns)})"

    @property
    def option(self) -> str:
        """As `--range` takes it, to the nanosecond."""
        return f"{self.arm}={self.start_ns}ns:{self.end_ns}ns"


def cut_into_arms(imported: Imported, ranges: Sequence[ArmRange]) -> Imported:
    """The trace with an arm for each name of the ranges, the first being the baseline; the rest is in no pass.

    Each range becomes a pass, from the first to the last thing that a device did in it. A trace whose steps are passes
    already (torch.profiler's) keeps them: those in the middle of a range are its repetitions. A row belongs to the
    range that its middle lies in. Raises HprofError for ranges that overlap or hold nothing, and for a trace that names
    its own arms.
    """
    span = span_of(imported.tables)
    events = imported.tables.get("events")
    if span is None or events is None or not events.num_rows:
        raise HprofError(
            "it holds no events, so no stretch of it can be an arm; of llama-bench's rows, --arm-by FIELD makes arms."
        )
    ordered = sorted(ranges, key=lambda one: one.start_ns)
    _check(ordered)
    passes = imported.tables.get("passes")
    has_passes = passes is not None and passes.num_rows > 0
    tables = (_with_arms if has_passes else _with_passes)(imported, ordered, span[0])
    told = [{"arm": one.arm, "t_start": one.start_ns, "t_end": one.end_ns} for one in ranges]
    arms = [ManifestArm(name) for name in dict.fromkeys(one.arm for one in ranges)]
    extra = imported.manifest_fields.get("extra", {})
    fields = imported.manifest_fields | {"arms": arms, "extra": {**extra, "ranges": told}}
    return replace(imported, tables=tables, manifest_fields=fields, warnings=[*imported.warnings, _DRIFT])


def _check(ranges: Sequence[ArmRange]) -> None:
    """Of ranges in the order of their starts."""
    for one in ranges:
        if not one.arm or one.end_ns <= one.start_ns:
            raise HprofError(f"the range {one} is none: give an arm's name and a start before the end.")
    for one, later in itertools.pairwise(ranges):
        if later.start_ns < one.end_ns:
            raise HprofError(f"the ranges {one} and {later} overlap; an event belongs to one arm.")


def _with_passes(imported: Imported, ranges: Sequence[ArmRange], origin_ns: int) -> dict[str, pa.Table]:
    """A pass for each range; ids and order are those of time."""
    tables = {name: table for name, table in imported.tables.items() if name != "passes"}
    events = tables["events"]
    range_of = _range_of(events, ranges, origin_ns)
    rows = []
    for number, (one, repetition) in enumerate(zip(ranges, _repetitions([one.arm for one in ranges]), strict=True)):
        worked = work_span_of({"events": events.filter(pa.array(range_of == number))})
        if worked is None:
            raise HprofError(f"no device did anything in the range {one}; {_where_work_is(tables, origin_ns)}")
        row: dict[str, Any] = {"pass_id": number, "order": number, "repetition": repetition, "boot": 0, "arm": one.arm}
        begin, end = max(worked[0], one.start_ns + origin_ns), min(worked[1], one.end_ns + origin_ns)
        rows.append(row | {"warmup": False, "t_start": begin, "t_end": end})
    first = _first_ubatches(events, range_of, len(ranges))
    tables["events"] = _renumbered(events, range_of, first)
    if "ubatches" in tables:
        cut = _renumbered(tables["ubatches"], _range_of(tables["ubatches"], ranges, origin_ns), first)
        tables["ubatches"] = cut.filter(cut["pass_id"].is_valid())
    is_unrecorded = "unrecorded_copies" in imported.manifest_fields.get("extra", {})
    passes = pa.Table.from_pylist(rows, schema=PASSES)
    return tables | {"passes": with_bytes_h2d(passes, tables["events"], is_unrecorded=is_unrecorded)}


def _with_arms(imported: Imported, ranges: Sequence[ArmRange], origin_ns: int) -> dict[str, pa.Table]:
    """The passes that the trace has, those of each range being its arm's repetitions."""
    passes = imported.tables["passes"].sort_by("t_start")
    if len(named := pc.unique(passes["arm"]).to_pylist()) > 1:
        raise HprofError(f"the trace names its own arms ({listed(map(str, named))}); import it without ranges.")
    range_of = _range_of(passes, ranges, origin_ns)
    if missing := [str(one) for number, one in enumerate(ranges) if not (range_of == number).any()]:
        raise HprofError(f"no step of the trace lies in {listed(missing)}; its timeline shows where they are.")
    arms = [ranges[number].arm for number in range_of[range_of >= 0].tolist()]
    kept = with_column(passes.filter(pa.array(range_of >= 0)), "arm", pa.array(arms))
    kept = with_column(kept, "repetition", pa.array(_repetitions(arms), pa.int32()))
    found = {"passes": kept}
    for name, table in imported.tables.items():
        is_kept = pc.is_in(table["pass_id"], value_set=kept["pass_id"].combine_chunks())
        if name == "events":
            of_none = pa.scalar(None, pa.int32())
            found[name] = with_column(table, "pass_id", pc.if_else(is_kept, table["pass_id"], of_none))
        elif name != "passes":
            found[name] = table.filter(is_kept)
    return found


def _repetitions(arms: Sequence[str]) -> list[int]:
    """How many of the same arm came before each."""
    seen = Counter[str]()
    found = []
    for arm in arms:
        found.append(seen[arm])
        seen[arm] += 1
    return found


def _range_of(table: pa.Table, ranges: Sequence[ArmRange], origin_ns: int) -> Int64:
    """The number of the range, in the order of time, that each row's middle lies in; -1: none."""
    start, end = (pc.fill_null(table[name], -_FAR_NS).to_numpy() for name in ("t_start", "t_end"))
    middle = start + (end - start) // 2 - origin_ns
    number = np.searchsorted([one.start_ns for one in ranges], middle, side="right") - 1
    ends = np.array([one.end_ns for one in ranges], np.int64)
    found: Int64 = np.where((number >= 0) & (middle < ends[np.maximum(number, 0)]), number, -1)
    return found


def _first_ubatches(events: pa.Table, range_of: Int64, n_ranges: int) -> Int64:
    """The lowest ubatch of each range."""
    ubatch = pc.fill_null(events["ubatch"], -1).to_numpy().astype(np.int64)
    first = np.full(n_ranges, np.iinfo(np.int32).max, np.int64)
    known = (range_of >= 0) & (ubatch >= 0)
    np.minimum.at(first, range_of[known], ubatch[known])
    return first


def _renumbered(table: pa.Table, range_of: Int64, first: Int64) -> pa.Table:
    """Pass ids by range; ubatches count from 0 in each, so that those of two arms can be held against each other."""
    ubatch = pc.fill_null(table["ubatch"], -1).to_numpy().astype(np.int64)
    moved = np.where(range_of >= 0, ubatch - first[np.maximum(range_of, 0)], ubatch)
    table = with_column(table, "ubatch", pa.array(moved, pa.int32(), mask=(ubatch < 0) | (moved < 0)))
    return with_column(table, "pass_id", pa.array(range_of, pa.int32(), mask=range_of < 0))


def _where_work_is(tables: dict[str, pa.Table], origin_ns: int) -> str:
    worked = work_span_of(tables)
    if worked is None:
        return "the trace holds no work of a device."
    return f"devices worked from {format_ns(worked[0] - origin_ns)} to {format_ns(worked[1] - origin_ns)}."
