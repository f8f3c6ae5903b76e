"""What a recording beside the timed runs saw of each arm, told in the capture of the times.

Recording costs time, so the runs that are timed are not recorded: each arm runs once more for that, and its copies and
overlap stand beside the times. The recording itself is a capture of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.metrics import load_tables, pass_figures
from profiler.metrics.passes import measured_passes
from profiler.storage.writer import CaptureWriter

FIGURES_TOLD: Final = ("bytes_h2d", "busy_copy_ns", "hidden_copy_ns", "busy_compute_ns", "idle_ns", "host_compute_ns")
ENDING: Final = "-recorded"  # of the recording's folder, after that of the times


def recorded_figures(traces: str) -> dict[str, dict[str, Any]]:
    """Arm -> medians over its passes in the recording, null where it cannot say; `n_passes` is how many there were."""
    capture = Capture.open(traces)
    frame = pass_figures(*load_tables(capture, by_layer=False))["pass"]
    found = {}
    for arm, rows in measured_passes(capture.passes).groupby("arm", sort=False):
        values = frame.loc[rows["pass_id"], list(FIGURES_TOLD)].to_numpy()
        medians = [np.median(column[np.isfinite(column)]) if np.isfinite(column).any() else None for column in values.T]
        told = {
            name: None if value is None else float(value) for name, value in zip(FIGURES_TOLD, medians, strict=True)
        }
        found[str(arm)] = told | {"n_passes": len(rows)}
    return found


def tell_recorded(writer: CaptureWriter, traces: str, how: str) -> None:
    """Put what the recording at `traces` saw into the manifest of the times. how: what was recorded, in a sentence."""
    try:
        figures: Mapping[str, Any] = recorded_figures(traces)
    except HprofError as error:  # the recording can be opened by itself, and says the same
        writer.update_manifest(warnings=[*writer.manifest.warnings, f"The recording cannot be read: {error}"])
        return
    recorded = {"capture": traces, "how": how, "arms": figures}
    writer.update_manifest(extra=writer.manifest.extra | {"recorded": recorded})
