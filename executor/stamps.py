"""Marks that a kernel makes by itself: where it is to write its GPU's clock, offered to whatever is launched next.

A mark of its own costs recorded work most of a microsecond, one inside a kernel nothing. Who issues a step knows that
its first kernel (or its last) makes marks, and offers a place; the kernel's launcher takes it. One thread issues.
"""

from __future__ import annotations

from typing import Final

import torch

STAMP_KERNEL: Final = "_stamp"
"""What a profiler calls the kernel that makes a mark and nothing else (`executor.stamp_kernels`)."""

_unread: Final[dict[torch.device, torch.Tensor]] = {}


class StampOffer:
    """A place for one stamp, until it is taken."""

    def __init__(self) -> None:
        self._place: torch.Tensor | None = None

    def make(self, place: torch.Tensor) -> None:
        """Offer a place, (1,) int64 on a GPU."""
        self._place = place

    def take(self, device: torch.device) -> torch.Tensor | None:
        """The place, for whoever asks first; else one that nobody reads, as a kernel stamps always. None: no GPU."""
        if device.type != "cuda":
            return None
        place, self._place = self._place, None
        if place is not None:
            return place
        if device not in _unread:
            _unread[device] = torch.zeros(1, dtype=torch.int64, device=device)
        return _unread[device]

    def withdraw(self) -> None:
        """Offer nothing any more: who offered it was interrupted."""
        self._place = None

    def is_open(self) -> bool:
        """Whether nobody took what was offered last."""
        return self._place is not None


AT_BEGIN: Final = StampOffer()
"""For the first kernel of a step, which stamps when it begins."""
AT_END: Final = StampOffer()
"""For the last kernel of a step, which stamps when it ends."""
