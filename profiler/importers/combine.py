"""Lays several imported files one after the other on one clock, each an arm, with pass ids of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from profiler.importers.base import Imported
from profiler.importers.hprof_passes import with_bytes_h2d
from profiler.manifest import FAULTS, ManifestArm
from profiler.schema import CPU_COMPUTE, DEVICE_WORK, PASSES, has_role

_GAP_NS: Final = 1_000_000
_TIMED: Final = ("events", "passes", "ubatches")
_ID_TABLES: Final = ("events", "passes", "ubatches", "experts", "ordering")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of an import: what was read, and the arm it stands for (None: the file says, or nothing does)."""

    file_name: str
    n_bytes: int
    arm: str | None
    imported: Imported


def combine(sources: Sequence[SourceFile]) -> list[Imported]:
    """The same files with times, pass ids and orders that do not collide. The first time of all is 0.

    A file that is an arm and has no passes of its own becomes one pass.
    """
    combined: list[Imported] = []
    start_ns = next_id = 0
    boots: Counter[str] = Counter()
    for source in sources:
        tables = dict(source.imported.tables)
        if source.imported.is_cut_off:
            tables = _of_unknown_figures(tables)
        if source.arm is not None:
            extra = source.imported.manifest_fields.get("extra", {})
            tables = _as_arm(
                tables,
                source.arm,
                is_unrecorded="unrecorded_copies" in extra,
                is_cut_off=source.imported.is_cut_off,
            )
        tables = _booted(tables, boots)
        span = span_of(tables)
        if span is not None:
            tables = {name: _shifted(name, table, start_ns - span[0]) for name, table in tables.items()}
            start_ns += span[1] - span[0] + _GAP_NS
        tables, next_id = _renumbered(tables, next_id)
        combined.append(replace(source.imported, tables=tables))
    return combined


def manifest_fields(
    sources: Sequence[SourceFile], warnings: Sequence[str] = (), faults: Sequence[str] = ()
) -> dict[str, Any]:
    """The manifest of all files together: the first one's facts, everybody's arms, remarks and drops; and `warnings`
    and `faults` of them together.

    A file that does not say when it was recorded leaves that unknown: the time of the import is none of its facts.
    """
    fields: dict[str, Any] = {"created_utc": ""} | sources[0].imported.manifest_fields
    several = len(sources) > 1
    files = [
        {"name": s.file_name, "bytes": s.n_bytes, "arm": s.arm}
        | (dict(s.imported.manifest_fields.get("extra", {})) if several else {})
        for s in sources
    ]
    fields["extra"] = ({} if several else dict(fields.get("extra", {}))) | {"files": files}
    fields["arms"] = _arms(sources)
    fields["source"] = sources[0].imported.source
    fields["dropped"] = dict(sum((s.imported.dropped for s in sources), Counter[str]()))
    for name in ("warnings", "cannot_say"):
        fields[name] = _remarks([(source.file_name, getattr(source.imported, name)) for source in sources])
    fields["warnings"] = [*faults, *warnings, *fields["warnings"]]
    if told_first := [*faults, *_remarks([(source.file_name, source.imported.faults) for source in sources])]:
        fields["extra"][FAULTS] = told_first
    return fields


