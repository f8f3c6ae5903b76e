"""What a recording beside the timed runs saw of each arm, told in the capture of the times.

Recording costs time, so the runs that are timed are not recorded: each arm runs once more for that, and its copies and
overlap stand beside the times. The recording itself is a capture of its own. `record_processes` makes one of arms that
are processes, with the library of `hprof record`; `tell_recorded` takes what any recording saw into the times' capture.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from executor.errors import HprofError
from executor.units import listed
from profiler.capture import Capture
from profiler.engines.arms import EngineArm
from profiler.importers import Cut, TraceInput, import_files
from profiler.metrics import load_tables, pass_figures
from profiler.metrics.passes import by_cell, measured_passes
from profiler.recording.session import Recording, RecordingSettings
from profiler.storage.place import check_place
from profiler.storage.writer import CaptureWriter

FIGURES_TOLD: Final = ("bytes_h2d", "busy_copy_ns", "hidden_copy_ns", "busy_compute_ns", "idle_ns", "host_compute_ns")
ENDING: Final = "-recorded"  # of the recording's folder, after that of the times
_HOW: Final = "Each arm ran in one more process, recorded as `hprof record` does, with loading, and not timed."
_HOW_BY_PASS: Final = (
    "Each arm ran in one more process, recorded as `hprof record` does and not timed; figures are medians of passes."
)
BESIDE_TIMES: Final = {"extra": {"recorded_by": "hprof run --record", "untimed": True}}
RunArm = Callable[[EngineArm, Mapping[str, str]], Cut | None]
"""Runs an arm's process with these variables to its end; gives what makes passes of its recording, if anything does."""


def check_recordable(out: str, *, force: bool) -> None:
    """HprofError, before hours of timed runs, where a recording would find no library, no CUPTI or no place."""
    check_place(out.rstrip("/") + ENDING, force=force)
    with tempfile.TemporaryDirectory(prefix="hprof-record-") as folder:
        recording = Recording.begin(RecordingSettings(), Path(folder) / "trial.spool")
        recording.environment(os.environ)
        recording.remove()


def record_processes(
    arms: Sequence[EngineArm],
    run: RunArm,
    writer: CaptureWriter,
    *,
    force: bool = False,
    argv: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> str | None:
    """Run each arm once more, recorded; the recording's address. None where no arm started CUDA, which is a warning.

    writer: of the times, finished. run raises HprofError where an arm does not end well.
    """
    recordings: list[tuple[str, Recording]] = []
    cuts: dict[str, Cut] = {}
    with tempfile.TemporaryDirectory(prefix="hprof-record-") as folder:
        try:
            for number, arm in enumerate(arms):
                say(f"{arm.name}: recorded, not timed")
                recording = Recording.begin(RecordingSettings(), Path(folder) / f"arm-{number}.spool")
                recordings.append((arm.name, recording))
                cut = run(arm, recording.environment(dict(os.environ) | dict(arm.environment)))
                cuts |= {arm.name: cut} if cut is not None else {}
                recording.finish()
            _tell_unrecorded(writer, recordings)
            seen = [
                TraceInput(recording.folder, name, cuts.get(name))
                for name, recording in recordings
                if recording.spools()
            ]
            if not seen:
                return None
            traces = import_files(seen, writer.path + ENDING, force=force, argv=argv, known=BESIDE_TIMES)
        finally:
            for _, recording in recordings:
                recording.remove()
    tell_recorded(writer, traces, _HOW_BY_PASS if _has_sizes(traces) else _HOW)
    return traces


def _has_sizes(traces: str) -> bool:
    """Whether the recording is cut into passes of known sizes, and is not one of the whole process."""
    return bool(measured_passes(Capture.open(traces).passes)["n_prompt"].notna().any())


def _tell_unrecorded(writer: CaptureWriter, recordings: Sequence[tuple[str, Recording]]) -> None:
    """What went wrong in recorded processes, and which arms left nothing."""
    said = [f"{name}, recorded: {text}" for name, recording in recordings for text in recording.new_problems()]
    if empty := [name for name, recording in recordings if not recording.spools()]:
        said.append(f"The recording of {listed(empty)} is empty: no process of it started CUDA or used NVTX.")
    if said:
        writer.update_manifest(warnings=[*writer.manifest.warnings, *said])


def recorded_figures(traces: str) -> dict[str, dict[str, Any]]:
    """Arm -> medians over its passes in the recording, null where it cannot say; `n_passes` is how many there were.

    An arm that ran in several cells has a row for each: `on (-p 512 -n 0 -ub 512 -d 0)`.
    """
    capture = Capture.open(traces)
    frame = pass_figures(*load_tables(capture, by_layer=False))["pass"]
    by_arm_and_cell = {
        (str(arm), cell): rows
        for cell, of_cell in by_cell(measured_passes(capture.passes))
        for arm, rows in of_cell.groupby("arm", sort=False)
    }
    n_cells = Counter(arm for arm, _ in by_arm_and_cell)
    found = {}
    for (arm, cell), rows in by_arm_and_cell.items():
        values = frame.loc[rows["pass_id"], list(FIGURES_TOLD)].to_numpy()
        medians = [np.median(column[np.isfinite(column)]) if np.isfinite(column).any() else None for column in values.T]
        told = {
            name: None if value is None else float(value) for name, value in zip(FIGURES_TOLD, medians, strict=True)
        }
        found[f"{arm} ({cell.flags})" if n_cells[arm] > 1 else arm] = told | {"n_passes": len(rows)}
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
