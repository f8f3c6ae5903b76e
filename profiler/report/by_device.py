"""What each of several devices did in a pass: the median over an arm's measured passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from profiler.metrics import Tables
from profiler.report.data import ArmFigures, Cell, OnDevice
from profiler.report.residency import Residency


@dataclass(frozen=True, slots=True)
class _Rows:
    """Figures by (pass_id, device)."""

    frame: pd.DataFrame

    def of(self, pass_ids: Sequence[int], held: Mapping[int, int]) -> tuple[OnDevice, ...]:
        """Medians over these passes, a device after the other; `held` has bytes of device memory by device."""
        rows = self.frame[self.frame["pass_id"].isin(pass_ids)]
        medians = rows.groupby("device").median(numeric_only=True)
        return tuple(
            OnDevice(
                device=int(str(device)),
                bytes_h2d=None if pd.isna(row["bytes_h2d"]) else float(row["bytes_h2d"]),
                busy_copy_ns=float(row["busy_copy_ns"]),
                hidden_copy_ns=float(row["hidden_copy_ns"]),
                busy_compute_ns=float(row["busy_compute_ns"]),
                vram_held_bytes=held.get(int(str(device))),
            )
            for device, row in medians.iterrows()
        )


def with_devices(cells: Sequence[Cell], tables: Tables, residency: Mapping[str, Residency]) -> list[Cell]:
    """The cells with `by_device` in each arm; as they are where all passes ran on one device.

    residency: what each arm holds where, of the arms that say.
    """
    (devices,) = tables.recording.keys("device")
    if not cells or len(np.unique(devices[devices >= 0])) < 2:
        return list(cells)
    rows = _rows(tables)
    passes = tables.passes.to_pandas()
    measured = passes[~passes["warmup"].fillna(False).astype(bool)]
    held = {arm: {one.device: one.n_bytes for one in found.by_device} for arm, found in residency.items()}
    return [replace(cell, arms=_arms(cell, measured, rows, held)) for cell in cells]


def _rows(tables: Tables) -> _Rows:
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
    return _Rows(found[found["device"] >= 0])


def _arms(
    cell: Cell, measured: pd.DataFrame, rows: _Rows, held: Mapping[str, Mapping[int, int]]
) -> dict[str, ArmFigures]:
    size = ["n_prompt", "n_gen", "n_ubatch", "n_depth"]
    wanted = [getattr(cell, name) for name in size]
    in_cell = measured
    for name, value in zip(size, wanted, strict=True):
        in_cell = in_cell[in_cell[name].isna() if value is None else in_cell[name] == value]
    return {
        name: replace(
            arm, by_device=rows.of(in_cell.loc[in_cell["arm"] == name, "pass_id"].tolist(), held.get(name, {}))
        )
        for name, arm in cell.arms.items()
    }
