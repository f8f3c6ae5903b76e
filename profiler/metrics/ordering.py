"""Whether the recorded intervals keep the order that a prefetching engine needs: no step reads weights before their
copy has ended, and no copy refills a slot before the slot's last reader has ended.

Equal tokens and bit-identical logits do not show such a fault: mostly the late copy brings the bytes that the slot
held already. The intervals do, as far as the events' clocks resolve. hprof's own captures name the copy that a step
reads (`waits_for`) and the copy's slot; what other tools recorded does not, so nothing can be said of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from executor.arrays import Flags, Int64
from executor.units import format_count, format_ns
from profiler.arithmetic.groups import group_by
from profiler.arithmetic.joins import match
from profiler.metrics.events import ints
from profiler.schema import ABSENT, label_codes

if TYPE_CHECKING:
    from profiler.capture import Capture

RESOLUTION_NS: Final = 1_000
"""Less is no fault: CUDA's events resolve about 0.5 us (`cudaEventElapsedTime`), and two of them are compared."""
MAX_NAMED: Final = 20
_INTS: Final = ("pass_id", "device", "ubatch", "layer", "slot", "correlation_id", "waits_for", "t_start", "t_end")
_LABELS: Final = ("name", "tensor")

FaultKind = Literal["read before its copy", "refill before its reader"]


@dataclass(frozen=True, slots=True)
class OrderingFault:
    """A step and a copy in the wrong order. Names of the copy begin with `copy_`; the rest is the step's."""

    kind: FaultKind
    pass_id: int
    arm: str | None
    device: int
    ubatch: int
    layer: int
    step: str
    copy_id: int  # correlation_id
    copy_ubatch: int
    copy_layer: int
    copy_tensor: str
    slot: int | None  # None: the expert cache's bank
    too_early_by_ns: int
    t_start: int  # of the step, ns on the capture's clock
    t_end: int

    def __str__(self) -> str:
        step = f"step {self.step} of layer {self.layer}, ubatch {self.ubatch}"
        copy = f"copy {self.copy_id} ({self.copy_tensor} of layer {self.copy_layer}, ubatch {self.copy_ubatch})"
        place = "the bank" if self.slot is None else f"slot {self.slot}"
        early = format_ns(self.too_early_by_ns)
        where = f"pass {self.pass_id}" + (f" of arm {self.arm}" if self.arm else "") + f", device {self.device}"
        if self.kind == "read before its copy":
            return f"{where}: {step} starts {early} before {copy} into {place} ends"
        return f"{where}: {copy} into {place} starts {early} before {step}, which reads the slot, ends"


@dataclass(frozen=True, slots=True)
class Ordering:
    """What was held against the clocks, and what failed. `unknown`: why nothing could be; then the counts are 0."""

    unknown: str | None = None
    n_reads: int = 0
    n_refills: int = 0
    n_early_reads: int = 0
    n_early_refills: int = 0
    faults: tuple[OrderingFault, ...] = ()
    """The worst, at most MAX_NAMED."""

    @property
    def is_clean(self) -> bool | None:
        """Whether all that was held is in order; None where that is not known."""
        return None if self.unknown else not self.n_early_reads and not self.n_early_refills

    def to_json(self) -> dict[str, Any]:
        """As plain values; counts are null where nothing is known."""
        counts = {"reads": self.n_reads, "refills": self.n_refills}
        early = {"early_reads": self.n_early_reads, "early_refills": self.n_early_refills}
        known = {name: None if self.unknown else count for name, count in (counts | early).items()}
        state = {None: "unknown", True: "clean", False: "faults"}[self.is_clean]
        faults = [asdict(fault) for fault in self.faults]
        return {"state": state, "unknown": self.unknown, "resolution_ns": RESOLUTION_NS} | known | {"faults": faults}

    def n_early(self) -> str:
        """What is out of order, in words."""
        return (
            f"{format_count(self.n_early_reads, 'read')} before the copy ended, "
            f"{format_count(self.n_early_refills, 'refill')} before the slot's reader ended"
        )

    def line(self) -> str:
        """One line for a report."""
        if self.unknown:
            return f"ordering: unknown, as {self.unknown}"
        held = f"{format_count(self.n_reads, 'read')} and {format_count(self.n_refills, 'refill')}"
        if self.is_clean:
            return f"ordering: no read before its copy, no refill before its reader ({held})"
        early = (
            f"{self.n_early_reads:,} reads before their copy and {self.n_early_refills:,} refills before their reader"
        )
        return f"ordering: {early}, of {held}; the worst: {self.faults[0]}"


def check_ordering(capture: Capture) -> Ordering:
    """Hold a capture's intervals to each other, warm-ups too."""
    if capture.manifest.source != "hprof":
        return Ordering(unknown="the source does not say which copy a step reads")
    parts = [_copies_and_readers(part) for part in capture.tables("events", ["kind", *_INTS, *_LABELS])]
    if not parts:
        return Ordering(unknown="no events were recorded")
    rows = pa.concat_tables(parts).unify_dictionaries()
    passes = capture.table("passes", ["pass_id", "arm"]).to_pydict()
    return check_rows(rows, dict(zip(passes["pass_id"], passes["arm"], strict=True)))


def _copies_and_readers(events: pa.Table) -> pa.Table:
    """The rows that are copies of weights, or steps that read such a copy."""
    kind, kinds = label_codes(events["kind"])
    is_copy, is_compute = (kind == (kinds.index(name) if name in kinds else ABSENT - 1) for name in ("h2d", "compute"))
    timed, numbered, named, waiting = (
        np.logical_and.reduce([events[name].is_valid().to_numpy() for name in names])
        for names in (("t_start", "t_end"), ("correlation_id",), ("tensor",), ("waits_for",))
    )
    return events.filter(pa.array(timed & ((is_copy & numbered & named) | (is_compute & waiting))))


