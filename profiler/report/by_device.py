"""What each device did and held, of arms whose passes ran on several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiler.metrics import CaptureTables
from profiler.report.cells import DeviceMedians
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


class DeviceParts:
    """Knows how many devices an arm's passes ran on, and of several what each did."""

    def __init__(self, tables: CaptureTables, residency: Mapping[str, Residency]) -> None:
        """residency: what each arm holds where, of the arms that say."""
        (devices,) = tables.recording.keys("device")
        self._rows = _rows(tables) if len(np.unique(devices[devices >= 0])) > 1 else None
        self._at_work = _n_devices(tables)
        self._held = {arm: {one.device: one.n_bytes for one in found.by_device} for arm, found in residency.items()}

    def of(self, arm: str, pass_ids: Sequence[int]) -> tuple[int, tuple[DeviceMedians, ...]]:
        """The most devices that copied or computed in one of these passes of the arm, at least 1; and medians by
        device, where there are devices of several numbers.
        """
        n_devices = max((self._at_work[pass_id] for pass_id in pass_ids if pass_id in self._at_work), default=1)
        return n_devices, () if self._rows is None else self._rows.of(pass_ids, self._held.get(arm, {}))


def _n_devices(tables: CaptureTables) -> Counter[int]:
    """How many devices copied or computed, by pass; the same number in two processes is two devices."""
    overlap = tables.recording.overlap(("pass_id", "process", "device"))
    worked = (overlap.busy_copy_ns > 0) | (overlap.busy_compute_ns > 0)
    return Counter(overlap.keys["pass_id"][worked].tolist())


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
