"""Turns Kineto's rows into the `events` table: what each row is, which process it belongs to, what it moved."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from profiler.importers.device_traces import unanswered_launches
from profiler.schema import EVENTS

# "Memcpy HtoD (Pinned -> Device)"; ROCm says "Memcpy HtoD (Host -> Device)", its older tracer "CopyHostToDevice"
_COPY_NAME: Final = re.compile(r"(?:Memcpy|Copy)\s*(\w+?)\s*(?:\((\w+) -> (\w+)\))?$")
_KIND_OF_WORD: Final[dict[str, str]] = {
    **dict.fromkeys(("htod", "htoa", "hosttodevice", "hosttodevice2d"), "h2d"),
    **dict.fromkeys(("dtoh", "atoh", "devicetohost", "devicetohost2d"), "d2h"),
    **dict.fromkeys(("dtod", "dtoa", "atod", "atoa", "ptop", "devicetodevice", "devicetodevice2d"), "d2d"),
    "1": "h2d",  # hipMemcpyKind, where only the host call's arguments tell
    "2": "d2h",
    "3": "d2d",
}
_MEMORY: Final = {"pinned": "pinned", "pageable": "pageable", "device": "device", "managed": "managed"}
_NO_STREAM: Final = (-1, 2**32 - 1)
MAX_FROM_MEDIAN_NS: Final = 30 * 24 * 3600 * 10**9


def without_strays(rows: pa.Table, dropped: Counter[str]) -> pa.Table:
    """Leave out rows whose clock is off (a known fault writes 0): more than 30 days from the median start."""
    if rows.num_rows == 0:
        return rows
    starts = rows["t_start"].to_numpy()
    far = np.abs(starts - np.int64(np.median(starts))) > MAX_FROM_MEDIAN_NS
    dropped["rows more than 30 days away from the rest of the trace"] += int(far.sum())
    return rows.filter(pa.array(~far)) if far.any() else rows


def events_table(rows: pa.Table, context: dict[str, pa.Array], dropped: Counter[str]) -> pa.Table:
    """The rows with a role other than annotation, as EVENTS; `context` has pass_id, ubatch, ... of each row."""
    launches = HostCalls(rows)
    named = _NamedRows(rows, launches)
    columns: dict[str, Any] = {
        "process": launches.process,
        "device": rows["device"],
        "stream": _streams(rows),
        "kind": named.kind,
        "name": rows["name"],
        "t_start": rows["t_start"],
        "t_end": rows["t_end"],
        "bytes": launches.n_bytes,
        "correlation_id": rows["correlation"],
        "source_memory": named.source_memory,
        "detail": named.detail,
        **context,
    }
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows.num_rows, field.type)
        for field in EVENTS
    ]
    lost = pc.and_(pc.is_null(named.kind), pc.equal(_text(rows["role"]), "copy"))
    dropped["copies from host to host or of an unknown direction"] += pc.sum(lost).as_py() or 0
    return pa.Table.from_arrays(arrays, schema=EVENTS).filter(pc.is_valid(named.kind))


class HostCalls:
    """Each row's host call: found by correlation id, which is unique in a process."""

    def __init__(self, rows: pa.Table) -> None:
        role = _decoded(rows["role"])
        correlation = _with_fill(rows["correlation"], -1)
        self._is_api: NDArray[np.bool_] = role == "api"
        api = np.flatnonzero(self._is_api & (correlation >= 0))
        order = api[np.argsort(correlation[api], kind="stable")]
        place = np.searchsorted(correlation[order], correlation)
        nearest = order[np.minimum(place, len(order) - 1)] if len(order) else np.zeros(len(role), np.int64)
        self.found: NDArray[np.bool_] = (
            (correlation[nearest] == correlation) & (correlation >= 0) if len(order) else np.zeros(len(role), bool)
        )
        self.row: NDArray[np.int64] = np.where(self.found, nearest, np.arange(len(role)))
        self.is_host: NDArray[np.bool_] = self._is_api | (role == "annotation")
        self._rows = rows

    @property
    def process(self) -> pa.Array:
        """The process of each row: a device row has its host call's, or the only one there is."""
        process = self._rows["process"].combine_chunks()
        known = process.filter(pa.array(self.is_host)).drop_null().unique()
        of_call = process.take(pa.array(self.row))
        return pc.coalesce(of_call, known[0]) if len(known) == 1 else of_call

    def unanswered(self) -> list[str]:
        """A sentence about launches that no device row names."""
        calls = np.flatnonzero(self._is_api)
        has_work = np.zeros(len(self.row), np.bool_)
        has_work[self.row[self.found & ~self.is_host]] = True
        names = self._rows["name"].combine_chunks()
        return unanswered_launches(names.indices.to_numpy()[calls], names.dictionary.to_pylist(), has_work[calls])

    @property
    def n_bytes(self) -> pa.Array:
        """What a copy moved, from its own row or, on ROCm, from its host call; null for all other rows."""
        n_bytes = self._rows["bytes"].combine_chunks()
        n_bytes = pc.if_else(pc.less(n_bytes, 0), None, n_bytes)
        moved = np.isin(_decoded(self._rows["role"]), ("copy", "memset"))
        return pc.if_else(pa.array(moved), pc.coalesce(n_bytes, n_bytes.take(pa.array(self.row))), None)

    @property
    def direction(self) -> pa.Array:
        """What the arguments of the row, or of its host call, say about the direction."""
        direction = _text(self._rows["direction"])
        return pc.coalesce(direction, direction.take(pa.array(self.row))).dictionary_encode()


