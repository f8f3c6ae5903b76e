"""What events have in common, written once: many events, few combinations of name, tensor, layer and size."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dashboard.timeline.columns import smallest_unsigned
from profiler.metrics.events import labels
from profiler.metrics.groups import group_by

_LABELS: Final = ("name", "tensor", "source_memory", "detail")
_NUMBERS: Final = ("layer", "n_tokens", "n_experts", "slot", "bytes", "whole_bytes")
SIGNATURE_COLUMNS: Final = (*_LABELS, *_NUMBERS)
MAX_LABEL_CHARS: Final = 300  # kernels of template libraries have names of many kilobytes
_ABSENT: Final = -1


def signatures(rows: pa.Table) -> tuple[dict[str, np.ndarray], list[str]]:
    """`signature` (one number a row), a column `of_NAME` for each of SIGNATURE_COLUMNS, and the texts they index.

    Null is -1. Texts longer than MAX_LABEL_CHARS are cut, with an ellipsis.
    """
    columns: dict[str, np.ndarray] = {}
    texts: list[str] = []
    for name in _LABELS:
        codes, names = labels(rows[name])
        used = np.zeros(len(names) + 1, np.bool_)  # null is -1, the last
        used[codes] = True
        used[-1] = False
        places = np.where(used, np.cumsum(used) - 1 + len(texts), _ABSENT)
        texts += [_short(names[code]) for code in np.flatnonzero(used).tolist()]
        columns[name] = places[codes]
    for name in _NUMBERS:
        columns[name] = pc.fill_null(rows[name], _ABSENT).to_numpy()
    groups = group_by(columns)
    found = {"signature": smallest_unsigned(groups.of_row)}
    found |= {f"of_{name}": _typed(name, groups.keys[name]) for name in SIGNATURE_COLUMNS}
    return found, texts


def _typed(name: str, values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64 if name in ("bytes", "whole_bytes") else np.int32)


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1] + "…"
