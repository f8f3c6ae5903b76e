"""Host memory for weights: in huge pages where the system gives them.

A core that streams weights looks up an address for each 4 KiB page, in a virtual machine through two tables.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Final

import torch

_WORTHWHILE_BYTES: Final = 4 << 20  # smaller buffers lie where torch puts them


def host_bytes(n_bytes: int) -> torch.Tensor:
    """(n_bytes,) uint8, 64-byte aligned, not touched yet."""
    if n_bytes < _WORTHWHILE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(n_bytes, dtype=torch.uint8)
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)
