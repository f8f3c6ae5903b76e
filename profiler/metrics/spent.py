"""Where a pass's time went: computing alone, computing while copying, copying alone, and doing neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd

from profiler.metrics.devices import NO_COPIES, DeviceFigures

PARTS: Final = ("compute_ns", "hidden_ns", "exposed_ns", "other_ns", "idle_ns")


def time_spent(figures: pd.DataFrame, n_devices: int = 1) -> pd.DataFrame:
    """One row a pass of a frame of `pass_figures`: PARTS, which add up to n_devices x wall_ns.

    compute_ns   busy compute - hidden copy: computing, and no weights under way
    hidden_ns    hidden copy: both at once
    exposed_ns   exposed copy: weights under way, and nothing computes
    idle_ns      neither copies of any direction nor compute
    other_ns     the rest: copies back to the host, or between devices, while nothing computes
    NaN where the source cannot say.
    """
    spent = pd.DataFrame(index=figures.index)
    spent["compute_ns"] = figures["busy_compute_ns"] - figures["hidden_copy_ns"]
    spent["hidden_ns"] = figures["hidden_copy_ns"]
    spent["exposed_ns"] = figures["exposed_copy_ns"]
    known = spent.sum(axis=1, skipna=False) + figures["idle_ns"]
    spent["other_ns"] = (n_devices * figures["wall_ns"] - known).clip(lower=0)
    spent["idle_ns"] = figures["idle_ns"]
    return spent[list(PARTS)]


def device_spent(devices: Sequence[DeviceFigures]) -> pd.DataFrame:
    """One row a device of a whole trace: its busy time in the same PARTS, explicit copies from the host only.

    Idle and other are 0: a trace says when it was started and stopped, not what it was meant to measure.
    """
    rows = []
    for device in devices:
        copies = device.copies.get("h2d", NO_COPIES)
        rows.append((device.compute_busy_ns - copies.hidden_ns, copies.hidden_ns, copies.exposed_ns, 0, 0))
    return pd.DataFrame(rows, columns=list(PARTS), dtype=float)
