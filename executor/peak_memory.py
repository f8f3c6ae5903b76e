"""The most memory that a pass held on a GPU, without what was held meanwhile only to measure something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

_before: Final[dict[int, int]] = {}
"""A device's peak since `begin`, up to the last measurement; torch's own counter begins anew behind each."""


def begin(device: torch.device) -> None:
    """Count from now on."""
    _before[_index(device)] = 0
    torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """The most that torch had handed out at once since `begin`."""
    return max(_before.get(_index(device), 0), torch.cuda.max_memory_allocated(device))


@contextmanager
def uncounted() -> Iterator[None]:
    """What is allocated inside, on the current GPU, does not count; it has to be freed inside too."""
    if not torch.cuda.is_available():
        yield
        return
    device = torch.device("cuda", torch.cuda.current_device())
    _before[_index(device)] = peak_bytes(device)
    try:
        yield
    finally:
        torch.cuda.reset_peak_memory_stats(device)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
