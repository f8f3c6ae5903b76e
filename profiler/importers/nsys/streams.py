"""Stream labels. A stream number means something only inside its context of its process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from profiler.arithmetic.joins import distinct
from profiler.importers.nsys import enums
from profiler.importers.nsys.places import Places
from profiler.importers.nsys.recorded import Recorded
from profiler.importers.nsys.rows import ABSENT, Rows, kind_code, look_up
from profiler.importers.nsys.tables import NULL, Int64, Tables, first_present

_KEY: Final = ("processId", "contextId", "streamId")
_CONTEXT: Final = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM")
_STREAM_FLAGS: Final = {1: "default", 2: "non-blocking", 3: "null"}
_MAX_LISTED: Final = 256
_MAX_PACKED: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Streams:
    """A label for each row (negative: none), and the (process, device, context, stream) that rows lie on."""

    codes: Int64
    labels: list[str]
    keys: Int64  # (number of streams, 4)


def label_streams(recorded: Recorded, places: Places) -> Streams:
    """Device streams are their number, with `context/` before it where a process has the number twice.

    Streams on which hprof's own ranges computed or copied are "compute" and "copy", as in its captures; calls
    of the host are on "thread N".
    """
    rows, n_calls = recorded.rows, recorded.n_calls
    threads, thread_line = distinct(rows["thread"][:n_calls])
    others = rows.part(slice(n_calls, len(rows)))
    keys, line = _distinct_streams(others)
    codes = np.concatenate([thread_line, np.where(others["stream"] == NULL, ABSENT, line + len(threads))])
    texts = [f"thread {thread & enums.ID_MASK}" for thread in threads.tolist()]
    roles = _roles(others, places, keys, line)
    texts += [role or text for role, text in zip(roles, _numbers(keys), strict=True)]
    # Two processes may have the same number: one label for both.
    labels = list(dict.fromkeys(texts))
    code_of = {text: code for code, text in enumerate(labels)}
    return Streams(look_up(np.array([code_of[text] for text in texts], np.int64), codes, ABSENT), labels, keys)


def stream_facts(tables: Tables, streams: Streams) -> list[dict[str, Any]]:
    """What the export says of the streams in use: name, kind, priority."""
    used = {(process & enums.ID_MASK, context, stream) for process, _, context, stream in streams.keys.tolist()}
    names = {_key(row): row["name"] for row in tables.small("TARGET_INFO_NVTX_CUDA_STREAM", ["name", *_KEY])}
    table = first_present(tables, *_CONTEXT)
    null_column = "nullStreamId" if table == _CONTEXT[0] else "streamId"
    null = {
        (row["processId"], row["contextId"]): row[null_column]
        for row in tables.small(table, ["processId", "contextId", null_column])
    }
    facts = []
    for row in tables.small("TARGET_INFO_CUDA_STREAM", [*_KEY, "priority", "flag"]):
        if (key := _key(row)) in used:
            is_null = row["flag"] == 3 or null.get(key[:2]) == key[2]
            kind = "null" if is_null else _STREAM_FLAGS.get(row["flag"])
            fact = {"process": key[0], "context": key[1], "stream": key[2], "kind": kind}
            facts.append(fact | {"name": names.get(key), "priority": _signed(row["priority"])})
    return facts[:_MAX_LISTED]


def _distinct_streams(rows: Rows) -> tuple[Int64, Int64]:
    """The distinct (process, device, context, stream), one a line, and the line of each row."""
    names = ("process", "device", "context", "stream")
    packed = np.zeros(len(rows), np.int64)
    for name in names:
        values, code = distinct(rows[name])
        if len(packed) and len(values) * (int(packed.max()) + 1) > _MAX_PACKED:
            packed = distinct(packed)[1]
        packed = packed * len(values) + code
    found, line = distinct(packed)
    first = np.zeros(len(found), np.int64)
    first[line[::-1]] = np.arange(len(line))[::-1]
    return np.stack([rows[name][first] for name in names], axis=1), line


def _numbers(keys: Int64) -> list[str]:
    contexts: dict[tuple[int, int], set[int]] = {}
    for process, _, context, stream in keys.tolist():
        contexts.setdefault((process, stream), set()).add(context)
    return [
        f"{context}/{stream}" if len(contexts[process, stream]) > 1 else str(stream)
        for process, _, context, stream in keys.tolist()
    ]


def _roles(others: Rows, places: Places, keys: Int64, line: Int64) -> list[str | None]:
    """ "compute" and "copy" for the stream of each device that hprof's compute and copy ranges used most."""
    if places.in_compute_step is None or places.in_copy_step is None:
        return [None] * len(keys)
    last = slice(len(places.in_copy_step) - len(others), None)
    computes = places.in_compute_step[last] & (others["kind"] == kind_code("compute"))
    copies = places.in_copy_step[last] & (others["kind"] == kind_code("h2d"))
    roles: list[str | None] = [None] * len(keys)
    for role, mask in (("compute", computes), ("copy", copies)):
        count = np.bincount(line[mask], minlength=len(keys))
        taken: set[tuple[int, int]] = set()
        for index in np.argsort(-count, kind="stable").tolist():
            device = (int(keys[index, 0]), int(keys[index, 1]))
            if count[index] and roles[index] is None and device not in taken:
                roles[index] = role
                taken.add(device)
    return roles


def _key(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["processId"], row["contextId"], row["streamId"]


def _signed(priority: Any) -> int | None:
    """-5 is stored as 4294967291."""
    if not isinstance(priority, int):
        return None
    return priority - (1 << 32) if priority >= 1 << 31 else priority
