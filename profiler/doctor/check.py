"""What one check of a machine found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "absent", "poor", "broken"]
"""ok; not there, so that some command has nothing to work with; there but not as it should be; in the way of hprof."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A fact in a sentence, and what to do about it where something can be done."""

    name: str
    state: State
    fact: str
    advice: str | None = None
