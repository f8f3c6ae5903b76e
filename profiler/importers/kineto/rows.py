"""Picks the rows that hprof keeps out of a chunk of parsed events, as typed columns with exact integers.

A row's category says what it is, in the names that any age of Kineto gave it. Times become int64 ns without
losing a nanosecond to a float.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from executor.arrays import Flags, Int64
from profiler.importers.dropping import MAX_NS, impossible_times, kept_rows, scaled_ns
from profiler.importers.kineto.stream import NO_EVENT, Event

# category -> role; before torch 1.12 categories were capitalised words
ROLES: Final[dict[str, str]] = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "copy",
    "Memcpy": "copy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "cuda_sync": "sync",
    "cuda_runtime": "api",
    "Runtime": "api",
    "cuda_driver": "api",
    "hip_runtime": "api",
    "xpu_runtime": "api",
    "xpu_driver": "api",
    "user_annotation": "annotation",
    "UserAnnotation": "annotation",
}
OPERATOR_ROLES: Final = ROLES | {"cpu_op": "operator", "Operator": "operator"}  # where the host's work is read too
ON_HOST: Final = ("api", "annotation", "operator")
_WITH_BYTES: Final = ("copy", "memset", "api")
ON_DEVICE: Final = ("kernel", "copy", "memset", "sync")
# flow arrows repeat the correlation id, and rows without a category name processes and threads
_KNOWN: Final = frozenset({*ROLES, "", "ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "Trace"})
# how a row of each role is called where it is left out
_CALLED: Final = {"sync": "synchronisation", "api": "API call"}

COLUMNS: Final = pa.schema(
    [
        ("role", pa.dictionary(pa.int32(), pa.string())),
        ("name", pa.dictionary(pa.int32(), pa.string())),
        ("t_start", pa.int64()),
        ("t_end", pa.int64()),
        ("device", pa.int64()),  # null for host rows
        ("lane", pa.int64()),  # stream of a device row, thread of a host row
        ("process", pa.int64()),  # host rows only; the number at the end of the process id
        ("rank", pa.dictionary(pa.int32(), pa.string())),  # what stands before that number, where it is text
        ("correlation", pa.int64()),
        ("bytes", pa.int64()),
        ("direction", pa.dictionary(pa.int32(), pa.string())),  # what the arguments say, for names that do not
    ]
)


@dataclass(slots=True)
class RowCollector:
    """Gathers the kept rows chunk by chunk; counts those that had to be dropped, by reason."""

    dropped: Counter[str] = field(default_factory=Counter)
    not_read: Counter[str] = field(default_factory=Counter)  # category -> events that hold no GPU work, no host call
    roles: Mapping[str, str] = field(default_factory=lambda: ROLES)  # category -> role of the rows to keep
    n_events: int = 0  # objects with a `ph`, which every event of Chrome's format has
    _tables: list[pa.Table] = field(default_factory=list)

    def add(self, events: Sequence[Event]) -> None:
        """Take one chunk; raises InexactError, before anything is kept, when its times are needed as text."""
        categories = _texts(events, "cat")
        groups: dict[str, list[Event]] = {}
        for event, category in zip(events, categories, strict=True):
            if category in self.roles and event.get("ph") == "X":
                groups.setdefault(self.roles[category], []).append(event)
        dropped: Counter[str] = Counter()
        self._tables += [_table(role, group, dropped) for role, group in groups.items()]
        counts = Counter(categories)
        known = sum(n for category, n in counts.items() if category in self.roles)
        dropped["events of a kept category without a duration"] += known - sum(map(len, groups.values()))
        n_events = sum("ph" in event for event in events)
        dropped[NO_EVENT] += len(events) - n_events
        self.n_events += n_events
        self.dropped += dropped
        self.not_read += Counter(
            {category[:40]: n for category, n in counts.items() if category not in {*_KNOWN, *self.roles}}
        )

    def table(self) -> pa.Table:
        """All rows of all chunks, one array a column."""
        if not self._tables:
            return COLUMNS.empty_table()
        return pa.concat_tables(self._tables).unify_dictionaries().combine_chunks()


def _table(role: str, events: Sequence[Event], dropped: Counter[str]) -> pa.Table:
    start, valid_start = exact_ns([event.get("ts") for event in events])
    duration, valid_duration = exact_ns([event.get("dur") for event in events])
    end = start + duration
    times = impossible_times(start, end, ~(valid_start & valid_duration))
    kept = kept_rows(_CALLED.get(role, role), times, dropped)
    arguments = [args if type(args := event.get("args")) is dict else {} for event in events]
    columns: dict[str, pa.Array] = {
        "role": pa.DictionaryArray.from_arrays(np.zeros(len(events), np.int32), [role]),
        "name": pa.array(_texts(events, "name")).dictionary_encode(),
        "t_start": pa.array(start),
        "t_end": pa.array(end),
        "correlation": integers([args.get("correlation") for args in arguments]),
        **(_device_columns(events, arguments) if role in ON_DEVICE else _host_columns(events)),
        **(_copy_columns(arguments) if role in _WITH_BYTES else {}),
    }
    whole = [columns.get(name.name) for name in COLUMNS]
    filled = [
        pa.nulls(len(events), kind.type) if array is None else array.cast(kind.type)
        for array, kind in zip(whole, COLUMNS, strict=True)
    ]
    return pa.Table.from_arrays(filled, schema=COLUMNS).filter(pa.array(kept))


def _device_columns(events: Sequence[Event], arguments: Sequence[Event]) -> dict[str, pa.Array]:
    pairs = list(zip(events, arguments, strict=True))
    device = [args["device"] if "device" in args else _device_of(event, args) for event, args in pairs]
    stream = [args["stream"] if "stream" in args else _number_in(event.get("tid")) for event, args in pairs]
    numbers = integers(device)
    in_range = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, 2**31))
    lane = {"device": pc.if_else(in_range, numbers, None), "lane": integers(stream)}
    return lane | _ranks([event.get("pid") for event in events])


def _host_columns(events: Sequence[Event]) -> dict[str, pa.Array]:
    pids = [event.get("pid") for event in events]
    ranks = _ranks(pids)
    process = integers([_number_at_end(pid) for pid in pids] if ranks else pids)
    return {"process": process, "lane": integers([event.get("tid") for event in events])} | ranks


def _ranks(pids: Sequence[object]) -> dict[str, pa.Array]:
    """What merged traces write before the process id: "[TP01] 4000" is process 4000 of "[TP01]"."""
    if str not in set(map(type, pids)):
        return {}
    texts = [_PID.match(pid[:_MAX_PID_CHARS]) if type(pid) is str else None for pid in pids]
    labels = [text["label"] or None if text else None for text in texts]
    return {"rank": pa.array(labels, pa.string()).dictionary_encode()}


def _number_at_end(pid: object) -> Any:
    found = _PID.match(pid[:_MAX_PID_CHARS]) if type(pid) is str else None
    return found["number"] if found else pid


def _copy_columns(arguments: Sequence[Event]) -> dict[str, pa.Array]:
    """Sizes, and ROCm's `kind`: a word on device rows, the number of hipMemcpyKind on host rows."""
    kinds = [args.get("kind", args.get("copyKind")) for args in arguments]
    words = [None if kind is None else str(kind)[:40] for kind in kinds]
    return {
        "bytes": integers([args["bytes"] if "bytes" in args else args.get("size") for args in arguments]),
        "direction": pa.array(words, pa.string()).dictionary_encode(),
    }


