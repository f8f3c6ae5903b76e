"""Table (e): where host weights lie (mapped, pinned, registered), at first touch and warm.

Each row is an `hprof run` of a GGUF file of its own process. Before a cold row the file leaves the page cache
(posix_fadvise DONTNEED; the file is synced first, as dirty pages stay).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.thread.markdown import number, table
from profiler.capture import Capture

MODES_FILE: Final = "e.json"
_WORKLOAD: Final = ["-p", "512", "-ub", "512", "-n", "0", "-r", "6", "--arms", "off"]


@dataclass(frozen=True, slots=True)
class Mode:
    """How the file's weights become readable by the copy engine."""

    load_mode: str
    madvise: bool
    cold: bool

    @property
    def flags(self) -> list[str]:
        return ["-lm", self.load_mode, *(["--madvise"] if self.madvise else [])]

    @property
    def label(self) -> str:
        return f"{self.load_mode}{' +madvise' if self.madvise else ''}, {'cold' if self.cold else 'warm'} file"


MODES: Final = [
    Mode(load_mode, madvise, cold)
    for load_mode in ("none", "mmap", "register")
    for madvise in (False, True)
    for cold in (True, False)
]


def argv(model: str, mode: Mode, output: str) -> list[str]:
    """One row's command."""
    return ["hprof", "run", "-m", model, *mode.flags, *_WORKLOAD, "-o", output, "--force"]


def evict(path: Path) -> None:
    """Drop the file's pages from the system's cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def measure(model: Path, mode: Mode, output: Path, changes: list[str]) -> dict[str, Any]:
    """Run one mode and read its figures from the capture."""
    if mode.cold:
        evict(model)
    command = [sys.executable, "-m", *argv(str(model), mode, str(output)), *changes]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return figures(Capture.open(str(output)), mode)


def figures(capture: Capture, mode: Mode) -> dict[str, Any]:
    """Loading, the first pass (a warm-up) and the median of the measured ones: copy time and speed."""
    passes = capture.passes
    copies = _copies(capture)
    first, rest = passes[passes["warmup"]].iloc[0], passes[~passes["warmup"]]
    busy_ms = [copies[pass_id][0] for pass_id in rest["pass_id"]]
    first_ms, n_bytes = copies[first["pass_id"]]
    return {
        "mode": mode.label,
        "load_s": capture.manifest.extra["load_ns"][""] / 1e9,
        "first_copy_ms": first_ms,
        "first_gb_s": n_bytes / first_ms / 1e6,
        "warm_copy_ms": statistics.median(busy_ms),
        "warm_gb_s": n_bytes / statistics.median(busy_ms) / 1e6,
        "warm_ttft_ms": statistics.median(rest["ttft_ns"]) / 1e6,
    }


def _copies(capture: Capture) -> dict[int, tuple[float, int]]:
    """Each pass's copy time in ms (copies in line follow one another) and bytes of weights."""
    events = capture.table("events", ["pass_id", "kind", "tensor", "t_start", "t_end", "bytes"]).to_pandas()
    weights = events[(events["kind"] == "h2d") & events["tensor"].notna()]
    took_ms = (weights["t_end"] - weights["t_start"]) / 1e6
    return {
        int(pass_id): (float(took_ms[rows.index].sum()), int(rows["bytes"].sum()))
        for pass_id, rows in weights.groupby("pass_id")
    }


def load_table(rows: list[dict[str, Any]]) -> str:
    """The rows as markdown."""
    columns = ["host memory", "load s", "first pass: copy ms", "GB/s", "later: copy ms", "GB/s", "TTFT ms"]
    names = ["load_s", "first_copy_ms", "first_gb_s", "warm_copy_ms", "warm_gb_s", "warm_ttft_ms"]
    return table(columns, ([row["mode"], *(number(row[name]) for name in names)] for row in rows))
