"""How a kernel's programs find out which of them is done last, which then joins what all found."""

from __future__ import annotations

from typing import Final

import torch

MOST_COUNTERS: Final = 1024
_counters: Final[dict[torch.device, torch.Tensor]] = {}


def counters_of(device: torch.device) -> torch.Tensor:
    """Zeros (MOST_COUNTERS,) int32 that programs count in; every launch leaves zeros behind.

    They stay where they are, as recorded launches know their address, and serve one launch at a time: kernels that use
    them run on one stream, one after the other. Ask for the first ones outside a recording.
    """
    if device not in _counters:
        with torch.inference_mode(mode=False):
            _counters[device] = torch.zeros(MOST_COUNTERS, dtype=torch.int32, device=device)
    return _counters[device]
