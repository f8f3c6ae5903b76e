"""What a device held during a pass: weights that stay, the bank, and what each slot held when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Floats
from profiler.metrics.timeline import Timeline
from profiler.metrics.timeline_detail import waited_for

MEMORY_PARTS: Final = ("resident", "slots", "bank", "other")
_COLUMNS: Final = ("slot", "device", "layer", "tensor", "bytes")
_HELD_COLUMNS: Final = (*_COLUMNS, "start_ns", "filled_ns", "read_ns", "done_ns", "end_ns")


def memory_parts(passes: pd.DataFrame) -> pd.DataFrame:
    """One row a pass of the `passes` table: bytes of MEMORY_PARTS and `peak`; NaN where the source does not say.

    other is what the peak holds beyond the named parts: activations, KV cache, and the library's own.
    """
    parts = passes[["vram_resident", "vram_slots", "vram_bank"]].astype(float)
    parts.columns = pd.Index(MEMORY_PARTS[:3])
    peak = passes["vram_peak"].astype(float)
    parts["other"] = (peak - parts.sum(axis=1)).clip(lower=0)
    parts["peak"] = peak
    return parts


def cost_in_layers(n_bytes: float, host_bytes: int, n_host_layers: int) -> float | None:
    """How many host layers would fit into these bytes and stay: bytes / (host bytes / host layers).

    None where nothing is in host memory.
    """
    return n_bytes / (host_bytes / n_host_layers) if host_bytes and n_host_layers else None


def slot_holdings(line: Timeline) -> pd.DataFrame:
    """One row each time that a slot was filled: slot, device, layer, tensor, bytes, start_ns, end_ns, and between
    them filled_ns (its last copy ended), read_ns and done_ns (the work that waited for it began and ended; NaN where
    the source names none).

    A slot holds a layer from its first copy's start until the first copy into it of the next layer, or of this one for
    the next ubatch, or to the line's end.
    """
    slots = line.table(["slot"])["slot"]
    if slots.null_count == len(slots):  # most sources name none: the other columns of 5 M rows would take 0.4 GB
        return pd.DataFrame({name: pd.Series(dtype=np.float64) for name in _HELD_COLUMNS})
    rows = line.table([*_COLUMNS, "ubatch", "kind", "correlation_id", "waits_for"])
    is_copy = pc.and_(pc.is_valid(rows["slot"]), pc.equal(rows["kind"].cast(pa.string()), "h2d"))
    chosen = np.flatnonzero(pc.fill_null(is_copy, False).to_numpy())
    frame = rows.select([*_COLUMNS, "ubatch"]).take(pa.array(chosen)).to_pandas()
    frame["start_ns"], frame["filled_ns"] = line.start[chosen], line.end[chosen]
    readers = _readers(line, rows)
    frame["read_ns"], frame["done_ns"] = (readers[name].reindex(chosen).to_numpy() for name in ("read_ns", "done_ns"))
    frame["tensor"] = frame["tensor"].astype(object)
    frame = frame.sort_values(["device", "slot", "start_ns"], kind="stable", ignore_index=True)
    place = frame[["device", "slot"]].fillna(-1).ne(frame[["device", "slot"]].fillna(-1).shift()).any(axis=1)
    ubatch = frame["ubatch"].fillna(-1)
    begins = place | frame["layer"].ne(frame["layer"].shift()) | ubatch.ne(ubatch.shift())
    filled = frame.groupby(begins.cumsum(), sort=False)
    held: pd.DataFrame = filled.agg(
        {"slot": "first", "device": "first", "layer": "first", "tensor": "first", "start_ns": "first"}
        | {"filled_ns": "max", "read_ns": "min", "done_ns": "max"}
    )
    held["bytes"] = filled["bytes"].sum(min_count=1)
    following = held.groupby(["device", "slot"], dropna=False)["start_ns"].shift(-1)
    held["end_ns"] = following.fillna(line.extent[1]).astype(np.int64)
    return held.reset_index(drop=True)


def _readers(line: Timeline, rows: pa.Table) -> pd.DataFrame:
    """When the work that waited for a copy began and ended (index: the copy's row); waits themselves are no work."""
    copy, reader = waited_for(rows)
    is_work = pc.equal(rows["kind"].cast(pa.string()), "compute").to_numpy()[reader]
    copy, reader = copy[is_work], reader[is_work]
    found = pd.DataFrame({"copy": copy, "read_ns": line.start[reader], "done_ns": line.end[reader]})
    ends: pd.DataFrame = found.groupby("copy").agg({"read_ns": "min", "done_ns": "max"})
    return ends


def held_over_time(holdings: pd.DataFrame) -> pd.DataFrame:
    """How many bytes all slots together held, as steps: t_ns, bytes."""
    if holdings.empty:
        return pd.DataFrame({"t_ns": [], "bytes": []})
    n_bytes = holdings["bytes"].fillna(0)
    steps = pd.concat(
        [
            pd.DataFrame({"t_ns": holdings["start_ns"], "change": n_bytes}),
            pd.DataFrame({"t_ns": holdings["end_ns"], "change": -n_bytes}),
        ]
    )
    summed = steps.groupby("t_ns", sort=True)["change"].sum().cumsum()
    return pd.DataFrame({"t_ns": summed.index.to_numpy(), "bytes": summed.to_numpy()})


@dataclass(frozen=True, slots=True)
class HeldOverTime:
    """What a device held over a pass, as far as the capture says it.

    `stays` are the weights that stay and the bank, in bytes by part; empty where it is unknown what stays, and then the
    slots stand alone. `held` is what they and the slots hold at each step; `peak_bytes` counts everything.
    """

    stays: dict[str, float]
    time_ns: Floats
    held: Floats
    peak_bytes: float | None

    @property
    def most_bytes(self) -> float:
        """The most that is held at once."""
        return float(self.held.max())


def all_held(steps: pd.DataFrame, parts: Mapping[str, float]) -> HeldOverTime:
    """The steps of `held_over_time` on top of what stays. parts: a row of `memory_parts`, of this pass."""
    stays = {part: float(parts[part]) for part in ("resident", "bank") if parts[part] > 0}  # NaN is not
    if "resident" not in stays:
        stays = {}
    held = sum(stays.values()) + steps["bytes"].to_numpy(float)
    peak_bytes = float(parts["peak"]) if stays and parts["peak"] > 0 else None
    return HeldOverTime(stays, steps["t_ns"].to_numpy(float), held, peak_bytes)


def typical_memory(passes: pd.DataFrame) -> pd.DataFrame:
    """One row an arm (index) of the `passes` table: medians of `memory_parts` over its passes, and `reserved`: slots
    and bank together."""
    found: pd.DataFrame = memory_parts(passes).groupby(passes["arm"]).median()
    return found.assign(reserved=found[["slots", "bank"]].sum(axis=1, min_count=1))
