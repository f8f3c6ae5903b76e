"""Runs passes under torch.profiler and reads back which kernels ran in them."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import torch

from executor.errors import HprofError
from profiler.cupti.rows import kernel_rows
from profiler.importers.base import ImportOptions
from profiler.importers.kineto import read

if TYPE_CHECKING:
    from executor.devices.factory import DeviceKind
    from executor.job import PassJob
    from executor.records import PassResult
    from executor.session import Session

Tracing = Callable[[Path], AbstractContextManager[None]]
"""Records what runs inside it and leaves a trace in Kineto's JSON at the path."""

COST_WARNING: Final = (
    "--recorder cupti costs time in every pass, for each kernel that it records; "
    "judge arms by a run with --recorder native."
)
_UNMATCHED: Final = "kernels whose clock could not be matched with their pass's"
_NOTHING: Final = (
    "CUPTI gave no kernels for {} of the passes: another profiler may be attached, or the driver keeps profiling to "
    "administrators (NVreg_RestrictProfilingToAdminUsers)."
)


def check_cupti(kind: DeviceKind) -> None:
    """Raise HprofError where passes on devices of this kind have no kernels, or this torch cannot record them."""
    if kind != "cuda":
        raise HprofError(
            f"--recorder cupti records the kernels of an NVIDIA GPU and this run is on --device {kind}: "
            "use --device cuda where there is one, else --recorder native."
        )
    if torch.profiler.ProfilerActivity.CUDA not in torch.profiler.supported_activities():
        raise HprofError(
            f"--recorder cupti needs CUPTI and torch {torch.__version__} was built without it: "
            "install a CUDA build of torch, or use --recorder native."
        )


@contextmanager
def cuda_trace(path: Path) -> Iterator[None]:
    """Record the device's work and the calls that launched it with torch.profiler; no operators of the host."""
    # Steps are replayed as CUDA graphs, and detaching CUPTI between passes breaks graphs before CUDA 12.6.
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        yield
    profiler.export_chrome_trace(str(path))


class CuptiRecorder:
    """Every pass of a run goes through one, warm-ups too: a graph that was recorded without CUPTI is not seen by it."""

    def __init__(self, tracing: Tracing = cuda_trace) -> None:
        self._tracing = tracing
        self._n_empty = 0
        self.dropped: Counter[str] = Counter()

    def run_pass(self, session: Session, job: PassJob) -> tuple[PassResult, pa.Table]:
        """Run a pass; its result, and its kernels as rows of `events`, ns after the pass's zero."""
        with tempfile.TemporaryDirectory(prefix="hprof-cupti-") as folder:
            path = Path(folder) / "pass.json"
            with self._tracing(path):
                result = session.run_pass(job)
            zero_unix_ns = {device.index: time.time_ns() - device.now_ns() for device in session.devices}
            kernels = kernel_rows(read(path, ImportOptions()), result, zero_unix_ns)
        self.dropped[_UNMATCHED] += kernels.n_unmatched
        self._n_empty += not (kernels.rows.num_rows or kernels.n_unmatched)
        return result, kernels.rows

    @property
    def warnings(self) -> list[str]:
        """What the manifest should say of the passes so far."""
        return [_NOTHING.format(self._n_empty)] if self._n_empty else []
