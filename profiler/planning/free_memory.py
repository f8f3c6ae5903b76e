"""How much memory is free: the host's, inside its container where there is one, and each device's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import torch

from executor.devices.factory import DeviceOptions

_CGROUPS: Final = (  # limit, use, and in the statistics the part of it that the kernel drops when asked for more
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


@dataclass(frozen=True, slots=True)
class Free:
    """Bytes; None where nothing limits it."""

    host: int | None
    devices: tuple[int | None, ...]


def free_memory(options: DeviceOptions) -> Free:
    """What a run on these devices may take. Nothing of the host is asked for on `sim`."""
    n = options.n_devices
    if options.kind == "sim":
        return Free(None, (options.machine.memory_bytes if options.machine else None,) * n)
    if options.kind == "cpu":
        return Free(free_host_bytes(), (options.memory_bytes,) * n)
    return Free(free_host_bytes(), tuple(torch.cuda.mem_get_info(i)[0] for i in range(n)))


def free_host_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Host memory that can be had without swapping; in a container no more than its limit leaves."""
    limits = [_left_in_cgroup(root, *names) for names in _CGROUPS]
    return min([int(psutil.virtual_memory().available), *(left for left in limits if left is not None)])


def _left_in_cgroup(root: Path, limit: str, used: str, statistics: str, droppable: str) -> int | None:
    """None where there is no limit, or no control group of this version."""
    try:
        most, taken = (int((root / name).read_text()) for name in (limit, used))
        lines = (line.split() for line in (root / statistics).read_text().splitlines())
        cached = next((int(value) for name, value in lines if name == droppable), 0)
    except (OSError, ValueError):  # "max" is no number: no limit
        return None
    return max(0, most - taken + cached)