def check_rows(rows: pa.Table, arms: Mapping[int, str]) -> Ordering:
    """The same for the rows of weights' copies and of the steps that read them; `arms` are the passes' arms."""
    columns = {name: ints(rows[name], np.int64) for name in _INTS}
    texts = {name: label_codes(rows[name]) for name in _LABELS}
    kind, kinds = label_codes(rows["kind"])
    is_copy = kind == (kinds.index("h2d") if "h2d" in kinds else ABSENT - 1)
    copies, readers = np.flatnonzero(is_copy), np.flatnonzero(~is_copy)
    fills = _Fills.of(columns, texts["tensor"][0].astype(np.int64), copies)
    reads = match(
        columns["pass_id"][readers],
        columns["waits_for"][readers],
        columns["pass_id"][copies],
        columns["correlation_id"][copies],
    )
    readers, fill = readers[reads.row], fills.of_copy[reads.other]
    if not len(readers):
        return Ordering(unknown="no step that reads copied weights was recorded")
    read_early_ns = fills.end[fill] - columns["t_start"][readers]
    before, after = _refills(fills, fill, columns["device"][readers], texts["name"][0][readers].astype(np.int64))
    refill_early_ns = columns["t_end"][readers[before]] - fills.start[fill[after]]
    early_reads, early_refills = (early > RESOLUTION_NS for early in (read_early_ns, refill_early_ns))

    def fault(kind: FaultKind, reader: int, row: int, early_ns: int) -> OrderingFault:
        of = {name: int(values[reader]) for name, values in columns.items()}
        of_copy = {name: int(values[row]) for name, values in columns.items()}
        return OrderingFault(
            kind=kind,
            pass_id=of["pass_id"],
            arm=arms.get(of["pass_id"]),
            device=of["device"],
            ubatch=of["ubatch"],
            layer=of["layer"],
            step=texts["name"][1][texts["name"][0][reader]],
            copy_id=of_copy["correlation_id"],
            copy_ubatch=of_copy["ubatch"],
            copy_layer=of_copy["layer"],
            copy_tensor=texts["tensor"][1][texts["tensor"][0][row]],
            slot=None if of_copy["slot"] == ABSENT else of_copy["slot"],
            too_early_by_ns=early_ns,
            t_start=of["t_start"],
            t_end=of["t_end"],
        )

    found = [
        fault("read before its copy", int(readers[i]), int(fills.last[fill[i]]), int(read_early_ns[i]))
        for i in _worst(read_early_ns, early_reads)
    ] + [
        fault("refill before its reader", int(readers[before[i]]), int(fills.first[fill[after[i]]]), int(ns))
        for i, ns in ((i, refill_early_ns[i]) for i in _worst(refill_early_ns, early_refills))
    ]
    return Ordering(
        n_reads=len(readers),
        n_refills=len(before),
        n_early_reads=int(early_reads.sum()),
        n_early_refills=int(early_refills.sum()),
        faults=tuple(sorted(found, key=lambda one: -one.too_early_by_ns)[:MAX_NAMED]),
    )


@dataclass(frozen=True, slots=True)
class _Fills:
    """The times that weights were put into a slot: one element a fill, which may take several copies."""

    of_copy: Int64  # a copy's fill
    start: Int64
    end: Int64
    first: Int64  # rows of the copies that start first and end last
    last: Int64
    number: Int64  # the first copy's correlation_id: fills of a pass in the order of their issue
    slot: Int64
    pass_id: Int64

    @classmethod
    def of(cls, columns: Mapping[str, Int64], tensor: Int64, copies: Int64) -> _Fills:
        keys = {name: columns[name][copies] for name in ("pass_id", "device", "ubatch", "layer")}
        groups = group_by({**keys, "tensor": tensor[copies]})
        by_start, by_end = (np.argsort(columns[name][copies], kind="stable") for name in ("t_start", "t_end"))
        first, last = np.empty(len(groups), np.int64), np.empty(len(groups), np.int64)
        first[groups.of_row[by_start[::-1]]] = copies[by_start[::-1]]
        last[groups.of_row[by_end]] = copies[by_end]
        number = np.full(len(groups), np.iinfo(np.int64).max)
        np.minimum.at(number, groups.of_row, columns["correlation_id"][copies])
        start, end = columns["t_start"][first], columns["t_end"][last]
        return cls(groups.of_row, start, end, first, last, number, columns["slot"][first], columns["pass_id"][first])


def _refills(fills: _Fills, fill: Int64, device: Int64, step: Int64) -> tuple[Int64, Int64]:
    """Which readers' slots were filled again, and by whose fill: places among the readers, (before, after).

    Slots are numbered for each kind of step (`fill` and `step` are the readers'), so those of two kinds never meet.
    """
    slotted = np.flatnonzero(fills.slot[fill] != ABSENT)
    of = fill[slotted]
    keys = {"pass_id": fills.pass_id[of], "device": device[slotted], "step": step[slotted], "slot": fills.slot[of]}
    slot = group_by(keys).of_row if len(slotted) else slotted
    order = np.lexsort((fills.number[of], slot))
    is_same = slot[order[1:]] == slot[order[:-1]]
    return slotted[order[:-1][is_same]], slotted[order[1:][is_same]]


def _worst(early_ns: Int64, is_fault: Flags) -> Int64:
    rows = np.flatnonzero(is_fault)
    return rows[np.argsort(-early_ns[rows], kind="stable")][:MAX_NAMED]