def _device_of(event: Event, args: Event) -> Any:
    """Peer copies name the device that they run in; very old rows only have it as their process."""
    return args["inDevice"] if "inDevice" in args else _number_in(event.get("pid"))


_PID: Final = re.compile(r"(?P<label>.*?)\s*(?P<number>\d{1,18})?$", re.DOTALL)
_MAX_PID_CHARS: Final = 100


def _number_in(value: object) -> Any:
    """The trailing number of "stream 7" or "GPU 0"; other values as they are."""
    if type(value) is not str:
        return value
    digits = value.rsplit(" ", 1)[-1]
    return digits if len(digits) < 20 else None


def _texts(events: Sequence[Event], key: str) -> list[str]:
    values: list[Any] = [event.get(key) for event in events]
    if set(map(type, values)) != {str}:
        values = [value if type(value) is str else "" for value in values]
    return values


_INT64_MAX: Final = 2**63 - 1
_MAX_DIGITS: Final = 64
# A double below 2**43 us lies within 2**-11 us = 0.49 ns of its decimal text, and its product with 1000 is
# below 2**53: rounding gives the text's own nanosecond. From 2**43 us (102 days) up it may not.
EXACT_US: Final = 2.0**43


class InexactError(Exception):
    """A time came as a float too large to hold its nanoseconds; its text is needed."""


