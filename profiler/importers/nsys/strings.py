"""StringIds and our own labels in one list, so that every name in the events is a small code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from profiler.importers.nsys.rows import ABSENT
from profiler.importers.nsys.tables import NULL, Int64, Tables

_API_VERSION: Final = re.compile(r"_v\d+$")


class Labels:
    """Codes for texts. `code(text)` for one, `of_ids(ids)` for a column of StringIds; ABSENT where unknown."""

    def __init__(self, tables: Tables) -> None:
        ids = tables.ints("StringIds", ["id"])["id"]
        values = tables.texts("StringIds", "value")
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._values = values.take(order)
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The code of a text, a new one where needed."""
        return self._codes.setdefault(text, len(self._codes))

    def of_ids(self, ids: Int64, clean: Callable[[str], str] | None = None) -> Int64:
        """Codes of StringIds; `clean` changes a text first. A repeated id means its first row."""
        if len(self._ids) == 0:
            return np.full(len(ids), ABSENT)
        at = np.searchsorted(self._ids, ids)
        at[at == len(self._ids)] = 0
        known = (self._ids[at] == ids) & (ids != NULL)
        return np.where(known, self._translation(at[known], clean)[at], ABSENT)

    def of_texts(self, texts: pa.ChunkedArray) -> Int64:
        """Codes of a text column."""
        encoded = texts.dictionary_encode().unify_dictionaries().combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = pa.concat_arrays(encoded.chunks) if encoded.num_chunks else None
        if encoded is None or len(encoded.dictionary) == 0:
            return np.full(len(texts), ABSENT)
        translation = np.array([self.code(text) for text in encoded.dictionary.to_pylist()] + [ABSENT])
        indices: Int64 = encoded.indices.fill_null(ABSENT).to_numpy(zero_copy_only=False)
        return translation[indices]

    @property
    def texts(self) -> list[str]:
        """All texts, by code."""
        return list(self._codes)

    def _translation(self, used_rows: Int64, clean: Callable[[str], str] | None) -> Int64:
        used = np.zeros(len(self._ids), np.bool_)
        used[used_rows] = True
        rows = np.flatnonzero(used)
        codes = np.full(len(self._ids), ABSENT)
        for row, text in zip(rows.tolist(), self._values.take(rows).to_pylist(), strict=True):
            if text is not None:
                codes[row] = self.code(clean(text) if clean else text)
        return codes


def api_name(text: str) -> str:
    """`cudaMemcpyAsync_v3020` -> `cudaMemcpyAsync`: runtime calls carry the version that introduced them."""
    return _API_VERSION.sub("", text)
