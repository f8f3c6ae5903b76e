"""Figures of each device of a whole capture, and where the time of a pass or device went. For imported traces
without passes they are the main thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from profiler.metrics.pieces import OverlapByPass
from profiler.metrics.transfers import StreamSums
from profiler.schema import ABSENT, COMPUTE, COPIES, MANAGED, ROLES

KERNEL_STREAM_SHARE: Final = 0.10  # of a device's compute time; less is a stray kernel on a stream that copies
_KEYS: Final = ("process", "device", "role")


@dataclass(frozen=True, slots=True)
class CopyFigures:
    """Copies of one direction on one device. `gb_s` is bytes / busy time, in 10^9 bytes a second.

    Whether pages that migrate were hidden is not known: a kernel that waits for one of them looks busy.
    """

    count: int
    bytes: int | None  # None where a row does not say its size
    busy_ns: int
    hidden_ns: int | None  # None of pages that migrate
    gb_s: float | None
    pinned_bytes: int | None  # None where no row says what memory it was
    pageable_bytes: int | None
    streams: list[int | str]

    @property
    def exposed_ns(self) -> int | None:
        """Copy time that no compute covered."""
        return None if self.hidden_ns is None else self.busy_ns - self.hidden_ns

    @property
    def hidden_ratio(self) -> float | None:
        """Hidden / busy; None where nothing took time, and of pages that migrate."""
        return None if self.hidden_ns is None or not self.busy_ns else self.hidden_ns / self.busy_ns

    @property
    def memory_kinds(self) -> list[str]:
        """The kinds of host memory that at least a hundredth of the bytes came from, the larger first."""
        known = {"pinned": self.pinned_bytes or 0, "pageable": self.pageable_bytes or 0}
        kinds = [name for name, n_bytes in known.items() if n_bytes > 0 and n_bytes >= 0.01 * (self.bytes or 0)]
        return sorted(kinds, key=lambda name: -known[name])


NO_COPIES: Final = CopyFigures(0, 0, 0, 0, None, 0, 0, [])


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """One device of one process; `process` and `device` are None where the source does not name them."""

    process: int | None
    device: int | None
    kernels: int
    compute_busy_ns: int
    compute_streams: list[int | str]
    kernel_streams: list[int | str]  # those that hold more of the compute than a stray kernel
    copies: dict[str, CopyFigures]  # only the directions that occur, keys of DIRECTIONS

    @property
    def title(self) -> str:
        """`Process 17068, device 0`, as far as the source names them."""
        process = f"process {self.process}, " if self.process is not None else ""
        name = f"{process}device {self.device}" if self.device is not None else f"{process}a device without a number"
        return name[0].upper() + name[1:]


def device_figures(recording: OverlapByPass) -> list[DeviceFigures]:
    """Figures of every (process, device) that copied or computed, in that order.

    Unions are taken over the whole capture, passes or not; where passes have clocks of their own (hprof's captures),
    inside each pass, and added up.
    """
    overlap = recording.device_overlap()
    sums = _by_role(recording.streams)
    found: dict[tuple[int, int], DeviceFigures] = {}
    for group, key in enumerate(zip(*(overlap.keys[name].tolist() for name in _KEYS), strict=True)):
        process, device, role = key
        entry = found.setdefault((process, device), _blank(process, device))
        if role == COMPUTE:
            found[process, device] = replace(
                entry,
                kernels=sum(stream.n_rows for stream in sums[key]),
                compute_busy_ns=int(overlap.busy_compute_ns[group]),
                compute_streams=_stream_names(sums[key]),
                kernel_streams=_stream_names(_of_kernels(sums[key])),
            )
        elif role in COPIES:
            busy_ns, hidden_ns = int(overlap.busy_copy_ns[group]), int(overlap.hidden_copy_ns[group])
            known_ns = None if ROLES[role] in MANAGED else hidden_ns
            entry.copies[ROLES[role]] = _copy_figures(sums[key], busy_ns, known_ns)
    return [entry for entry in found.values() if entry.kernels or entry.copies]


def _by_role(streams: list[StreamSums]) -> dict[tuple[int, ...], list[StreamSums]]:
    found: dict[tuple[int, ...], list[StreamSums]] = {}
    for stream in streams:
        found.setdefault((stream.process, stream.device, stream.role), []).append(stream)
    return found


def _of_kernels(streams: list[StreamSums]) -> list[StreamSums]:
    least_ns = KERNEL_STREAM_SHARE * sum(stream.length_ns for stream in streams)
    names = [stream.stream for stream in streams]
    lengths = {name: sum(s.length_ns for s in streams if s.stream == name) for name in names}
    return [stream for stream in streams if lengths[stream.stream] >= least_ns]


def _copy_figures(streams: list[StreamSums], busy_ns: int, hidden_ns: int | None) -> CopyFigures:
    says_size = not any(stream.n_sizeless for stream in streams)
    says_memory = says_size and any(stream.n_told_memory for stream in streams)
    n_bytes = sum(stream.bytes for stream in streams) if says_size else None
    return CopyFigures(
        count=sum(stream.n_rows for stream in streams),
        bytes=n_bytes,
        busy_ns=busy_ns,
        hidden_ns=hidden_ns,
        gb_s=n_bytes / busy_ns if n_bytes is not None and busy_ns > 0 else None,
        pinned_bytes=sum(stream.pinned_bytes for stream in streams) if says_memory else None,
        pageable_bytes=sum(stream.pageable_bytes for stream in streams) if says_memory else None,
        streams=_stream_names(streams),
    )


def _stream_names(streams: list[StreamSums]) -> list[int | str]:
    """Their names, those that are numbers as numbers and first."""
    names = {_as_number(stream.stream) for stream in streams if stream.stream is not None}
    return sorted(names, key=lambda name: (isinstance(name, str), name))


def _as_number(name: str) -> int | str:
    return int(name) if name.isascii() and name.isdigit() and len(name) < 19 else name


def _blank(process: int, device: int) -> DeviceFigures:
    return DeviceFigures(
        process=None if process == ABSENT else process,
        device=None if device == ABSENT else device,
        kernels=0,
        compute_busy_ns=0,
        compute_streams=[],
        kernel_streams=[],
        copies={},
    )


TIME_PARTS: Final = ("compute_ns", "hidden_ns", "exposed_ns", "other_ns", "idle_ns")


def typical_time_spent(figures: pd.DataFrame, n_devices: int | pd.Series[int] = 1) -> pd.DataFrame:
    """One row an arm (index) of a frame of `pass_figures` with the column `arm`: medians over its passes of the parts
    of `time_spent`, and of `host_compute_ns`."""
    parts = time_spent(figures, n_devices).assign(host_compute_ns=figures["host_compute_ns"])
    found: pd.DataFrame = parts.groupby(figures["arm"]).median()
    return found


def time_spent(figures: pd.DataFrame, n_devices: int | pd.Series[int] = 1) -> pd.DataFrame:
    """One row a pass of a frame of `pass_figures`: TIME_PARTS, which add up to n_devices x wall_ns.

    n_devices: how many worked in a pass, for all or by the frame's index.

    compute_ns   busy compute - hidden copy: computing, and no weights under way
    hidden_ns    hidden copy: both at once
    exposed_ns   exposed copy: weights under way, and nothing computes
    idle_ns      the device did nothing
    other_ns     the rest: collectives, copies back to the host or between devices, and what is neither compute nor
                 copy (memsets, graph launches recorded as a whole), while nothing computes
    NaN where the source cannot say.
    """
    spent = pd.DataFrame(index=figures.index)
    spent["compute_ns"] = figures["busy_compute_ns"] - figures["hidden_copy_ns"]
    spent["hidden_ns"] = figures["hidden_copy_ns"]
    spent["exposed_ns"] = figures["exposed_copy_ns"]
    known = spent.sum(axis=1, skipna=False) + figures["idle_ns"]
    spent["other_ns"] = (n_devices * figures["wall_ns"] - known).clip(lower=0)
    spent["idle_ns"] = figures["idle_ns"]
    return spent[list(TIME_PARTS)]


def device_spent(devices: Sequence[DeviceFigures], *, tells_copies: bool = True) -> pd.DataFrame:
    """One row a device of a whole trace: its busy time in the same TIME_PARTS, explicit copies from the host only.

    Idle and other are NaN: a trace says when it was started and stopped, not what it was meant to measure. Without
    `tells_copies` the parts of a device without such rows are NaN too: nobody knows what its copies hid behind.
    """
    rows = []
    for device in devices:
        busy_ns, hidden_ns = 0.0, 0.0
        if "h2d" in device.copies:
            copies = device.copies["h2d"]
            busy_ns = float(copies.busy_ns)
            hidden_ns = np.nan if copies.hidden_ns is None else float(copies.hidden_ns)
        elif not tells_copies:
            busy_ns = hidden_ns = np.nan
        rows.append((device.compute_busy_ns - hidden_ns, hidden_ns, busy_ns - hidden_ns, np.nan, np.nan))
    return pd.DataFrame(rows, columns=list(TIME_PARTS), dtype=float)
