"""Which bytes of its storage a strided tensor has, as runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

import torch

MOST_RUNS: Final = 256
"""Of a tensor with more, the first are looked at: what lies between runs is not its own, and must not look like it."""


def byte_runs(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """(from, to) in bytes of the tensor's storage, at most MOST_RUNS."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return
    if tensor.is_contiguous():
        yield first, first + tensor.numel() * size
        return
    # innermost first; a stride of 0 shows the same bytes again
    axes = sorted((stride, n) for stride, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1 and stride)
    run = 1
    outer: list[tuple[int, int]] = []
    for stride, n in axes:
        if stride == run and not outer:
            run *= n
        else:
            outer.append((stride, n))
    for count, places in enumerate(product(*(range(n) for _, n in reversed(outer)))):
        if count == MOST_RUNS:
            return
        at = sum(place * stride for place, (stride, _) in zip(places, reversed(outer), strict=True))
        yield first + at * size, first + (at + run) * size