class _NamedRows:
    """What role, name and arguments say about each row. Combinations are few: each is looked at once."""

    def __init__(self, rows: pa.Table, launches: HostCalls) -> None:
        labels = [rows["role"].combine_chunks(), rows["name"].combine_chunks(), launches.direction]
        sizes = [len(label.dictionary) + 1 for label in labels]  # one more for null
        codes = [pc.fill_null(label.indices, size - 1).to_numpy() for label, size in zip(labels, sizes, strict=True)]
        distinct, of_row = np.unique(np.ravel_multi_index(codes, sizes), return_inverse=True)
        texts = [[*label.dictionary.to_pylist(), ""] for label in labels]
        told = [
            _tell(*(texts[i][code] for i, code in enumerate(combination)))
            for combination in zip(*(part.tolist() for part in np.unravel_index(distinct, sizes)), strict=True)
        ]
        self.kind, self.detail, self.source_memory = (
            pa.array([one[i] for one in told], pa.string()).dictionary_encode().take(pa.array(of_row)) for i in range(3)
        )


def _tell(role: str, name: str, direction: str) -> tuple[str | None, str | None, str | None]:
    """(kind, detail, source memory) of a row; kind is null for a copy that cannot be placed."""
    if role == "kernel":
        return "compute", None, None
    if role == "memset":
        return "compute", "memset", None
    if role == "sync":
        return "sync", None, None
    if role == "copy":
        return _tell_copy(name, direction)
    return "api" if role == "api" else None, None, None


def _tell_copy(name: str, direction: str) -> tuple[str | None, str | None, str | None]:
    match = _COPY_NAME.search(name)
    word, source = (match[1].lower(), (match[2] or "").lower()) if match else ("", "")
    kind = _KIND_OF_WORD.get(word) or _KIND_OF_WORD.get(direction.lower())
    return kind, "peer" if word == "ptop" else None, _MEMORY.get(source)


def _streams(rows: pa.Table) -> pa.Array:
    """Stream numbers as text, `thread N` for host rows; null where a row is on no stream."""
    lane = rows["lane"].combine_chunks()
    lane = pc.if_else(pc.is_in(lane, pa.array(_NO_STREAM, pa.int64())), None, lane).dictionary_encode()
    number = pa.DictionaryArray.from_arrays(lane.indices, lane.dictionary.cast(pa.string())).cast(pa.string())
    thread = pc.binary_join_element_wise("thread", number, " ")
    return pc.if_else(pc.equal(_text(rows["role"]), "api"), thread, number).dictionary_encode()


def _text(labels: pa.ChunkedArray) -> pa.Array:
    return labels.combine_chunks().cast(pa.string())


def _decoded(labels: pa.ChunkedArray) -> NDArray[Any]:
    decoded: NDArray[Any] = _text(labels).to_numpy(zero_copy_only=False)
    return decoded


def _with_fill(column: pa.ChunkedArray, fill: int) -> NDArray[np.int64]:
    filled: NDArray[np.int64] = pc.fill_null(column, fill).to_numpy()
    return filled
