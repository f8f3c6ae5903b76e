"""What of hprof works on this machine, and what to do where it does not: `hprof doctor`.

Each check is a pure function of facts, so that it can be held to machines that are not there; `examine` gathers them.
"""

from __future__ import annotations

from collections.abc import Iterator

from profiler.doctor.check import HealthCheck, State
from profiler.doctor.gpus import gpu_checks
from profiler.doctor.machine import machine_checks
from profiler.doctor.software import software_checks

__all__ = ["HealthCheck", "State", "examine"]


def examine(folder: str) -> Iterator[HealthCheck]:
    """Every check of this machine, as they are done; the link's copy takes a second a GPU.

    folder: where captures go, whose disk is looked at.
    """
    yield from software_checks()
    yield from gpu_checks()
    yield from machine_checks(folder)
