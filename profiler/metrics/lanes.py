"""Which lane of a timeline a row belongs to: decided for the few kinds of rows that there are, not for every row."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from profiler.arithmetic.intervals import Int64
from profiler.metrics.events import Codes, ints, labels, role_of
from profiler.metrics.groups import Mask, group_by, sum_by
from profiler.metrics.roles import ABSENT
from profiler.schema import KERNEL_STREAM

# In the order of the lanes of one device.
CATEGORIES: Final = ("h2d", "d2h", "d2d", "compute", "wait", "cpu_compute", "api")
_HOST_CATEGORIES: Final = ("cpu_compute", "api")
_STREAM_CATEGORIES: Final = ("h2d", "d2h", "d2d", "compute")
_CATEGORY_OF_KIND: Final = {name: name for name in CATEGORIES} | {"sync": "wait"}
MAX_STREAMS: Final = 8  # lanes a category of a device is split into, at most


class Lane(NamedTuple):
    """One line of the drawing. `process` and `device` are null where the rows do not say; `stream` where merged."""

    category: str
    process: int | None
    device: int | None
    stream: str | None


class Kinds(NamedTuple):
    """The kinds of rows that a table has: a process's, on a device, on a stream, of a category.

    `of_row` is each row's kind; the others have one element a kind, ABSENT where its rows do not say.
    """

    of_row: Int64
    process: Int64
    device: Int64  # ABSENT also of what ran on the host
    stream: Int64  # indexes stream_names
    category: Int64  # indexes CATEGORIES
    role: Codes
    stream_names: tuple[str, ...]

    @classmethod
    def of(cls, table: pa.Table) -> Kinds:
        """Of a table with the columns process, device, stream, kind and detail."""
        coded = {name: labels(table[name]) for name in ("stream", "kind", "detail")}
        numbers = {name: ints(table[name], np.int64) for name in ("process", "device")}
        found = group_by(numbers | {name: codes for name, (codes, _) in coded.items()})
        kinds, details = ([*coded[name][1], None] for name in ("kind", "detail"))  # ABSENT is -1, the last
        pairs = [
            (kinds[kind], details[detail])
            for kind, detail in zip(found.keys["kind"].tolist(), found.keys["detail"].tolist(), strict=True)
        ]
        category = np.array([CATEGORIES.index(_CATEGORY_OF_KIND.get(kind or "", "api")) for kind, _ in pairs], np.int64)
        return cls(
            of_row=found.of_row,
            process=found.keys["process"],
            device=np.where(_is_of(category, _HOST_CATEGORIES), ABSENT, found.keys["device"]),
            stream=found.keys["stream"],
            category=category,
            role=np.array([role_of(*pair) for pair in pairs], np.int8),
            stream_names=coded["stream"][1],
        )

    def lanes(self, length: Int64 | None) -> tuple[tuple[Lane, ...], Int64]:
        """The lanes in the order to draw them, and the lane of each kind.

        length: of every row, for a lane a stream where something copies or computes, at most MAX_STREAMS a category,
        the least busy ones together; null: a lane a category, and one of the kernels that ran inside steps.
        """
        stream = self._kernels_apart() if length is None else self._busiest(length)
        groups = group_by(self._parents | {"stream": stream})
        keys = (groups.keys[name].tolist() for name in ("process", "device", "category", "stream"))
        lanes = [
            Lane(CATEGORIES[c], _known(p), _known(d), self.stream_names[s] if s >= 0 else None)
            for p, d, c, s in zip(*keys, strict=True)
        ]
        # Host rows say no device, which sorts first; a reader looks for the devices first.
        places = sorted(range(len(lanes)), key=lambda i: (groups.keys["process"][i], lanes[i].device is None, i))
        rank = np.empty(len(lanes), np.int64)
        rank[places] = np.arange(len(lanes))
        return tuple(lanes[i] for i in places), rank[groups.of_row]

    @property
    def _parents(self) -> dict[str, Int64]:
        return {"process": self.process, "device": self.device, "category": self.category}

    def _kernels_apart(self) -> Int64:
        """The stream of kernels that ran inside steps, whose rows they would cover; ABSENT for all else."""
        is_kernel = np.array([name == KERNEL_STREAM for name in self.stream_names] + [False], np.bool_)
        return np.where(is_kernel[self.stream], self.stream, ABSENT)

    def _busiest(self, length: Int64) -> Int64:
        """The stream of what copies or computes; ABSENT for all but the busiest of an overfull category."""
        on_stream = _is_of(self.category, _STREAM_CATEGORIES)
        lanes = group_by(self._parents | {"stream": np.where(on_stream, self.stream, ABSENT)})
        busy = lanes.sum(sum_by(self.of_row, length, len(self.process)))
        parents = group_by({name: lanes.keys[name] for name in self._parents})
        by_busy = np.lexsort((-busy, parents.of_row))
        rank = np.empty(len(lanes), np.int64)
        rank[by_busy] = np.arange(len(lanes)) - np.searchsorted(parents.of_row[by_busy], parents.of_row[by_busy])
        n_streams = parents.count()[parents.of_row]
        merged = (rank >= MAX_STREAMS - 1) & (n_streams > MAX_STREAMS)
        return np.where(merged | (n_streams == 1), ABSENT, lanes.keys["stream"])[lanes.of_row]


def _is_of(category: Int64, names: tuple[str, ...]) -> Mask:
    is_one: Mask = np.array([name in names for name in CATEGORIES])[category]
    return is_one


def _known(value: int) -> int | None:
    return None if value == ABSENT else value
