"""One token's router in one kernel: norm, logits, choice, weights and flags.

Needs Triton, so only `executor.layers.one_token` imports it. Everything is summed in float32.
"""

from __future__ import annotations

from typing import Final

import torch
from triton import jit, next_power_of_2
from triton import language as tl

from executor.layers.token_counters import counters_of
from executor.model import MoeFfn
from executor.stamp_kernels import stamp_by_first, stamp_here
from executor.stamps import AT_BEGIN, AT_END

_ROWS: Final = 1  # experts that a program scores
_WARP_COLUMNS: Final = 1024  # numbers of a row that a warp keeps in registers
_SMALLEST_SUM: Final = tl.constexpr(6.103515625e-5)  # as `executor.layers.router`


@jit(do_not_specialize=["begin_stamp", "end_stamp"])
def _route(
    x: tl.tensor, norm: tl.tensor, router: tl.tensor, logits_bias: tl.tensor, scores_bias: tl.tensor,
    given: tl.tensor, begin: tl.tensor, h: tl.tensor, logits: tl.tensor, ids: tl.tensor, weights: tl.tensor,
    flags: tl.tensor, counter: tl.tensor, begin_stamp: tl.tensor, end_stamp: tl.tensor,
    n: tl.tensor, eps: tl.tensor, factor: tl.tensor,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, SCORING: tl.constexpr, NORMALISE: tl.constexpr,
    N_EXPERTS: tl.constexpr, EXPERTS: tl.constexpr, N_USED: tl.constexpr, USED: tl.constexpr,
) -> None:  # fmt: skip
    """Each program scores `ROWS` experts, the one that is done last chooses.

    All norm the row again, which costs less than a launch between norm and scores. `BLOCK`, `EXPERTS` and `USED` are
    powers of two that hold n, `N_EXPERTS` and `N_USED`.
    """
    stamp_by_first(begin_stamp)
    program, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < n
    scored = program * ROWS + tl.arange(0, ROWS)
    rows = tl.load(  # before anything waits
        router + scored[:, None] * n + column[None, :],
        mask=(scored < N_EXPERTS)[:, None] & inside[None, :],
        other=0.0,
    )
    norms = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
    numbers = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(numbers * numbers, 0) / n + eps)
    normed = (numbers * scale * norms).to(h.dtype.element_ty)
    if program == 0:
        tl.store(h + column, normed, mask=inside)
    products = rows.to(tl.float32) * normed.to(tl.float32)[None, :]
    tl.store(logits + scored, tl.sum(products, 1), mask=scored < N_EXPERTS)
    tl.debug_barrier()
    if tl.atomic_add(counter, 1, sem="acq_rel") != tl.num_programs(0) - 1:
        return
    tl.store(counter, 0)  # for the next launch
    expert, place = tl.arange(0, EXPERTS), tl.arange(0, USED)
    scores = _scores(logits, logits_bias, expert, SCORING, N_EXPERTS)
    if given is not None:
        chosen = tl.load(given + tl.load(begin) * N_USED + place, mask=place < N_USED, other=-1).to(tl.int32)
    else:
        chosen = _best(scores, scores_bias, expert, place, N_EXPERTS, N_USED)
    is_chosen = chosen[:, None] == expert[None, :]
    counts = tl.sum(tl.where(is_chosen, scores[None, :], 0.0), 1)
    counts = _weights(counts, place, SCORING, NORMALISE, N_USED)
    tl.store(ids + place, chosen.to(tl.int64), mask=place < N_USED)
    tl.store(weights + place, counts * factor, mask=place < N_USED)
    tl.store(flags + expert, (tl.sum(is_chosen.to(tl.int32), 0) > 0).to(tl.uint8), mask=expert < N_EXPERTS)
    stamp_here(end_stamp)


@jit
def _scores(
    logits: tl.tensor, logits_bias: tl.tensor, expert: tl.tensor, SCORING: tl.constexpr, N_EXPERTS: tl.constexpr
) -> tl.tensor:
    """What experts are compared by, (EXPERTS,), as in `executor.layers.router`; read past this processor's cache."""
    known = expert < N_EXPERTS
    scores = tl.load(logits + expert, mask=known, other=float("-inf"), cache_modifier=".cg")
    if logits_bias is not None:
        scores += tl.load(logits_bias + expert, mask=known, other=0.0).to(tl.float32)
    if SCORING == "softmax":
        powers = tl.exp(scores - tl.max(scores, 0))
        scores = powers / tl.sum(powers, 0)
    if SCORING == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-scores))
    return scores


@jit
def _best(
    scores: tl.tensor, scores_bias: tl.tensor, expert: tl.tensor, place: tl.tensor,
    N_EXPERTS: tl.constexpr, N_USED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The `N_USED` experts of the largest scores, the largest first, (USED,); -1 behind them."""
    known = expert < N_EXPERTS
    if scores_bias is not None:
        scores += tl.load(scores_bias + expert, mask=known, other=0.0).to(tl.float32)
    scores = tl.where(scores == scores, scores, float("inf"))  # NaN is the largest, as in PyTorch
    scores = tl.where(known, scores, float("-inf"))
    chosen = place * 0 - 1
    for number in tl.static_range(N_USED):
        best = tl.argmax(scores, 0)
        chosen = tl.where(place == number, best, chosen)
        scores = tl.where(expert == best, float("-inf"), scores)
    return chosen


@jit
def _weights(
    counts: tl.tensor, place: tl.tensor, SCORING: tl.constexpr, NORMALISE: tl.constexpr, N_USED: tl.constexpr
) -> tl.tensor:
    """What each choice's output counts, of the chosen experts' scores; zero behind the last choice."""
    if SCORING == "softmax_topk":
        powers = tl.exp(counts - tl.max(tl.where(place < N_USED, counts, float("-inf")), 0))
        powers = tl.where(place < N_USED, powers, 0.0)
        counts = powers / tl.sum(powers, 0)
    if SCORING == "sigmoid_topk":
        counts = tl.where(place < N_USED, 1.0 / (1.0 + tl.exp(-counts)), 0.0)
    if NORMALISE:
        counts = counts / tl.maximum(tl.sum(counts, 0), _SMALLEST_SUM)
    return counts


def route(
    x: torch.Tensor,
    norm: torch.Tensor,
    router: torch.Tensor,
    biases: tuple[torch.Tensor | None, torch.Tensor | None],
    moe: MoeFfn,
    eps: float,
    into: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    given: torch.Tensor | None,
    begin: torch.Tensor,
) -> torch.Tensor:
    """`executor.layers.one_token.route`, which says what is what; gives the float32 logits (n_experts,) too."""
    n_experts, n = router.shape
    h, ids, weights, flags = into
    logits = torch.empty(n_experts, dtype=torch.float32, device=x.device)
    block = next_power_of_2(n)
    _route[(-(-n_experts // _ROWS),)](
        x, norm, router, *biases, given, begin, h, logits, ids, weights, flags, counters_of(x.device),
        AT_BEGIN.take(x.device), AT_END.take(x.device), n, eps, moe.scale,
        ROWS=_ROWS, BLOCK=block, SCORING=moe.scoring, NORMALISE=moe.normalise,
        N_EXPERTS=n_experts, EXPERTS=next_power_of_2(n_experts),
        N_USED=moe.n_used, USED=next_power_of_2(moe.n_used), num_warps=min(8, max(1, block // _WARP_COLUMNS)),
    )  # fmt: skip
    return logits
