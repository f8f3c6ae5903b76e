"""`hprof run --recorder cupti`: the kernels of each pass, recorded by torch.profiler beside hprof's own intervals.

Each pass runs under torch.profiler; its trace is read back, its clock is matched with the pass's own by the work
that both saw, and its kernels become rows of `events` in the place of the step they run in. Their `detail` is
`kernel`, which no metric counts: hprof's own rows count those steps already, and the copies.

Copies between host and device are left out: hprof's own rows are theirs, and say more. So are kernels outside the
pass, and those by which a replayed token marks its steps (`executor.stamps`), which are hprof's and not the engine's.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from executor.arrays import Int64
from executor.errors import HprofError
from executor.passes import EventRecord, PassResult
from executor.stamps import STAMP_KERNEL
from profiler.arithmetic.clock_match import WorkIntervals, match_clocks
from profiler.importers.base import Imported, ImportOptions
from profiler.importers.kineto import read
from profiler.schema import KERNEL, KERNEL_STREAM
from profiler.storage.writer import conform

if TYPE_CHECKING:
    from executor.devices.base import DeviceKind
    from executor.passes import PassJob, PassResult
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


LEAST_SHARE: Final = 0.5  # of the work must lie inside its marks, else the clocks are not known
_INSIDE: Final = ("compute", "d2d")  # what runs inside a step: kernels, memsets, copies within the device; not sized
_KINDS: Final = (("h2d",), ("d2h",), _INSIDE)


@dataclass(frozen=True, slots=True)
class PassKernels:
    """Rows of `events` of one pass, ns after the pass's zero; `n_unmatched` rows have no known clock."""

    rows: pa.Table
    n_unmatched: int = 0


def kernel_rows(trace: Imported, result: PassResult, zero_unix_ns: Mapping[int, int]) -> PassKernels:
    """The kernels of one pass from a trace of it.

    zero_unix_ns: the system's clock (ns since 1970) at the zero of each device's times in `result`.
    """
    base_ns = trace.manifest_fields.get("extra", {}).get("kineto", {}).get("baseTimeNanoseconds") or 0
    found, n_unmatched = [], 0
    for device, zero_ns in zero_unix_ns.items():
        events = trace.tables["events"].filter(pc.equal(trace.tables["events"]["device"], device))
        events = events.filter(pc.not_equal(events["name"].cast(pa.string()), STAMP_KERNEL))
        records = [record for record in result.events if record.device == device]
        match = match_clocks([(_marked(records, kinds), _seen(events, kinds)) for kinds in _KINDS], base_ns - zero_ns)
        inside = _of_kinds(events, _INSIDE)
        if match is None or match.share < LEAST_SHARE:
            n_unmatched += inside.num_rows
            continue
        found.append(_rows(inside, match.offset_ns, device, records, (result.t_start, result.t_end)))
    return PassKernels(pa.concat_tables([conform("events", {}), *found]), n_unmatched)


def _rows(
    kernels: pa.Table, offset_ns: int, device: int, records: Sequence[EventRecord], window: tuple[int, int]
) -> pa.Table:
    start, end = (kernels[name].to_numpy() + offset_ns for name in ("t_start", "t_end"))
    in_pass = (end > window[0]) & (start < window[1])
    kernels, start, end = kernels.filter(pa.array(in_pass)), start[in_pass], end[in_pass]
    n = len(start)
    columns: dict[str, Any] = {
        "device": pa.repeat(device, n),
        "kind": _label("compute", n),
        "detail": _label(KERNEL, n),
        "stream": _label(KERNEL_STREAM, n),
        "name": kernels["name"],
        "t_start": start,
        "t_end": end,
        "bytes": kernels["bytes"],
        **_places((start + end) // 2, records),
    }
    return conform("events", columns)


def _places(middle: Int64, records: Sequence[EventRecord]) -> dict[str, pa.Array]:
    """Phase, ubatch, layer and tokens of the step that each kernel runs in; null between steps."""
    steps = sorted((r for r in records if r.kind in _INSIDE), key=lambda record: record.t_start)
    starts, ends = (np.array([getattr(step, name) for step in steps], np.int64) for name in ("t_start", "t_end"))
    step = np.searchsorted(starts, middle, side="right") - 1
    inside = step >= 0
    inside[inside] = middle[inside] < ends[step[inside]]
    rows = pa.array(step, mask=~inside)
    kinds = {"phase": pa.string(), "ubatch": pa.int32(), "layer": pa.int32(), "n_tokens": pa.int32()}
    return {name: pa.array([getattr(s, name) for s in steps], kind).take(rows) for name, kind in kinds.items()}


def _marked(records: Sequence[EventRecord], kinds: Collection[str]) -> WorkIntervals:
    mine = [record for record in records if record.kind in kinds]
    start, end = (np.array([getattr(record, name) for record in mine], np.int64) for name in ("t_start", "t_end"))
    return WorkIntervals(
        start, end, np.array([0 if kinds is _INSIDE else record.bytes or 0 for record in mine], np.int64)
    )


def _seen(events: pa.Table, kinds: Collection[str]) -> WorkIntervals:
    rows = _of_kinds(events, kinds)
    start, end = (rows[name].to_numpy() for name in ("t_start", "t_end"))
    n_bytes = np.zeros(len(start), np.int64) if kinds is _INSIDE else pc.fill_null(rows["bytes"], 0).to_numpy()
    return WorkIntervals(start, end, n_bytes)


def _of_kinds(events: pa.Table, kinds: Collection[str]) -> pa.Table:
    return events.filter(pc.is_in(events["kind"].cast(pa.string()), pa.array(list(kinds))))


def _label(text: str, n: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), [text])
