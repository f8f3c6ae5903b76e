"""The `ordering` table as arrays: operations in the order of issue, and each byte range that one of them touches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from executor.errors import HprofError
from executor.passes import THREAD, OrderingRecord
from profiler.schema import ABSENT, label_codes
from profiler.storage.writer import conform

if TYPE_CHECKING:
    from profiler.capture import Capture

_KEYS: Final = [("pass_id", "ascending"), ("sequence", "ascending")]
_FIELDS: Final = tuple(field.name for field in fields(OrderingRecord))
_IN_EVERY_ROW: Final = ("pass_id", "sequence", "stream", "op")
_IN_SOME_ROWS: Final = ("event", "reads", "writes")
NO_TAG: Final = 0
"""The code of a tag that says nothing."""


@dataclass(frozen=True, slots=True)
class Touches:
    """One row a byte range; `op` is the operation's row."""

    op: Int64
    is_write: Flags
    space: Int64
    start: Int64
    end: Int64
    tag: Int64


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations, pass after pass. A chain is a stream of a device, or the issuing thread: in order by itself."""

    rows: pa.Table
    """The table's rows, sorted, one an operation."""
    pass_id: Int64
    chain: Int64
    on_thread: Flags
    kind: tuple[str, ...]
    """The texts of `kind_code`."""
    kind_code: Int64
    event: Int64
    touches: Touches
    tags: tuple[str, ...]
    spaces: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.chain)

    def is_kind(self, name: str) -> Flags:
        """Which operations are a `record`, a `wait`, ..."""
        code = self.kind.index(name) if name in self.kind else ABSENT - 1
        return np.asarray(self.kind_code == code)


def load_operations(capture: Capture) -> Operations:
    """What a capture holds of them, warm-ups too; none where it was not run with --record-ordering.

    Raises HprofError for rows without what an order is proved by: nothing could be said of them, good or bad.
    """
    passes = capture.table("passes", ["pass_id", "boot"])
    boots = dict(zip(passes["pass_id"].to_pylist(), passes["boot"].to_pylist(), strict=True))
    rows = capture.table("ordering")
    lacking = [name for name in _IN_EVERY_ROW if rows[name].null_count]
    lacking += [name for name in _IN_SOME_ROWS if len(rows) and rows[name].null_count == len(rows)]
    if lacking:
        raise HprofError(
            f"{capture.path}: its ordering records lack `{lacking[0]}`, without which no order can be proved; "
            "run again with `hprof run --record-ordering`."
        )
    return operations_of(rows, {number: boot or 0 for number, boot in boots.items()})


def operations_of_records(passes: Sequence[Sequence[OrderingRecord]]) -> Operations:
    """The same for records in memory, a list a pass; an operation's place in its list is its number."""
    rows: dict[str, list[Any]] = {name: [] for name in ("pass_id", *_FIELDS)}
    for pass_id, records in enumerate(passes):
        rows["pass_id"] += [pass_id] * len(records)
        for name in _FIELDS:
            rows[name] += [getattr(one, name) for one in records] if name != "sequence" else range(len(records))
    return operations_of(conform("ordering", rows), {})


def operations_of(rows: pa.Table, boots: dict[int, int]) -> Operations:
    """The same for rows of the table; `boots`: each pass's process, as every process has addresses of its own."""
    rows = rows.sort_by(_KEYS)
    pass_id = _ints(rows["pass_id"])
    stream, streams = label_codes(rows["stream"])
    on_thread = np.array([*(name == THREAD for name in streams), False])[stream]
    device = np.where(on_thread, ABSENT, _ints(rows["device"]))
    _, chain = np.unique(np.stack([device, stream.astype(np.int64)]), axis=1, return_inverse=True)
    kind_code, kinds = label_codes(rows["op"])
    boot = np.array([boots.get(int(number), 0) for number in np.unique(pass_id)], np.int64)
    boot_of_op = boot[np.unique(pass_id, return_inverse=True)[1]] if len(rows) else np.empty(0, np.int64)
    touches, tags, spaces = _touches(rows, boot_of_op)
    return Operations(
        rows,
        pass_id,
        chain.reshape(-1).astype(np.int64),
        on_thread,
        kinds,
        kind_code.astype(np.int64),
        _ints(rows["event"]),
        touches,
        tags,
        spaces,
    )


def _touches(rows: pa.Table, boot: Int64) -> tuple[Touches, tuple[str, ...], tuple[str, ...]]:
    """Reads come before writes; within each, in the order of issue."""
    columns = [rows[name].combine_chunks() for name in ("reads", "writes")]
    op = [pc.list_parent_indices(column).to_numpy() for column in columns]
    ranges = [pc.list_flatten(column) for column in columns]

    def joined(name: str) -> pa.ChunkedArray:
        return pa.chunked_array([pc.struct_field(part, name) for part in ranges])

    space, spaces = label_codes(joined("space").dictionary_encode())
    tag, tags = label_codes(_with_empty(joined("tag")))
    ops = np.concatenate(op).astype(np.int64)
    n_boots = int(boot.max(initial=0)) + 1
    touches = Touches(
        ops,
        np.repeat([False, True], [len(part) for part in ranges]),
        space.astype(np.int64) * n_boots + boot[ops],
        _ints(joined("from")),
        _ints(joined("to")),
        tag[1:].astype(np.int64),
    )
    return touches, tags, tuple(name for name in spaces for _ in range(n_boots))


def _with_empty(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """With the empty text first, so that its code is NO_TAG."""
    return pa.chunked_array([pa.array([""]), *texts.fill_null("").chunks]).dictionary_encode()


def _ints(column: pa.ChunkedArray) -> Int64:
    values: Int64 = column.cast(pa.int64()).fill_null(ABSENT).to_numpy()
    return values