def _remarks(by_file: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """What is true of all files once, the rest behind the file's name."""
    of_all = set.intersection(*(set(texts) for _, texts in by_file))
    told = [text if text in of_all else f"{file}: {text}" for file, texts in by_file for text in texts]
    return list(dict.fromkeys(told))


def _arms(sources: Sequence[SourceFile]) -> list[ManifestArm]:
    found: dict[str, ManifestArm] = {}
    for source in sources:
        own = cast("list[ManifestArm]", source.imported.manifest_fields.get("arms", []))
        if source.arm is None:
            found |= {arm.name: arm for arm in own if arm.name not in found}
        elif len(own) > 1:
            found |= {f"{source.arm}/{a.name}": replace(a, name=f"{source.arm}/{a.name}") for a in own}
        else:
            found.setdefault(source.arm, replace(own[0], name=source.arm) if own else ManifestArm(source.arm))
    return list(found.values())


_MEASURED: Final = ("t_start", "t_end", "ttft_ns", "prefill_ns", "decode_ns", "sampling_ns", "n_decoded", "bytes_h2d")


def _of_unknown_figures(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables of a cut-off file: its passes stay as boots without times and bytes, and its events are of none.

    A file is not written in the order of time: any pass may lack some of its work, and would be taken for a faster one.
    """
    if (passes := tables.get("passes")) is None:
        return tables
    for name in _MEASURED:
        passes = with_column(passes, name, pa.nulls(passes.num_rows, passes.schema.field(name).type))
    known = {name: table for name, table in tables.items() if name != "ubatches"} | {"passes": passes}
    if (events := tables.get("events")) is not None:
        known["events"] = with_column(events, "pass_id", pa.nulls(events.num_rows, pa.int32()))
    return known


def _as_arm(tables: dict[str, pa.Table], arm: str, *, is_unrecorded: bool, is_cut_off: bool) -> dict[str, pa.Table]:
    """The tables with passes of this arm. A pass of a file that shows no device's work, or not all of it, has neither
    times nor events: part of a pass would be taken for a faster one."""
    passes = tables.get("passes")
    if passes is not None and passes.num_rows:
        return tables | {"passes": _renamed(passes, arm)}
    span = None if is_cut_off else work_span_of(tables)
    row: dict[str, Any] = {"pass_id": 0, "arm": arm, "repetition": 0, "boot": 0, "warmup": False}
    if span is not None:
        row |= {"t_start": span[0], "t_end": span[1]}
    whole = {"passes": pa.Table.from_pylist([row], schema=PASSES)}
    if span is not None and (events := tables.get("events")) is not None:
        whole["events"] = with_column(events, "pass_id", pa.repeat(pa.scalar(0, pa.int32()), events.num_rows))
        whole["passes"] = with_bytes_h2d(whole["passes"], whole["events"], is_unrecorded=is_unrecorded)
    return tables | whole


def _renamed(passes: pa.Table, arm: str) -> pa.Table:
    own = pc.unique(passes["arm"]).to_pylist()
    names = [f"{arm}/{name}" for name in passes["arm"].to_pylist()] if len(own) > 1 else [arm] * passes.num_rows
    return with_column(passes, "arm", pa.array(names, pa.string()))


def _booted(tables: dict[str, pa.Table], boots: Counter[str]) -> dict[str, pa.Table]:
    """Files are processes of their own: a further file of an arm counts as its next boot."""
    passes = tables.get("passes")
    if passes is None or passes.num_rows == 0:
        return tables
    arms = set(passes["arm"].to_pylist())
    earlier = max(boots[arm] for arm in arms)
    boot = pc.add_checked(pc.fill_null(passes["boot"], 0), pa.scalar(earlier, pa.int32()))
    boots |= Counter(dict.fromkeys(arms, pc.max(boot).as_py() + 1))  # in place; an arm that it has not had counts too
    return tables | {"passes": with_column(passes, "boot", boot)}


def span_of(tables: dict[str, pa.Table]) -> tuple[int, int] | None:
    """The first start and the last end of all timed tables."""
    starts, ends = [], []
    for name in _TIMED:
        if name in tables and tables[name].num_rows:
            starts.append(pc.min(tables[name]["t_start"]).as_py())
            ends.append(pc.max(tables[name]["t_end"]).as_py())
    known = [time for time in starts if time is not None], [time for time in ends if time is not None]
    return (min(known[0]), max(known[1])) if all(known) else None


def work_span_of(tables: dict[str, pa.Table]) -> tuple[int, int] | None:
    """The first start and the last end of what devices did: a trace's start-up on the host is no part of its arm."""
    events = tables.get("events")
    if events is None:
        return None
    return span_of({"events": events.filter(pa.array(has_role(events, [*DEVICE_WORK, CPU_COMPUTE])))})


def _shifted(name: str, table: pa.Table, by_ns: int) -> pa.Table:
    if name not in _TIMED or by_ns == 0:
        return table
    for column in ("t_start", "t_end"):
        table = with_column(table, column, pc.add_checked(table[column], by_ns))
    return table


def _renumbered(tables: dict[str, pa.Table], first_id: int) -> tuple[dict[str, pa.Table], int]:
    """Pass ids from `first_id` on; `order` counts on likewise, so that it stays the order of the run."""
    passes = tables.get("passes")
    if passes is None or passes.num_rows == 0:
        return tables, first_id
    own_last = pc.max(passes["pass_id"]).as_py()
    if first_id:
        for name in _ID_TABLES:
            if name in tables:
                column = pc.add_checked(tables[name]["pass_id"], pa.scalar(first_id, pa.int32()))
                tables[name] = with_column(tables[name], "pass_id", column)
    orders = pc.add_checked(pc.fill_null(passes["order"], 0), pa.scalar(first_id, pa.int32()))
    tables["passes"] = with_column(tables["passes"], "order", orders)
    return tables, first_id + own_last + 1


def with_column(table: pa.Table, name: str, values: object) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), values)
