"""The tables `passes` and `ubatches` from ranges that name them, whoever recorded the ranges.

hprof's own ranges (`executor.tracing.nvtx_names`) say what was asked for; the importer says when each range began and
when the last of its work ended. Bytes come from the events of each pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Int64
from executor.tracing.nvtx_names import PassName, UbatchName
from executor.units import format_count
from profiler.arithmetic.groups import group_by
from profiler.schema import COPIES, H2D, MANAGED, PASSES, ROLES, has_role
from profiler.storage.writer import conform

_ASKED: Final = ("arm", "n_ubatch", "n_depth", "n_prompt", "n_gen", "repetition", "warmup")
_COPY_CALL: Final = r"^(?:(?:cuda|cu|hip)Memcpy|urEnqueue\w*(?:Memcpy|Copy))"
_EXPLICIT: Final = [role for role in COPIES if ROLES[role] not in MANAGED]


def asked(name: PassName) -> dict[str, Any]:
    """The columns of `passes` that a range of hprof's own names."""
    return {column: getattr(name, column) for column in _ASKED}


def pass_ids(names: Sequence[object]) -> list[int]:
    """A number for each pass: its own where all have distinct ones, else (several runs in one file) their order."""
    own = [name.pass_id for name in names if isinstance(name, PassName)]
    return own if own and len(set(own)) == len(names) else list(range(len(names)))


def boots(processes: Sequence[int]) -> list[int]:
    """The boot of each pass, in the order of their starts: a process is one, in the order in which they began, as all
    count their repetitions alike.
    """
    numbers = {process: boot for boot, process in enumerate(dict.fromkeys(processes))}
    return [numbers[process] for process in processes]


def pass_table(
    named: Sequence[Mapping[str, object]],
    ids: Sequence[int],
    windows: Sequence[tuple[int, int] | None],
    ubatches: pa.Table,
) -> pa.Table:
    """One row a pass, in the order of their starts.

    named: what each was asked for. windows: its first and last ns; None for a pass that did nothing. ubatches: of all.
    """
    records = []
    for order, (columns, number, window) in enumerate(zip(named, ids, windows, strict=True)):
        record: dict[str, Any] = {"pass_id": number, "order": order, "boot": 0} | dict(columns)
        if window is not None:
            own = ubatches.filter(pc.equal(ubatches["pass_id"], number))
            record |= {"t_start": window[0], "t_end": window[1]} | _phase_durations(own, window[1])
        records.append(record)
    return pa.Table.from_pylist(records, schema=PASSES)


def ubatch_table(
    names: Sequence[UbatchName],
    start: Int64,
    end: Int64,
    of_pass: Int64,
    passes: Sequence[object],
    ids: Sequence[int],
) -> pa.Table:
    """One row a ubatch, in the order of their starts; tokens before it count from its pass's depth.

    of_pass: the place in `passes` (names) and `ids` of each one's pass, negative for none. start, end: ns.
    """
    past: Counter[int] = Counter()
    n_past: list[int | None] = []
    for name, at in zip(names, of_pass.tolist(), strict=True):
        depth = passes[at].n_depth if at >= 0 and isinstance(passes[at], PassName) else None
        n_past.append(None if depth is None else depth + past[at])
        past[at] += name.n_tokens
    columns: dict[str, Any] = {
        "pass_id": [ids[at] if at >= 0 else None for at in of_pass.tolist()],
        "phase": [name.phase for name in names],
        "ubatch": [name.ubatch for name in names],
        "n_tokens": [name.n_tokens for name in names],
        "n_past": n_past,
        "t_start": start,
        "t_end": end,
    }
    return conform("ubatches", columns)


def _phase_durations(ubatches: pa.Table, end: int) -> dict[str, int | None]:
    """ttft_ns, prefill_ns and decode_ns of the pass that has these ubatches and ends at `end`.

    TTFT and prefill run from the host's start of the first prefill ubatch to that of the first decode ubatch (to
    the pass's end where nothing is decoded): no range marks the instant the token was known.
    """
    prefill = ubatches.filter(pc.equal(ubatches["phase"], "prefill"))["t_start"].to_pylist()
    decode = ubatches.filter(pc.equal(ubatches["phase"], "decode"))["t_start"].to_pylist()
    if not prefill:
        return {"ttft_ns": None, "prefill_ns": None, "decode_ns": end - min(decode) if decode else None}
    known = min(decode) if decode else end
    ttft = known - min(prefill)
    return {"ttft_ns": ttft, "prefill_ns": ttft, "decode_ns": end - known if decode else None}


def with_bytes_h2d(passes: pa.Table, events: pa.Table, *, is_unrecorded: bool = False) -> pa.Table:
    """The passes with the bytes that their explicit host to device copies moved.

    Null where a copy does not say its size, for a pass without a window, and for all passes where the host copied and
    no copy was recorded, or `is_unrecorded` says that there were others.
    """
    position = PASSES.get_field_index("bytes_h2d")
    explicit = np.flatnonzero(has_role(events, [H2D]))
    if len(explicit) == 0 and (is_unrecorded or unrecorded_copies(events)):
        return passes.set_column(position, PASSES.field(position), pa.nulls(passes.num_rows, pa.int64()))
    copies = events.select(["pass_id", "bytes"]).take(pa.array(explicit))
    groups = group_by({"pass_id": pc.fill_null(copies["pass_id"], -1).to_numpy()}) if len(explicit) else None
    moved: dict[int, int | None] = {}
    if groups is not None:
        sizes = pc.fill_null(copies["bytes"], -1).to_numpy()
        unknown, sums = groups.sum(sizes < 0).tolist(), groups.sum(np.maximum(sizes, 0)).tolist()
        told = zip(groups.keys["pass_id"].tolist(), unknown, sums, strict=True)
        moved = {number: None if n_unknown else n_bytes for number, n_unknown, n_bytes in told}
    did_work = passes["t_start"].is_valid().to_pylist()
    numbers = zip(passes["pass_id"].to_pylist(), did_work, strict=True)
    column = pa.array([moved.get(number, 0) if worked else None for number, worked in numbers], pa.int64())
    return passes.set_column(position, PASSES.field(position), column)


def has_explicit_copies(events: pa.Table) -> bool:
    """Whether any row is a copy that a program asked for, in any direction."""
    return bool(has_role(events, _EXPLICIT).any())


def unrecorded_copies(events: pa.Table) -> int:
    """How many calls of the host copied, in a trace that holds no copy at all; 0 where it holds any."""
    names = events["name"].combine_chunks()
    copies = pc.match_substring_regex(names.dictionary, _COPY_CALL)
    if not pc.any(copies).as_py() or has_explicit_copies(events):
        return 0
    called = pc.and_(pc.fill_null(copies.take(names.indices), False), pc.equal(events["kind"].combine_chunks(), "api"))
    return int(pc.sum(called).as_py() or 0)


def remark_unrecorded_copies(n_calls: int) -> list[str]:
    """A sentence for `cannot_say`."""
    if not n_calls:
        return []
    return [
        f"copies: {format_count(n_calls, 'call')} of the host copied, and no copy is in the trace; their bytes and "
        "times are unknown, not 0"
    ]


def remark_undirected_copies(n_copies: int) -> list[str]:
    """A sentence for `cannot_say` of a trace whose only copies do not say where to."""
    if not n_copies:
        return []
    return [
        f"copies: the trace has {format_count(n_copies, 'copy')}, and none says its direction; the bytes and times of "
        "each are unknown, not 0"
    ]
