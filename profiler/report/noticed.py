"""What a run with an injected fault noticed of it by itself, without `hprof check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from executor.units import format_value
from profiler.manifest import Manifest
from profiler.metrics.ordering import Ordering
from profiler.report.cells import Cell


@dataclass(frozen=True, slots=True)
class Noticed:
    """`same_tokens`, `bit_identical` and `intervals_in_order` are None where nothing tells."""

    fault: str
    same_tokens: bool | None
    bit_identical: bool | None
    intervals_in_order: bool | None
    early: str
    """What is out of order, in words."""
    bytes_h2d: dict[str, float | None]
    """Moved in a pass, by arm: the median in the first cell that the arm ran."""

    def line(self) -> str:
        """One line for a report."""
        told = [f"bytes moved to the device in a pass: {self._moved()}"]
        told += list(self._compared())
        judged = [self.same_tokens, self.bit_identical, self.intervals_in_order]
        what = "that something is wrong" if False in judged else "nothing" if any(judged) else "nothing that tells"
        seen = f"Of the injected fault {self.fault} the run itself noticed {what}: {'; '.join(told)}"
        return f"{seen}. Trust no figure of this run"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "fault": self.fault,
            "same_tokens": self.same_tokens,
            "bit_identical": self.bit_identical,
            "intervals_in_order": self.intervals_in_order,
            "bytes_h2d": self.bytes_h2d,
        }

    def _moved(self) -> str:
        return ", ".join(f"{arm} {format_value(n_bytes, 'bytes')}" for arm, n_bytes in self.bytes_h2d.items())

    def _compared(self) -> Iterator[str]:
        if self.same_tokens is None and self.bit_identical is None:
            yield "no two arms whose tokens or logits could be compared"
        if self.same_tokens is not None:
            yield "the arms' tokens are the same" if self.same_tokens else "the arms' tokens differ"
        if self.bit_identical is not None:
            yield "their logits are bit-identical" if self.bit_identical else "their logits are not bit-identical"
        if self.intervals_in_order is not None:
            yield "the recorded intervals are in order" if self.intervals_in_order else f"intervals: {self.early}"


def what_was_noticed(manifest: Manifest, cells: Sequence[Cell], ordering: Ordering | None) -> Noticed | None:
    """None where no fault was injected."""
    fault = manifest.extra.get("injected_fault")
    if not isinstance(fault, str):
        return None
    moved: dict[str, float | None] = {}
    for cell in cells:
        for name, arm in cell.arms.items():
            moved.setdefault(name, arm.median("bytes_h2d"))
    return Noticed(
        fault,
        _all_of([cell.same_tokens for cell in cells]),
        _all_of([cell.bit_identical for cell in cells]),
        None if ordering is None else ordering.is_clean,
        "" if ordering is None else ordering.n_early(),
        moved,
    )


def _all_of(facts: Sequence[bool | None]) -> bool | None:
    """Whether it holds wherever it is known."""
    known = [fact for fact in facts if fact is not None]
    return all(known) if known else None
