"""Copies between host and device by CUDA's own call: torch's `copy_` takes the host four times as long to issue.

That time is what a token pays for each run of experts that its layers copy.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Final

import torch

_DEFAULT: Final = 4  # cudaMemcpyDefault: addresses say which way
Memcpy = Callable[[int, int, int, int], int]
"""(target, source, n_bytes, stream) to an error's code, 0 for none."""


@functools.cache
def cuda_memcpy() -> Memcpy | None:
    """Queues a copy; None where the runtime that torch loaded cannot be found under its usual name."""
    if torch.version.cuda is None:
        return None
    try:
        function = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}").cudaMemcpyAsync
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    function.restype = ctypes.c_int
    return lambda target, source, n_bytes, stream: int(function(target, source, n_bytes, _DEFAULT, stream))
