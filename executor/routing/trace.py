"""A recorded routing: CSV `pos,layer,id0,id1,…`, one row a token and MoE layer, read with bounds and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.errors import HprofError

_MAX_BYTES: Final = 2**30
_LAST_LAYER: Final = 9999


def read_trace(path: Path, n_experts: int, n_used: int) -> dict[int, NDArray[np.int64]]:
    """Layer -> experts (positions, n_used), in order of position.

    HprofError where the file is absent, too large, not such a CSV, or names experts or positions that cannot be.
    """
    header, rows = _table(path)
    if header != ["pos", "layer", *(f"id{i}" for i in range(n_used))]:
        raise HprofError(
            f"{path}: its columns are {','.join(header)[:80]}, but a trace for this model has pos,layer and "
            f"id0 to id{n_used - 1}, one for each expert that a token uses."
        )
    if ((rows[:, 1] < 0) | (rows[:, 1] > _LAST_LAYER)).any():
        raise HprofError(f"{path}: layers must lie from 0 to {_LAST_LAYER}; write pos,layer,id0,… rows.")
    ids = rows[:, 2:]
    wrong = ((ids < 0) | (ids >= n_experts)).any(axis=1) | (np.diff(np.sort(ids, axis=1), axis=1) == 0).any(axis=1)
    if wrong.any():
        raise HprofError(
            f"{path}, line {np.flatnonzero(wrong)[0] + 2}: the expert ids must differ and lie from 0 to "
            f"{n_experts - 1}."
        )
    return {int(layer): _layer(path, int(layer), rows[rows[:, 1] == layer]) for layer in np.unique(rows[:, 1])}


def _layer(path: Path, layer: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    if not np.array_equal(rows[:, 0], np.arange(len(rows))):
        raise HprofError(
            f"{path}: layer {layer} must have one row for each position from 0 up, without gaps; "
            f"its {len(rows)} rows have not."
        )
    return np.ascontiguousarray(rows[:, 2:])


def _table(path: Path) -> tuple[list[str], NDArray[np.int64]]:
    import pyarrow as pa
    from pyarrow import csv

    try:
        if path.exists() and not path.is_file():  # a pipe or a device may give bytes for ever, or none
            raise HprofError(f"{path} is not a regular file; name a routing trace.")
        if path.stat().st_size > _MAX_BYTES:
            raise HprofError(f"{path} is larger than 1 GiB; cut the trace to fewer positions.")
        table = csv.read_csv(path)
        names = table.column_names  # decoded here
        if any(pa.types.is_boolean(column.type) for column in table.columns):
            raise HprofError(f"{path} is not a CSV of whole numbers (true or false); write pos,layer,id0,… rows.")
        columns = [column.cast(pa.int64()).to_numpy() for column in table.columns]
    except OSError as error:
        raise HprofError(f"{path} cannot be read ({error.strerror or error}); name a routing trace.") from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0][:120]
        raise HprofError(f"{path} is not a CSV of whole numbers ({reason}); write pos,layer,id0,… rows.") from error
    if any(column.null_count for column in table.columns):
        raise HprofError(f"{path} is not a CSV of whole numbers (a cell is empty); write pos,layer,id0,… rows.")
    if table.num_rows == 0 or table.num_columns < 3:
        raise HprofError(f"{path} holds no rows of pos,layer,id0,…; record a trace with at least one position.")
    return names, np.stack(columns, axis=1)
