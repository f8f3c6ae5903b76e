"""The small kernels of one token in Triton: norm, router, and the likeliest next token.

PyTorch needs some thirty launches a layer for them, each of which costs a token a microsecond or two whatever it
computes. Needs Triton, so only `executor.layers.one_token` imports it. Everything is summed in float32.
"""

from __future__ import annotations

from typing import Final

import torch
from triton import jit, next_power_of_2
from triton import language as tl

from executor.model import MoeFfn
from executor.stamp_kernels import stamp_by_first, stamp_here
from executor.stamps import AT_BEGIN, AT_END

_ROUTER_ROWS: Final = 1  # experts that a program of the router scores
_ROUTER_WARP_COLUMNS: Final = 1024  # numbers of a row that a warp of it keeps in registers
_SMALLEST_SUM: Final = tl.constexpr(6.103515625e-5)  # as `executor.layers.moe`
_SCAN: Final = 4096  # logits that a program compares
MOST_COUNTERS: Final = 1024
_counters: Final[dict[torch.device, torch.Tensor]] = {}


def counters_of(device: torch.device) -> torch.Tensor:
    """Zeros (MOST_COUNTERS,) int32 by which programs find out who is done last; every launch leaves zeros behind.

    They stay where they are, as recorded launches know their address, and serve one launch at a time.
    """
    if device not in _counters:
        with torch.inference_mode(mode=False):
            _counters[device] = torch.zeros(MOST_COUNTERS, dtype=torch.int32, device=device)
    return _counters[device]


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
    """x / rms(x) * weight for one row x (1, n)."""
    n = x.shape[1]
    out = torch.empty_like(x)
    _rms_norm[(1,)](x, weight, out, AT_BEGIN.take(x.device), n, eps, BLOCK=next_power_of_2(n), num_warps=8)
    return out


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
    known = expert < N_EXPERTS
    scores = tl.load(logits + expert, mask=known, other=float("-inf"), cache_modifier=".cg")
    if logits_bias is not None:
        scores += tl.load(logits_bias + expert, mask=known, other=0.0).to(tl.float32)
    if SCORING == "softmax":
        powers = tl.exp(scores - tl.max(scores, 0))
        scores = powers / tl.sum(powers, 0)
    if SCORING == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-scores))
    if given is not None:
        first = tl.load(begin) * N_USED
        chosen = tl.load(given + first + place, mask=place < N_USED, other=-1).to(tl.int32)
    else:
        compared = scores
        if scores_bias is not None:
            compared += tl.load(scores_bias + expert, mask=known, other=0.0).to(tl.float32)
        compared = tl.where(compared == compared, compared, float("inf"))  # NaN is the largest, as in PyTorch
        compared = tl.where(known, compared, float("-inf"))
        chosen = tl.full((USED,), -1, tl.int32)
        for number in tl.static_range(N_USED):
            best = tl.argmax(compared, 0)
            chosen = tl.where(place == number, best, chosen)
            compared = tl.where(expert == best, float("-inf"), compared)
    is_chosen = chosen[:, None] == expert[None, :]
    counts = tl.sum(tl.where(is_chosen, scores[None, :], 0.0), 1)
    if SCORING == "softmax_topk":
        powers = tl.exp(counts - tl.max(tl.where(place < N_USED, counts, float("-inf")), 0))
        powers = tl.where(place < N_USED, powers, 0.0)
        counts = powers / tl.sum(powers, 0)
    if SCORING == "sigmoid_topk":
        counts = tl.where(place < N_USED, 1.0 / (1.0 + tl.exp(-counts)), 0.0)
    if NORMALISE:
        counts = counts / tl.maximum(tl.sum(counts, 0), _SMALLEST_SUM)
    tl.store(ids + place, chosen.to(tl.int64), mask=place < N_USED)
    tl.store(weights + place, counts * factor, mask=place < N_USED)
    tl.store(flags + expert, (tl.sum(is_chosen.to(tl.int32), 0) > 0).to(tl.uint8), mask=known)
    stamp_here(end_stamp)


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
    _route[(-(-n_experts // _ROUTER_ROWS),)](
        x, norm, router, *biases, given, begin, h, logits, ids, weights, flags, counters_of(x.device),
        AT_BEGIN.take(x.device), AT_END.take(x.device), n, eps, moe.scale,
        ROWS=_ROUTER_ROWS, BLOCK=block, SCORING=moe.scoring, NORMALISE=moe.normalise,
        N_EXPERTS=n_experts, EXPERTS=next_power_of_2(n_experts),
        N_USED=moe.n_used, USED=next_power_of_2(moe.n_used), num_warps=min(8, max(1, block // _ROUTER_WARP_COLUMNS)),
    )  # fmt: skip
    return logits


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
    tl.store(counter, 0)
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
