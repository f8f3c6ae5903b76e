"""What the Advise page reads: what `hprof advise --fit` finds for the chosen capture, cached."""

from __future__ import annotations

import os
from dataclasses import dataclass

import streamlit as st

from dashboard.trace_root import CaptureRef, Fingerprint
from executor.errors import BudgetTooSmallError, HprofError
from profiler.cli.advise import Searched, searched_by


@dataclass(frozen=True, slots=True)
class AdviceSettings:
    """What the page's controls say, as the command's options take it."""

    vram_budget: str
    objective: str
    n_prompt: str
    n_gen: str
    n_depth: str = "0"
    engine: str = "hprof"

    def options(self, capture: str) -> list[str]:
        """The command's options: the same search, in a terminal."""
        sizes = ["-p", self.n_prompt, "-n", self.n_gen, "-d", self.n_depth]
        return [
            *("--fit", capture, "--vram-budget", self.vram_budget, *sizes, "--objective", self.objective),
            *(("--for", self.engine) if self.engine != "hprof" else ()),
        ]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no answer, in a sentence; `least_bytes`: the budget that would do, where one was too small."""

    why: str
    least_bytes: int | None = None


def advised(found: CaptureRef, settings: AdviceSettings) -> Searched | Refused:
    """What to set, or why there is no answer."""
    return _advised(found.key, found.fingerprint, settings)


@st.cache_resource(max_entries=16, show_spinner="Searching what to set …")
def _advised(key: bytes, fingerprint: Fingerprint, settings: AdviceSettings) -> Searched | Refused:  # noqa: ARG001 - a part of the key
    try:
        return searched_by(settings.options(os.fsdecode(key)))
    except BudgetTooSmallError as error:
        return Refused(str(error), error.least_bytes)
    except HprofError as error:
        return Refused(str(error))
