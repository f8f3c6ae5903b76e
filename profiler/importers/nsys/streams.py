"""Stream labels. A stream number means something only inside its context of its process."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from profiler.importers.nsys import enums
from profiler.importers.nsys.places import Places
from profiler.importers.nsys.rows import ABSENT, Mask, Rows, distinct, kind_code
from profiler.importers.nsys.tables import NULL, Int64, Tables, first_present

_KEY: Final = ("processId", "contextId", "streamId")
_CONTEXT: Final = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM")
_STREAM_FLAGS: Final = {1: "default", 2: "non-blocking", 3: "null"}
_MAX_LISTED: Final = 256


def stream_labels(rows: Rows, places: Places) -> tuple[Int64, list[str]]:
    """A code for each row, and what the codes mean.

    Device streams are their number, with `context/` before it where a process has the number twice; streams on
    which hprof's own ranges computed or copied are "compute" and "copy" as in its captures; calls of the host
    are their thread.
    """
    on_host = (rows["thread"] != NULL) & (rows["kind"] == kind_code("api"))
    on_device = ~on_host & (rows["stream"] != NULL)
    codes = np.full(len(rows), ABSENT)
    texts: list[str] = []
    threads, inverse = distinct(rows["thread"][on_host])
    codes[on_host] = inverse
    texts += [f"thread {thread & enums.ID_MASK}" for thread in threads.tolist()]
    keys, inverse = _distinct_streams(rows.where(on_device))
    codes[on_device] = inverse + len(texts)
    roles = _roles(rows, places, on_device, keys, inverse)
    texts += [role or text for role, text in zip(roles, _numbers(keys), strict=True)]
    # Two processes may have the same number: one label for both.
    labels = list(dict.fromkeys(texts))
    code_of = {text: code for code, text in enumerate(labels)}
    translation = np.array([code_of[text] for text in texts] + [ABSENT], np.int64)
    return translation[codes], labels


def stream_facts(tables: Tables, used: set[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """What the export says of the (process, context, stream) that carried work: name, kind, priority."""
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


def used_streams(rows: Rows) -> set[tuple[int, int, int]]:
    """(pid, context, stream) of every stream that carries a device row."""
    keys, _ = _distinct_streams(rows.where((rows["device"] != NULL) & (rows["stream"] != NULL)))
    return {(process & enums.ID_MASK, context, stream) for process, _, context, stream in keys.tolist()}


def _distinct_streams(rows: Rows) -> tuple[Int64, Int64]:
    """The distinct (process, device, context, stream), one a line, and the line of each row."""
    line = np.zeros(len(rows), np.int64)
    for name in ("process", "device", "context", "stream"):
        values, code = distinct(rows[name])
        _, line = distinct(line * len(values) + code)
    first = np.zeros(int(line.max()) + 1 if len(line) else 0, np.int64)
    first[line[::-1]] = np.arange(len(line))[::-1]
    return np.stack([rows[n][first] for n in ("process", "device", "context", "stream")], axis=1), line


def _numbers(keys: Int64) -> list[str]:
    contexts: dict[tuple[int, int], set[int]] = {}
    for process, _, context, stream in keys.tolist():
        contexts.setdefault((process, stream), set()).add(context)
    return [
        f"{context}/{stream}" if len(contexts[process, stream]) > 1 else str(stream)
        for process, _, context, stream in keys.tolist()
    ]


def _roles(rows: Rows, places: Places, on_device: Mask, keys: Int64, line: Int64) -> list[str | None]:
    """ "compute" and "copy" for the stream of each device that hprof's compute and copy ranges used most."""
    computes = places.in_compute_step & (rows["kind"] == kind_code("compute"))
    copies = places.in_copy_step & (rows["kind"] == kind_code("h2d"))
    roles: list[str | None] = [None] * len(keys)
    for role, mask in (("compute", computes), ("copy", copies)):
        count = np.bincount(line[mask[on_device]], minlength=len(keys))
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
