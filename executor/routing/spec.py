"""The text of `--routing`: `FAMILY`, `FAMILY:NAME=VALUE,…` or `trace:PATH`, and the trace's file.

A trace is CSV `pos,layer,id0,id1,…`, one row a token and MoE layer, read with bounds and checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from executor.arrays import Int64
from executor.errors import HprofError, did_you_mean, first_line
from executor.files import bounded_read
from executor.routing.routers import POPULARITY_FAMILIES, RandomRouting, Routing, TraceRouting

DEFAULT_ROUTING: Final = "lognormal"
# Few experts are trained to even loads (Mixtral's eight: "Mixtral of Experts", 2024, section 5); the measured counts
# that the default is fitted to, with experts that are never used, are of models with hundreds.
EVEN_ROUTING: Final = "lognormal:sigma=0.3,dead=0"
_FEW_EXPERTS: Final = 16

# parameter -> (lowest, highest); the highest is excluded for shares and chances
_RANGES: Final = {
    "sigma": (0.0, 10.0),
    "s": (0.0, 10.0),
    "alpha": (1e-3, 1e6),
    "dead": (0.0, 1.0),
    "repeat": (0.0, 1.0),
}
_MAX_BYTES: Final = 128 << 20  # a number of one digit takes 2 bytes there, and some 40 while it is sorted
_LAST_LAYER: Final = 9999


def default_routing(n_experts: int) -> str:
    """The `--routing` of a model with so many experts where none is given."""
    return EVEN_ROUTING if n_experts <= _FEW_EXPERTS else DEFAULT_ROUTING


def routing_from_spec(spec: str, *, layers: Iterable[int], n_experts: int, n_used: int, seed: int) -> Routing:
    """The routing that `spec` describes for a model whose MoE layers are numbered `layers`.

    HprofError names the part of `spec` that is wrong; a family's parameters left out keep their defaults, and
    `repeat` (0) may be given with any family.
    """
    name, _, rest = spec.partition(":")
    if name == "trace":
        return _recorded(rest, layers, n_experts, n_used)
    if name not in POPULARITY_FAMILIES:
        near = did_you_mean(name, [*POPULARITY_FAMILIES, "trace"])
        raise HprofError(
            f"--routing {spec[:80]}: {name[:40]!r} is not known; known are "
            f"{', '.join(POPULARITY_FAMILIES)} and trace:PATH{f', {near}' if near else '.'}"
        )
    parameters = {**POPULARITY_FAMILIES[name].defaults, "repeat": 0.0}
    for item in filter(None, rest.split(",")):
        key, value = _parameter(item, list(parameters), spec)
        parameters[key] = value
    repeat = parameters.pop("repeat")
    return RandomRouting(name, parameters, n_experts, n_used, seed, repeat)


def _recorded(path: str, layers: Iterable[int], n_experts: int, n_used: int) -> TraceRouting:
    choices = read_trace(Path(path), n_experts, n_used)
    missing = sorted(set(layers) - set(choices))
    if missing:
        raise HprofError(
            f"{path} has no rows for layer {missing[0]} (it has {len(choices)} layers), but the model's router sits "
            "there; record the trace with this model."
        )
    return TraceRouting(path, choices)


def _parameter(item: str, known: list[str], spec: str) -> tuple[str, float]:
    key, _, text = item.partition("=")
    if key not in known:
        raise HprofError(f"--routing {spec[:80]}: {key[:40]!r} is no parameter of it; it takes {', '.join(known)}.")
    low, high = _RANGES[key]
    try:
        value = float(text) if text.isascii() else math.nan
    except ValueError:
        value = math.nan
    if not low <= value < high:
        raise HprofError(
            f"--routing {spec[:80]}: {key} is {text[:40]!r}, but must be a number from {low:g} to below {high:g}."
        )
    return key, value


def read_trace(path: Path, n_experts: int, n_used: int) -> dict[int, Int64]:
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


def _layer(path: Path, layer: int, rows: Int64) -> Int64:
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    if not np.array_equal(rows[:, 0], np.arange(len(rows))):
        raise HprofError(
            f"{path}: layer {layer} must have one row for each position from 0 up, without gaps; "
            f"its {len(rows)} rows have not."
        )
    return np.ascontiguousarray(rows[:, 2:])


def _table(path: Path) -> tuple[list[str], Int64]:
    import pyarrow as pa
    from pyarrow import csv

    content = bounded_read(path, _MAX_BYTES, "a routing trace", "name a routing trace, or cut it to fewer positions")
    try:
        table = csv.read_csv(pa.BufferReader(content))
        names = table.column_names  # decoded here
        if any(pa.types.is_boolean(column.type) for column in table.columns):
            raise HprofError(f"{path} is not a CSV of whole numbers (true or false); write pos,layer,id0,… rows.")
        columns = [column.cast(pa.int64()).to_numpy() for column in table.columns]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        raise HprofError(
            f"{path} is not a CSV of whole numbers ({first_line(error)}); write pos,layer,id0,… rows."
        ) from error
    if any(column.null_count for column in table.columns):
        raise HprofError(f"{path} is not a CSV of whole numbers (a cell is empty); write pos,layer,id0,… rows.")
    if table.num_rows == 0 or table.num_columns < 3:
        raise HprofError(f"{path} holds no rows of pos,layer,id0,…; record a trace with at least one position.")
    return names, np.stack(columns, axis=1)
