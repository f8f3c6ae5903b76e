"""The figures of a pass, its prefill and its decode: their names, units and meanings, how each is computed, and the
tables that they need. `docs/metrics.md` has the formulas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Floats, Int64
from executor.errors import HprofError
from profiler.arithmetic.groups import group_by
from profiler.arithmetic.intervals import MAX_ABS_NS
from profiler.arithmetic.stats import Better
from profiler.metrics.events import EVENT_COLUMNS
from profiler.metrics.experts import EXPERT_COLUMNS, ExpertUse, expert_use
from profiler.metrics.overlap import Overlap, PassWindows
from profiler.metrics.pieces import OverlapByPass
from profiler.metrics.transfers import Transfers
from profiler.schema import CPU_COMPUTE, PHASES, WAIT

if TYPE_CHECKING:
    from profiler.capture import Capture

Unit = Literal["ns", "tokens/s", "bytes", "share", "number"]


@dataclass(frozen=True, slots=True)
class Figure:
    """`better` says which way is good where that can be said; `label` is short, for tables; `title` says more."""

    label: str
    unit: Unit
    meaning: str
    better: Better | None = None
    title: str = ""  # `time to first token`; empty: the label says as much

    @property
    def headline(self) -> str:
        """`Time to first token`, `Prefill, tokens a second`: for a card of its own."""
        title = self.title or self.label
        return f"{title[0].upper()}{title[1:]}{', tokens a second' if self.unit == 'tokens/s' else ''}"


FIGURES: Final[dict[str, Figure]] = {
    "ttft_ns": Figure("TTFT", "ns", "start of the prompt to the first token known", "lower", "time to first token"),
    "prefill_tokens_per_s": Figure("prefill", "tokens/s", "prompt tokens / prefill time", "higher"),
    "decode_tokens_per_s": Figure("decode", "tokens/s", "tokens after the first / their time", "higher"),
    "decode_token_ns": Figure("a token", "ns", "time of the tokens after the first / their number", "lower"),
    "wall_ns": Figure("wall", "ns", "start to end of the pass or phase", "lower", "the whole pass"),
    "bytes_h2d": Figure("copied", "bytes", "bytes copied from host to device", None, "bytes copied to the device"),
    "busy_copy_ns": Figure("busy copy", "ns", "union of the host to device copies"),
    "busy_compute_ns": Figure("busy compute", "ns", "union of the device's compute intervals"),
    "hidden_copy_ns": Figure("hidden copy", "ns", "copy time covered by compute"),
    "exposed_copy_ns": Figure("exposed copy", "ns", "copy time that no compute covered", "lower", "exposed copy time"),
    "overlap_efficiency": Figure("overlap eff.", "share", "hidden / min(busy copy, busy compute)", "higher"),
    "hidden_ratio": Figure("hidden", "share", "hidden / busy copy", "higher"),
    "collective_ns": Figure("collectives", "ns", "union of the collectives that ran beside the compute"),
    "idle_ns": Figure("idle", "ns", "device time without compute, copies or collectives", "lower"),
    "wait_ns": Figure("waiting", "ns", "union of the waits of the compute stream for copies", "lower"),
    "host_compute_ns": Figure("host compute", "ns", "union of what the host computed"),
    "distinct_share": Figure("distinct", "share", "expert weights touched / all expert weights"),
    "copied_share": Figure("experts copied", "share", "experts copied to the device / all experts"),
    "selective_saving_bytes": Figure("saved", "bytes", "bytes not copied thanks to the selective copy"),
    "cache_hit_rate": Figure("cache hits", "share", "expert cache hits / look-ups", "higher"),
    "vram_peak_bytes": Figure("VRAM", "bytes", "most device memory in use", "lower", "device memory at the peak"),
}


SPEEDS: Final = ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s")
"""How fast a model is: what answers, cards and gates begin with."""
JUDGED: Final = (*SPEEDS, "wall_ns")
"""The figures that get verdicts, beside what programs print themselves: all that says how fast."""
Scope = Literal["pass", "prefill", "decode"]
Columns = dict[str, Floats]  # by the names of FIGURES, one element a pass
SCOPES: Final[tuple[Scope, ...]] = ("pass", "prefill", "decode")
_ZERO_WHEN_RECORDED: Final = (
    *("busy_copy_ns", "busy_compute_ns", "hidden_copy_ns", "exposed_copy_ns"),
    *("collective_ns", "bytes_h2d"),
)

OWN_TIMES: Final = ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s", "decode_token_ns", "wall_ns")
"""The figures that say how fast; unknown where recording cost the passes time, and others were timed without it."""
_OF_COPIES: Final = ("bytes_h2d", "busy_copy_ns", "hidden_copy_ns", "exposed_copy_ns", "idle_ns")


def pass_figures(
    passes: pa.Table, recording: OverlapByPass, experts: pa.Table, ubatches: pa.Table
) -> dict[Scope, pd.DataFrame]:
    """One frame a scope, one row a pass (index: pass_id, in the table's order), one float column a FIGURES name.

    NaN is null: what the tables cannot give, and OWN_TIMES where `recording` does not tell times. A pass (or phase)
    that has events but no copies copied 0 bytes in 0 ns; one without any events (an import, recording switched off) has
    nulls there. Pass ids must be unique.
    """
    ids = int_column(passes, "pass_id")
    frames: dict[Scope, Columns] = {}
    for scope in SCOPES:
        frame = {name: np.full(len(ids), np.nan) for name in FIGURES}
        names = ("pass_id",) if scope == "pass" else ("pass_id", "phase")
        overlap = recording.overlap(names)
        recorded = np.isin(ids, overlap.keys["pass_id"][_of_scope(overlap, scope)])
        for part in (overlap, recording.transfers(names), expert_use(experts, names)):
            _fill(frame, ids, part, scope, recorded)
        _fill_busy(frame, ids, scope, recording, recorded)
        _fill_windows(frame, ids, scope, passes, ubatches, recording)
        frames[scope] = frame
    _fill_from_passes(frames, passes)
    if not recording.tells_copies:
        _forget_unrecorded_copies(frames, passes)
    if not recording.tells_devices:
        for frame in frames.values():
            frame |= dict.fromkeys((*_ZERO_WHEN_RECORDED, "idle_ns"), np.full(len(ids), np.nan))
    if not recording.tells_times:
        for frame in frames.values():
            frame |= dict.fromkeys(OWN_TIMES, np.full(len(ids), np.nan))
    index = pd.Index(ids, name="pass_id")
    return {scope: pd.DataFrame(frame, index=index) for scope, frame in frames.items()}


def int_column(table: pa.Table, name: str) -> Int64:
    """An integer column as int64; null becomes -1."""
    values: Int64 = pc.fill_null(table[name], -1).to_numpy().astype(np.int64)
    return values


def float_column(table: pa.Table, name: str) -> Floats:
    """A column of times or counts as floats; null becomes NaN, and so does what is negative."""
    values: Floats = table[name].cast(pa.float64(), safe=False).to_numpy()
    return np.where(values >= 0, values, np.nan)


def _fill(
    frame: Columns, ids: Int64, part: Overlap | Transfers | ExpertUse, scope: Scope, recorded: np.ndarray
) -> None:
    """Put the figures of one scope into the rows of their passes."""
    mine = _of_scope(part, scope)
    for name in FIGURES:
        if hasattr(part, name):
            default = np.where(recorded, 0.0, np.nan) if name in _ZERO_WHEN_RECORDED else np.nan
            values = np.full(len(ids), default)
            _place(values, ids, part.keys["pass_id"][mine], getattr(part, name)[mine])
            frame[name] = values


def _of_scope(part: Overlap | Transfers | ExpertUse, scope: Scope) -> Flags | slice:
    return slice(None) if scope == "pass" else part.keys["phase"] == PHASES.index(scope)


def _fill_busy(frame: Columns, ids: Int64, scope: Scope, recording: OverlapByPass, recorded: np.ndarray) -> None:
    """Waits and host compute; a source that never tells of either gives nulls, not zeros."""
    names = ("pass_id",) if scope == "pass" else ("pass_id", "phase")
    roles = recording.keys("role")[0]
    for name, role in (("wait_ns", WAIT), ("host_compute_ns", CPU_COMPUTE)):
        keys, busy_ns = recording.busy(names, role)
        mine = keys["phase"] == PHASES.index(scope) if scope != "pass" else slice(None)
        values = np.where(recorded & bool((roles == role).any()), 0.0, np.nan)
        _place(values, ids, keys["pass_id"][mine], busy_ns[mine])
        frame[name] = values


def _place(into: Floats, ids: Int64, pass_ids: Int64, values: np.ndarray) -> None:
    if len(ids) == 0:
        return
    order = np.argsort(ids)
    rows = order[np.minimum(np.searchsorted(ids, pass_ids, sorter=order), len(ids) - 1)]
    known = ids[rows] == pass_ids
    into[rows[known]] = values[known]


def _fill_windows(
    frame: Columns, ids: Int64, scope: Scope, passes: pa.Table, ubatches: pa.Table, recording: OverlapByPass
) -> None:
    pass_id, starts, ends = _windows(passes) if scope == "pass" else _phase_windows(ubatches, scope)
    columns = {"wall_ns": ends - starts, "idle_ns": recording.idle(pass_id, starts, ends)}
    for name, values in columns.items():
        placed = np.full(len(ids), np.nan)
        _place(placed, ids, pass_id, values)
        frame[name] = placed


def pass_windows(passes: pa.Table) -> PassWindows:
    """The windows of the passes that tell possible ones."""
    return PassWindows(*_windows(_with_possible_times(passes)))


def _windows(rows: pa.Table) -> tuple[Int64, Int64, Int64]:
    """pass_id, start and end of the rows that tell both times."""
    timed = rows.filter(pc.and_(pc.is_valid(rows["t_start"]), pc.is_valid(rows["t_end"])))
    return int_column(timed, "pass_id"), int_column(timed, "t_start"), int_column(timed, "t_end")


def _phase_windows(ubatches: pa.Table, scope: Scope) -> tuple[Int64, Int64, Int64]:
    """From the first start to the last end of each pass's ubatches in this phase."""
    pass_id, starts, ends = _windows(ubatches.filter(pc.equal(ubatches["phase"].cast(pa.string()), scope)))
    groups = group_by({"pass_id": pass_id})
    first, last = np.full(len(groups), MAX_ABS_NS, np.int64), np.full(len(groups), -MAX_ABS_NS, np.int64)
    np.minimum.at(first, groups.of_row, starts)
    np.maximum.at(last, groups.of_row, ends)
    return groups.keys["pass_id"], first, last


def _fill_from_passes(frames: dict[Scope, Columns], passes: pa.Table) -> None:
    whole = frames["pass"]
    ttft, prefill, decode = (float_column(passes, f"{name}_ns") for name in ("ttft", "prefill", "decode"))
    prefill = np.where(np.isnan(prefill), ttft - float_column(passes, "sampling_ns"), prefill)
    n_decoded = float_column(passes, "n_decoded")
    # the first token comes of the prompt, where there is one (`executor.passes.decode_steps`)
    of_prompt = np.where(float_column(passes, "n_prompt") == 0, 0, 1)
    n_decoded = np.where(np.isnan(n_decoded), float_column(passes, "n_gen") - of_prompt, n_decoded)
    figures = {
        "ttft_ns": ttft,
        "prefill_tokens_per_s": _rate(float_column(passes, "n_prompt"), prefill),
        "decode_tokens_per_s": _rate(n_decoded, decode),
        "decode_token_ns": 1e9 / _rate(n_decoded, decode),
        "vram_peak_bytes": float_column(passes, "vram_peak"),
    }
    for name, values in figures.items():
        whole[name] = values
    told = float_column(passes, "bytes_h2d")
    whole["bytes_h2d"] = np.where(np.isnan(told), whole["bytes_h2d"], told)
    for name in ("ttft_ns", "prefill_tokens_per_s"):
        frames["prefill"][name] = figures[name]
    for name in ("decode_tokens_per_s", "decode_token_ns"):
        frames["decode"][name] = figures[name]


def _forget_unrecorded_copies(frames: Mapping[Scope, Columns], passes: pa.Table) -> None:
    """Copies that the host asked for and nobody recorded are unknown, and so is whether the device was idle."""
    unknown = np.isnan(float_column(passes, "bytes_h2d")) & (frames["pass"]["busy_copy_ns"] == 0)
    for frame in frames.values():
        for name in _OF_COPIES:
            frame[name][unknown] = np.nan


def _rate(count: Floats, time_ns: Floats) -> Floats:
    rate: Floats = np.divide(count * 1e9, time_ns, out=np.full(len(count), np.nan), where=(time_ns > 0) & (count > 0))
    return rate


class CaptureTables(NamedTuple):
    """What `pass_figures` takes, in its order. `passes` come in the order of the run."""

    passes: pa.Table
    recording: OverlapByPass
    experts: pa.Table
    ubatches: pa.Table


def load_tables(
    capture: Capture,
    pass_ids: Collection[int] | None = None,
    *,
    with_events: bool = True,
    by_layer: bool = True,
) -> CaptureTables:
    """Read them; `pass_ids` limits all of them to some passes. Raises HprofError for a damaged capture.

    Without events, which in large captures take longest, figures that are made of them are null; times and memory,
    which a pass tells itself, are the same. Not by layer, figures of passes and their phases take half the time, and
    those of ubatches and layers cannot be asked for.
    """
    passes = _with_possible_times(capture.table("passes", pass_ids=pass_ids)).sort_by(
        [("order", "ascending"), ("pass_id", "ascending")]
    )
    if passes["pass_id"].null_count or len(pc.unique(passes["pass_id"])) != passes.num_rows:
        raise HprofError(f"two passes of {capture.path} share a number, or one has none; capture again.")
    return CaptureTables(
        passes,
        OverlapByPass(
            _event_tables(capture, pass_ids) if with_events else [],
            by_layer=by_layer,
            one_clock=None if capture.manifest.has_own_clocks else pass_windows(passes),
            tells_copies=not capture.manifest.has_unrecorded_copies,
            tells_devices=not capture.manifest.has_unrecorded_devices,
            tells_times=not capture.manifest.is_untimed,
        ),
        capture.table("experts", EXPERT_COLUMNS, pass_ids=pass_ids),
        _with_possible_times(capture.table("ubatches", pass_ids=pass_ids)),
    )


def _with_possible_times(table: pa.Table) -> pa.Table:
    """Null for both ends of windows that end before they start, or lie beyond what metrics can add up."""
    start, end = table["t_start"], table["t_end"]
    in_range = pc.and_(pc.greater_equal(start, -MAX_ABS_NS), pc.less_equal(end, MAX_ABS_NS))
    possible = pc.and_(in_range, pc.greater_equal(end, start))
    for name in ("t_start", "t_end"):
        column = pc.if_else(possible, table[name], pa.scalar(None, pa.int64()))
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _event_tables(capture: Capture, pass_ids: Collection[int] | None) -> Iterator[pa.Table]:
    """hprof writes each pass as a part of its own; in other captures a pass may go on in the next part."""
    if capture.manifest.has_own_clocks:
        yield from capture.tables("events", EVENT_COLUMNS, pass_ids=pass_ids)
    else:
        yield capture.table("events", EVENT_COLUMNS, pass_ids=pass_ids)
