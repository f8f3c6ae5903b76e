"""What a finding is: a rule that applied, how much it matters, the figures, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["info", "warning", "serious"]
SEVERITIES: Final[tuple[Severity, ...]] = ("serious", "warning", "info")

SERIOUS_SHARE: Final = 0.20
WARNING_SHARE: Final = 0.05
IGNORED_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Finding:
    """`evidence` carries figures, `advice` says what to do about them; both are plain sentences."""

    rule: str
    severity: Severity
    evidence: str
    advice: str


def severity_of(lost_ns: float, window_ns: float) -> Severity | None:
    """By the share of the measured time that is at stake; None below 1 %."""
    share = lost_ns / window_ns if window_ns > 0 else 0.0
    if share < IGNORED_SHARE:
        return None
    return "serious" if share >= SERIOUS_SHARE else "warning" if share >= WARNING_SHARE else "info"
