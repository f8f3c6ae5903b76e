"""StringIds and our own labels in one list, so that every name in the events is a small code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from profiler.importers.nsys.rows import ABSENT, Mask
from profiler.importers.nsys.tables import NULL, Int64, Tables, check_aligned

_MAX_TABLE: Final = 1 << 21
_API_VERSION: Final = re.compile(r"_v\d+$")


class Labels:
    """Codes for texts. `code(text)` for one, `of_ids(ids)` for a column of StringIds; ABSENT where unknown."""

    def __init__(self, tables: Tables) -> None:
        ids = tables.ints("StringIds", ["id"])["id"]
        values = tables.texts("StringIds", "value")
        check_aligned("StringIds", ids, values)
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._values = values.combine_chunks().take(pa.array(order))
        self._codes: dict[str, int] = {}
        self._row_of_id: Int64 | None = None
        if len(order) and self._ids[0] >= 0 and self._ids[-1] < _MAX_TABLE:
            self._row_of_id = np.zeros(self._ids[-1] + 1, np.int64)
            self._row_of_id[self._ids[::-1]] = np.arange(len(order))[::-1]

    def code(self, text: str) -> int:
        """The code of a text, a new one where needed."""
        return self._codes.setdefault(text, len(self._codes))

    def of_ids(self, ids: Int64, clean: Callable[[str], str] | None = None) -> Int64:
        """Codes of StringIds; `clean` changes a text first. A repeated id means its first row."""
        if self._row_of_id is not None:
            return self._of_small_ids(ids, self._row_of_id, clean)
        at, known = self._find(ids)
        if len(self._ids) == 0:
            return at
        return np.where(known, self._translation(at[known], clean)[at], ABSENT)

    def _of_small_ids(self, ids: Int64, row_of_id: Int64, clean: Callable[[str], str] | None) -> Int64:
        """As `of_ids`, by a table of codes by id: a trace has many rows and few names."""
        none = len(row_of_id)
        place = np.where((ids >= 0) & (ids < none), ids, none)
        is_used = np.zeros(none + 1, np.bool_)
        is_used[place] = True
        used = np.flatnonzero(is_used[:none])
        used = used[self._ids[row_of_id[used]] == used]
        codes = np.full(none + 1, ABSENT)
        codes[used] = self._translation(row_of_id[used], clean)[row_of_id[used]]
        return codes[place]

    def _find(self, ids: Int64) -> tuple[Int64, Mask]:
        """Where each id lies among the sorted ones (ABSENT where there are none), and whether it is there."""
        if len(self._ids) == 0:
            return np.full(len(ids), ABSENT), np.zeros(len(ids), np.bool_)
        at = self._rows_of(ids)
        return at, (self._ids[at] == ids) & (ids != NULL)

    def _rows_of(self, ids: Int64) -> Int64:
        """Some row for each id; the right one where the id is there. Usual ids are small: a table of them."""
        if self._row_of_id is not None:
            return self._row_of_id[np.clip(ids, 0, len(self._row_of_id) - 1)]
        at = np.searchsorted(self._ids, ids)
        at[at == len(self._ids)] = 0
        return at

    def values_of_ids(self, ids: Int64) -> tuple[Int64, pa.StringArray]:
        """For columns with names by the 100,000: codes into the strings beside them, ABSENT where unknown."""
        at, known = self._find(ids)
        used = np.zeros(len(self._ids), np.bool_)
        used[at[known]] = True
        codes = np.cumsum(used) - 1
        strings = self._values.filter(pa.array(used))
        return (np.where(known, codes[at], ABSENT) if len(codes) else at), strings

    @property
    def texts(self) -> list[str]:
        """All texts, by code."""
        return list(self._codes)

    def _translation(self, used_rows: Int64, clean: Callable[[str], str] | None) -> Int64:
        used = np.zeros(len(self._ids), np.bool_)
        used[used_rows] = True
        rows = np.flatnonzero(used)
        codes = np.full(len(self._ids), ABSENT)
        for row, text in zip(rows.tolist(), self._values.take(pa.array(rows)).to_pylist(), strict=True):
            if text is not None:
                codes[row] = self.code(clean(text) if clean else text)
        return codes


def api_name(text: str) -> str:
    """`cudaMemcpyAsync_v3020` -> `cudaMemcpyAsync`: runtime calls carry the version that introduced them."""
    return _API_VERSION.sub("", text)
