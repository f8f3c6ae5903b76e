"""What each device did and held, of arms whose passes ran on several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from profiler.metrics import CaptureTables
from profiler.report.cells import ArmFigures, Cell, DeviceMedians
from profiler.report.residency import Residency


@dataclass(frozen=True, slots=True)
class _MediansByDevice:
    """Figures by (pass_id, device)."""

    frame: pd.DataFrame

    def of(self, pass_ids: Sequence[int], held: Mapping[int, int]) -> tuple[DeviceMedians, ...]:
        """Medians over these passes, a device after the other; `held` has bytes of device memory by device."""
        rows = self.frame[self.frame["pass_id"].isin(pass_ids)]
        medians = rows.groupby("device").median(numeric_only=True)
        return tuple(
            DeviceMedians(
                device=int(str(device)),
                bytes_h2d=None if pd.isna(row["bytes_h2d"]) else float(row["bytes_h2d"]),
                busy_copy_ns=float(row["busy_copy_ns"]),
                hidden_copy_ns=float(row["hidden_copy_ns"]),
                busy_compute_ns=float(row["busy_compute_ns"]),
                vram_held_bytes=held.get(int(str(device))),
            )
            for device, row in medians.iterrows()
        )


def with_devices(cells: Sequence[Cell], tables: CaptureTables, residency: Mapping[str, Residency]) -> list[Cell]:
    """The cells with `n_devices` in each arm, and with `by_device` where passes ran on devices of several numbers.

    residency: what each arm holds where, of the arms that say.
    """
    if not cells:
        return []
    (devices,) = tables.recording.keys("device")
    rows = _rows(tables) if len(np.unique(devices[devices >= 0])) > 1 else None
    at_work = _n_devices(tables)
    passes = tables.passes.to_pandas()
    held = {arm: {one.device: one.n_bytes for one in found.by_device} for arm, found in residency.items()}
    return [replace(cell, arms=_arms(cell, passes, at_work, rows, held)) for cell in cells]


def _n_devices(tables: CaptureTables) -> pd.Series[int]:
    """How many devices copied or computed, by pass; the same number in two processes is two devices."""
    overlap = tables.recording.overlap(("pass_id", "process", "device"))
    worked = (overlap.busy_copy_ns > 0) | (overlap.busy_compute_ns > 0)
    return pd.Series(overlap.keys["pass_id"][worked]).value_counts()


def _rows(tables: CaptureTables) -> _MediansByDevice:
    names = ("pass_id", "device")
    overlap, transfers = tables.recording.overlap(names), tables.recording.transfers(names)
    busy = pd.DataFrame(
        {
            **overlap.keys,
            "busy_copy_ns": overlap.busy_copy_ns,
            "hidden_copy_ns": overlap.hidden_copy_ns,
            "busy_compute_ns": overlap.busy_compute_ns,
        }
    )
    moved = pd.DataFrame({**transfers.keys, "bytes_h2d": transfers.bytes_h2d})
    found = busy.merge(moved, on=list(names), how="left")
    return _MediansByDevice(found[found["device"] >= 0])


def _arms(
    cell: Cell,
    passes: pd.DataFrame,
    at_work: pd.Series[int],
    rows: _MediansByDevice | None,
    held: Mapping[str, Mapping[int, int]],
) -> dict[str, ArmFigures]:
    in_cell = passes[cell.rows_in(passes)]
    found = {}
    for name, arm in cell.arms.items():
        ids = in_cell.loc[in_cell["arm"] == name, "pass_id"]
        n_devices = int(at_work.reindex(ids).max(skipna=True)) if at_work.index.isin(ids).any() else 1
        by_device = rows.of(ids.tolist(), held.get(name, {})) if rows is not None else ()
        found[name] = replace(arm, n_devices=n_devices, by_device=by_device)
    return found
