"""The machine besides its GPUs: what else it does, its clocks, memory and disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from executor.units import format_bytes, format_rate
from profiler.doctor.check import HealthCheck

_CROWDED: Final = 0.5  # of the processors: beyond it programs take turns with the run's threads
_LITTLE_DISK_BYTES: Final = 2 * 10**9  # some hundred captures of a usual run
_LITTLE_MEMORY: Final = 0.2  # of the whole: model weights in host memory need the most of it


def machine_checks(folder: str) -> Iterator[HealthCheck]:
    """Load, clocks, memory and the disk below `folder`."""
    import psutil

    from profiler.facts import describe_machine

    facts = describe_machine()
    yield load_check(facts)
    yield governor_check(facts.get("cpu_governor"))
    memory = psutil.virtual_memory()
    yield memory_check(memory.available, memory.total)
    yield disk_check(folder)


def load_check(facts: Mapping[str, Any]) -> HealthCheck:
    """Whether other programs leave the processors alone; facts: `describe_machine`'s."""
    load, n_processors = facts.get("load_1min"), facts.get("usable_threads") or facts.get("threads")
    if load is None or not n_processors:
        return HealthCheck("load", "absent", "The system does not say how busy it is.")
    fact = f"Load {format_rate(load)} on {n_processors} processors, {facts.get('cpu') or 'of unknown name'}."
    if load > n_processors * _CROWDED:
        return HealthCheck("load", "poor", fact, "close other programs before a run; times and intervals suffer.")
    return HealthCheck("load", "ok", fact)


def governor_check(governor: str | None) -> HealthCheck:
    """Whether the processors keep their clock."""
    if governor is None:
        return HealthCheck("cpu clock", "absent", "The system does not say how it sets the processors' clock.")
    fact = f"The processors' governor is {governor}."
    if governor == "powersave":
        return HealthCheck("cpu clock", "poor", fact, "for runs on the CPU: sudo cpupower frequency-set -g performance")
    return HealthCheck("cpu clock", "ok", fact)


def memory_check(available_bytes: int, total_bytes: int) -> HealthCheck:
    """Whether there is room for weights in host memory."""
    fact = f"{format_bytes(available_bytes)} of {format_bytes(total_bytes)} of host memory are available."
    if available_bytes < total_bytes * _LITTLE_MEMORY:
        return HealthCheck("host memory", "poor", fact, "close other programs: weights in host memory need room.")
    return HealthCheck("host memory", "ok", fact)


def disk_check(folder: str) -> HealthCheck:
    """Whether captures can be written to `folder`, and for how long; it need not be there yet."""
    if "://" in folder:
        return HealthCheck(
            "disk", "absent", f"{folder} is an address: whether it takes captures shows when it is used."
        )
    place = Path(folder).absolute()
    existing = next(path for path in (place, *place.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return HealthCheck("disk", "broken", f"Captures go to {folder}, and {existing} cannot be written.", "use -o.")
    stats = os.statvfs(existing)
    free = stats.f_bavail * stats.f_frsize
    fact = f"Captures go to {folder}, where {format_bytes(free)} are free."
    if free < _LITTLE_DISK_BYTES:
        return HealthCheck("disk", "poor", fact, "free some, or write elsewhere with -o.")
    return HealthCheck("disk", "ok", fact)
