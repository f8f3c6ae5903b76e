"""`hprof.record`: records the PyTorch code inside a `with`, through torch.profiler, and writes a capture.

torch.profiler serves here and not the library of `hprof record`: it begins and ends at any time, in a notebook whose
CUDA has run for hours too, and needs no compiler. What happened before it began is missing, which the capture says.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import torch

from executor.errors import HprofError, plain
from profiler.facts import describe_machine, result_variables
from profiler.importers import ImportOptions, TraceInput, import_files
from profiler.storage.place import check_place

DEFAULT_ARM: Final = "recorded"
WITHOUT_CUDA: Final = (
    "There was no CUDA device that torch.profiler could record: what is known is the time of PyTorch's operators on "
    "the host; copies, kernels and device memory are unknown, not 0."
)
_BEFORE: Final = "What the process did before the recording began is missing."
_COST: Final = (
    "torch.profiler recorded every operator, which costs time in each: for times to judge by, use hprof.ab, whose "
    "timed runs are not recorded."
)


_TRACING: Final = threading.Lock()  # held by the thread that records, to the end of its trace


class InProcessRecording:
    """What happens inside the `with` becomes the capture at `path`; `capture` is its address afterwards.

    arm: what the capture calls it. force: replace a capture that is there. Raises HprofError, on entry, where the
    capture cannot be written or a profiler of torch's runs already. Code that raises is recorded up to there.
    """

    def __init__(self, path: str | os.PathLike[str], arm: str = DEFAULT_ARM, *, force: bool = False) -> None:
        if not isinstance(arm, str) or not arm.strip():
            raise HprofError(f"hprof.record: an arm needs a name, such as arm='on', not {arm!r}.")
        self._path, self._arm, self._force = path, arm, force
        self._folder = tempfile.TemporaryDirectory(prefix="hprof-record-")
        self._trace = Path(self._folder.name) / "trace.json"
        self._tracing = torch_trace(self._trace)
        self._is_begun = False
        self.capture: str | None = None

    def __enter__(self) -> Self:
        if self._is_begun:
            raise HprofError("hprof.record: this recording has begun before; make another one for another block.")
        self._is_begun = True
        check_place(self._path, force=self._force)
        self._tracing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._folder:
            self._tracing.__exit__(None, None, None)
            known = recorded_fields("hprof.record")
            known["warnings"] = [_BEFORE, _COST]
            if error is not None:
                known["warnings"].append(f"The code ended with {plain(f'{type(error).__name__}: {error}')[:300]}")
            self.capture = import_traces([(self._arm, self._trace)], self._path, known, force=self._force)


@contextmanager
def torch_trace(path: Path) -> Iterator[None]:
    """Record what runs inside with torch.profiler and leave its trace at `path`; HprofError where one runs already.

    Devices are idle at both ends, so that all of the work inside is in the trace, and nothing else.
    """
    # torch tells of this thread's profiler alone, and crashes where another thread begins one beside it
    if torch.autograd._profiler_enabled() or not _TRACING.acquire(blocking=False):  # type: ignore[attr-defined]
        raise HprofError("a profiler of torch's runs already, and there can be one; end it first.")
    try:
        yield from _traced(path)
    finally:
        _TRACING.release()


def _traced(path: Path) -> Iterator[None]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if records_cuda():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    os.environ.setdefault("TEARDOWN_CUPTI", "0")  # detaching CUPTI breaks CUDA graphs before 12.6
    synchronise()
    profiler = torch.profiler.profile(activities=activities)
    with profiler:
        try:
            yield
        finally:
            synchronise()
    profiler.export_chrome_trace(str(path))


def import_traces(
    arms: list[tuple[str, Path]], out: str | os.PathLike[str], known: dict[str, Any], *, force: bool
) -> str:
    """A capture of torch.profiler's traces, an arm each; of the host's operators where there is no CUDA device."""
    traces, options = [TraceInput(path, name) for name, path in arms], ImportOptions(host_work=not records_cuda())
    return import_files(traces, out, kind="kineto", options=options, force=force, argv=sys.argv, known=known)


def recorded_fields(recorded_by: str, *, is_timed: bool = True) -> dict[str, Any]:
    """What the manifest of a recording in this process says beside the trace.

    is_timed: whether its times may be judged; not those of a recording beside runs that were timed without one.
    """
    fields: dict[str, Any] = {"machine": describe_machine(), "environment": result_variables()}
    fields["extra"] = {"recorded_by": recorded_by} | ({} if is_timed else {"untimed": True})
    return fields if records_cuda() else fields | {"cannot_say": [WITHOUT_CUDA]}


def records_cuda() -> bool:
    """Whether there is a CUDA device, and a torch that can record it."""
    cuda = torch.profiler.ProfilerActivity.CUDA
    return torch.cuda.is_available() and cuda in torch.profiler.supported_activities()


def synchronise() -> None:
    """Wait for the work of all CUDA devices, where this process has begun to use any."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
