"""What bounds an arm's prompt: which of copying, computing and computing on the host takes as long as the whole. One
rule, which the report's summary and the dashboard put into words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from profiler.metrics import Scope
from profiler.report.cells import ArmFigures

Part = Literal["copy", "compute", "host"]

_FIGURES: Final[dict[Part, str]] = {
    "copy": "busy_copy_ns",
    "compute": "busy_compute_ns",
    "host": "host_compute_ns",
}
_HARDLY_LONGER: Final = 0.15  # a part bounds only what takes hardly longer than it
_ALIKE: Final = 0.1  # parts so close to each other bound it together


@dataclass(frozen=True, slots=True)
class Bound:
    """Medians of what an arm did in its prompt; in the whole pass where no prompt copies."""

    scope: Scope  # "prefill" or "pass"
    parts: dict[Part, float]  # ns; only those that took any time
    took_ns: float | None  # the time to first token, else the length of the phase; None where unknown
    is_summed: bool  # over devices, which work beside each other: the sum of their times bounds nothing

    @property
    def longest_ns(self) -> float:
        """No overlap of the parts can take less."""
        return max(self.parts.values())

    @property
    def bounding(self) -> list[Part]:
        """The longest part and those alike, the longest first; none where the whole takes clearly longer than it."""
        if self.is_summed or (self.took_ns is not None and self.longest_ns < self.took_ns * (1 - _HARDLY_LONGER)):
            return []
        near = [part for part, value in self.parts.items() if value >= self.longest_ns * (1 - _ALIKE)]
        return sorted(near, key=lambda part: -self.parts[part])


def find_bound(arm: ArmFigures) -> Bound | None:
    """What bounds the arm; None where the source does not say both copies and compute, or nothing took time."""
    scope: Scope = "prefill" if arm.median("busy_copy_ns", "prefill") else "pass"
    found = {part: arm.median(name, scope) for part, name in _FIGURES.items()}
    parts = {part: value for part, value in found.items() if value}
    if found["copy"] is None or found["compute"] is None or not parts:
        return None
    took_ns = (arm.median("ttft_ns") if scope == "prefill" else None) or arm.median("wall_ns", scope)
    is_beyond = took_ns is not None and max(parts.values()) > took_ns * (1 + _ALIKE)
    return Bound(scope, parts, took_ns, is_summed=arm.n_devices > 1 or is_beyond)