def exact_ns(values: Sequence[object]) -> tuple[Int64, Flags]:
    """Microseconds (int, float, or decimal text) as (int64 ns, mask of those that are numbers in range).

    Digits below a nanosecond are rounded half to even. Raises InexactError where a float cannot be exact.
    """
    array = _plain_array(values)
    if array is None:
        return _three_decimals(values) or _slow_ns(values)
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            valid = np.abs(array) < MAX_NS // 1000
        if (np.abs(array[valid]) >= EXACT_US).any():
            raise InexactError
        return np.rint(np.where(valid, array, 0) * 1000).astype(np.int64), valid
    return scaled_ns(array, 1000)


def integers(values: Sequence[object]) -> pa.Array:
    """Whole numbers (int, or digits in a string: some writers quote them) as int64; null for all else."""
    if float not in set(map(type, values)):  # arrow would cut 1.5 down to 1
        try:
            return pa.array(values, pa.int64())
        except (pa.ArrowException, OverflowError):
            pass
    return pa.array([_int_of(value) for value in values], pa.int64())


def _plain_array(values: Sequence[object]) -> NDArray[Any] | None:
    """`values` as int64 or float64; None when they hold anything but ints that fit and floats."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    if array.ndim != 1 or array.dtype.kind not in "if":
        return None
    # numpy turns True into 1 and, beside a float, a large int into a rounded float
    if array.dtype.kind == "f":
        return array if _all_exact_floats(values) else None
    return array.astype(np.int64, copy=False) if bool not in set(map(type, values)) else None


def _three_decimals(values: Sequence[object]) -> tuple[Int64, Flags] | None:
    """Text as Kineto itself writes microseconds: without its point it is the integer nanosecond."""
    if set(map(type, values)) != {str}:
        return None
    text = pa.array(values, pa.string())
    if not pc.all(pc.match_substring_regex(text, r"^-?[0-9]{1,15}\.[0-9]{3}$")).as_py():
        return None
    ns = pc.cast(pc.replace_substring(text, ".", "", max_replacements=1), pa.int64())
    return ns.to_numpy(), np.ones(len(values), dtype=bool)


def _all_exact_floats(values: Sequence[object]) -> bool:
    types = set(map(type, values))
    if types == {float}:
        return True
    return types == {float, int} and all(abs(v) < EXACT_US for v in values if type(v) is int)


def _slow_ns(values: Sequence[object]) -> tuple[Int64, Flags]:
    converted = [_ns_of(value) for value in values]
    valid = np.array([value is not None for value in converted], dtype=bool)
    return np.array([value or 0 for value in converted], dtype=np.int64), valid


def _ns_of(value: object) -> int | None:
    if type(value) is float and abs(value) >= EXACT_US and abs(value) < MAX_NS // 1000:
        raise InexactError
    if type(value) not in (int, float, str) or len(text := str(value)) > _MAX_DIGITS:
        return None
    try:
        ns = Decimal(text) * 1000
        return _in_range(int(ns.to_integral_value())) if ns.is_finite() and abs(ns) < MAX_NS else None
    except ArithmeticError:  # no number, or one beyond what Decimal can hold: "1e999999999"
        return None


def _int_of(value: object) -> int | None:
    if type(value) is int:
        return _in_range(value)
    if type(value) is float:
        return _in_range(int(value)) if value.is_integer() and abs(value) < 2**53 else None
    if type(value) is str and len(value) < 20:
        digits = value.removeprefix("-")
        return _in_range(int(value)) if digits.isascii() and digits.isdigit() else None
    return None


def _in_range(value: int) -> int | None:
    return value if abs(value) <= _INT64_MAX else None
