"""One token's norm in one kernel. Needs Triton, so only `executor.layers.one_token` imports it."""

from __future__ import annotations

import torch
from triton import jit, next_power_of_2
from triton import language as tl

from executor.stamp_kernels import stamp_by_first
from executor.stamps import AT_BEGIN


@jit(do_not_specialize=["stamp"])
def _rms_norm(
    x: tl.tensor, weight: tl.tensor, out: tl.tensor, stamp: tl.tensor, n: tl.tensor, eps: tl.tensor, BLOCK: tl.constexpr
) -> None:
    stamp_by_first(stamp)
    column = tl.arange(0, BLOCK)
    inside = column < n
    numbers = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(numbers * numbers, 0) / n + eps)
    weights = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + column, (numbers * scale * weights).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight for one row x (1, n), summed in float32."""
    n = x.shape[1]
    out = torch.empty_like(x)
    _rms_norm[(1,)](x, weight, out, AT_BEGIN.take(x.device), n, eps, BLOCK=next_power_of_2(n), num_warps=8)
    return out
