"""The likeliest next token in one kernel. Needs Triton, so only `executor.layers.one_token` imports it."""

from __future__ import annotations

from typing import Final

import torch
from triton import jit, next_power_of_2
from triton import language as tl

from executor.layers.token_counters import counters_of

_SCAN: Final = 4096  # logits that a program compares


@jit
def _arg_max(
    row: tl.tensor, highest: tl.tensor, places: tl.tensor, counter: tl.tensor, out: tl.tensor, n: tl.tensor,
    BLOCK: tl.constexpr, PROGRAMS: tl.constexpr, PROGRAMS_PADDED: tl.constexpr,
) -> None:  # fmt: skip
    """The program that is done last compares what all found; of equal numbers the first counts.

    NaN is the largest, as in PyTorch: compared as it is, it might let a place win that is none.
    """
    program = tl.program_id(0)
    column = program * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(row + column, mask=column < n, other=float("-inf"))
    numbers = tl.where(numbers == numbers, numbers, float("inf"))
    tl.store(highest + program, tl.max(numbers, 0))
    tl.store(places + program, program * BLOCK + tl.argmax(numbers, 0))
    tl.debug_barrier()
    if tl.atomic_add(counter, 1, sem="acq_rel") != PROGRAMS - 1:
        return
    tl.store(counter, 0)  # for the next launch
    every = tl.arange(0, PROGRAMS_PADDED)
    found = tl.load(highest + every, mask=every < PROGRAMS, other=float("-inf"), cache_modifier=".cg")
    best = tl.argmax(found, 0)
    tl.store(out, tl.load(places + best, cache_modifier=".cg").to(tl.int64))


def arg_max(row: torch.Tensor, out: torch.Tensor) -> None:
    """Where the largest of row (n,) float32 stands, into `out` (1,) int64."""
    programs = -(-row.numel() // _SCAN)
    highest = torch.empty(programs, dtype=torch.float32, device=row.device)
    places = torch.empty(programs, dtype=torch.int32, device=row.device)
    _arg_max[(programs,)](
        row, highest, places, counters_of(row.device), out, row.numel(),
        BLOCK=_SCAN, PROGRAMS=programs, PROGRAMS_PADDED=next_power_of_2(programs), num_warps=4,
    )  # fmt: skip
