"""One token's attention in one kernel: norms and rotation, the cache's new row, the softmax over the cache.

Needs Triton, so only `executor.layers.one_token` imports it. Everything is summed in float32.
"""

from __future__ import annotations

from typing import Final

import torch
from triton import jit, next_power_of_2
from triton import language as tl

from executor.layers.attention_kernels import OneToken
from executor.layers.rope import RopeTable
from executor.layers.token_counters import counters_of

_LOG2_E: Final = 1.4426950408889634
_TILE: Final = 64  # positions that a program reads at once
_FEW_NUMBERS: Final = 2048  # of queries, that four warps keep in registers
_MOST_SPLITS: Final = 32  # of one head's positions: more would take longer to join than they save


@jit
def _partner(dim: tl.tensor, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr) -> tl.tensor:
    """With which other dimension each one turns; those that do not turn are their own."""
    if INTERLEAVED:  # noqa: SIM108 - decided when compiling
        partner = dim ^ 1
    else:
        partner = tl.where(dim < PAIRS, dim + PAIRS, dim - PAIRS)
    return tl.where(dim < 2 * PAIRS, partner, dim)


@jit
def _weighed(
    own: tl.tensor, other: tl.tensor, weight: tl.tensor, dim: tl.tensor, partner: tl.tensor, eps: tl.tensor,
    DIM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Heads (rows, DIM) under their norm, and the same at their partners' places."""
    scale = (1.0 / tl.sqrt(tl.sum(own * own, 1) / DIM + eps))[:, None]
    own, other = own * scale, other * scale
    if weight is not None:
        own = own * tl.load(weight + dim).to(tl.float32)
        other = other * tl.load(weight + partner).to(tl.float32)
    return own, other


@jit
def _attend(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, q_norm: tl.tensor, k_norm: tl.tensor, cos: tl.tensor,
    sin: tl.tensor, sinks: tl.tensor, index: tl.tensor, keys: tl.tensor, values: tl.tensor, sums: tl.tensor,
    bounds: tl.tensor, counters: tl.tensor, out: tl.tensor, q_stride: tl.tensor, window: tl.tensor,
    eps: tl.tensor, scale: tl.tensor, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr, SPLITS: tl.constexpr,
    SPLIT_ROWS: tl.constexpr, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """Program (kv, split): the queries of a key's head over a split of its positions.

    The token's own key and value never come from the cache: split 0 begins with them, and stores them there. The
    program that is done last joins the splits, in their order. Loads stand before what waits for them.
    """
    kv, split = tl.program_id(0), tl.program_id(1)
    position = tl.load(index).to(tl.int32)
    row, dim = tl.arange(0, ROWS)[:, None], tl.arange(0, DIM)[None, :]
    partner = _partner(dim, PAIRS, INTERLEAVED)
    is_head, is_key = row < GROUP, row < 1
    heads, key_head = q + (kv * GROUP + row) * q_stride, k + kv * DIM + row * 0
    dtype = keys.dtype.element_ty
    queries = tl.load(heads + dim, mask=is_head, other=0.0).to(tl.float32)
    turned = tl.load(heads + partner, mask=is_head, other=0.0).to(tl.float32)
    own_key = tl.load(key_head + dim, mask=is_key, other=0.0).to(tl.float32)
    turned_key = tl.load(key_head + partner, mask=is_key, other=0.0).to(tl.float32)
    own_value = tl.load(v + kv * DIM + dim)
    if NORM:
        queries, turned = _weighed(queries, turned, q_norm, dim, partner, eps, DIM)
        own_key, turned_key = _weighed(own_key, turned_key, k_norm, dim, partner, eps, DIM)
    if PAIRS > 0:
        if INTERLEAVED:
            turn, is_first = position * PAIRS + dim // 2, dim % 2 == 0
        else:
            turn, is_first = position * PAIRS + dim % PAIRS, dim < PAIRS
        turns = dim < 2 * PAIRS
        along = tl.load(cos + turn, mask=turns, other=1.0).to(tl.float32)
        across = tl.load(sin + turn, mask=turns, other=0.0).to(tl.float32)
        across = tl.where(is_first, -across, across)
        queries = queries * along + turned * across
        own_key = own_key * along + turned_key * across
    queries, own_key = queries.to(dtype), own_key.to(dtype)
    new_row = (position.to(tl.int64) * KV_HEADS + kv) * DIM
    if split == 0:
        tl.store(keys + new_row + dim + row * 0, own_key, mask=is_key)
        tl.store(values + new_row + dim, own_value)
    own_key_row = tl.sum(own_key.to(tl.float32), 0)[None, :]  # its other rows are zeros
    most = tl.sum(queries.to(tl.float32) * own_key_row, 1) * scale
    total = tl.full((ROWS,), 1.0, tl.float32)
    share = total
    if sinks is not None:
        sink = tl.load(sinks + kv * GROUP + tl.arange(0, ROWS), mask=tl.arange(0, ROWS) < GROUP, other=0.0)
        sink = sink.to(tl.float32) * 1.4426950408889634
        own, most = most, tl.maximum(most, sink)
        share = tl.exp2(own - most)
        total = share + tl.exp2(sink - most)
    summed = share[:, None] * own_value.to(tl.float32)
    if split != 0:
        most = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        summed = tl.zeros((ROWS, DIM), tl.float32)
    begin = split * SPLIT_ROWS
    if window is not None:
        begin = tl.maximum(begin, position - window + 1)
    end = tl.minimum(split * SPLIT_ROWS + SPLIT_ROWS, position)
    for start in range(begin, end, TILE):
        past = start + tl.arange(0, TILE)
        seen = past < end
        at = (past.to(tl.int64) * KV_HEADS + kv) * DIM
        some_keys = tl.load(keys + at[None, :] + tl.arange(0, DIM)[:, None], mask=seen[None, :], other=0.0)
        logits = tl.where(seen[None, :], tl.dot(queries, some_keys) * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(logits, 1))
        fades = tl.exp2(most - higher)
        powers = tl.exp2(logits - higher[:, None])
        some_values = tl.load(values + at[:, None] + dim, mask=seen[:, None], other=0.0)
        summed = summed * fades[:, None] + tl.dot(powers.to(dtype), some_values)
        total = total * fades + tl.sum(powers, 1)
        most = higher
    targets = out + (kv * GROUP + row) * DIM + dim
    if SPLITS == 1:
        tl.store(targets, (summed / total[:, None]).to(dtype), mask=is_head)
        return
    head = tl.arange(0, ROWS)
    mine = (kv * SPLITS + split) * ROWS
    tl.store(sums + (mine + row) * DIM + dim, summed, mask=is_head)
    tl.store(bounds + (mine + head) * 2, most)
    tl.store(bounds + (mine + head) * 2 + 1, total)
    tl.debug_barrier()
    if tl.atomic_add(counters + kv, 1, sem="acq_rel") != SPLITS - 1:
        return
    tl.store(counters + kv, 0)  # for the next launch
    every = (kv * SPLITS + tl.arange(0, SPLITS)[:, None]) * ROWS + head[None, :]
    mosts = tl.load(bounds + every * 2, cache_modifier=".cg")
    totals = tl.load(bounds + every * 2 + 1, cache_modifier=".cg")
    highest = tl.max(mosts, 0)
    total = tl.sum(totals * tl.exp2(mosts - highest[None, :]), 0)
    summed = tl.zeros((ROWS, DIM), tl.float32)
    for number in tl.static_range(SPLITS):
        of_split = (kv * SPLITS + number) * ROWS
        most = tl.load(bounds + (of_split + head) * 2, cache_modifier=".cg")
        part = tl.load(sums + (of_split + row) * DIM + dim, mask=is_head, other=0.0, cache_modifier=".cg")
        summed += part * tl.exp2(most - highest)[:, None]
    tl.store(targets, (summed / total[:, None]).to(dtype), mask=is_head)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    norms: tuple[torch.Tensor | None, torch.Tensor | None] | None,
    rope: RopeTable,
    cache: tuple[torch.Tensor, torch.Tensor],
    at: OneToken,
    *,
    window: int | None,
    sinks: torch.Tensor | None,
    scale: float | None,
    eps: float,
) -> torch.Tensor:
    """Norm and rotate one token's queries and keys, store key and value, attend: (1, heads, dim).

    q (1, heads, dim), whose heads may lie apart; k and v (1, kv_heads, dim); `norms` are the weights of the two norms
    (a weight None: brought to one length), None where there is no norm; `cache` keys and values (rows, kv_heads, dim).
    """
    _, n_heads, dim = q.shape
    n_kv_heads = k.shape[1]
    keys, values = cache
    splits = splits_of(at.n_rows, n_kv_heads)
    split_rows = -(-at.n_rows // (splits * _TILE)) * _TILE
    rows = max(16, next_power_of_2(n_heads // n_kv_heads))  # tensor cores take sixteen
    out = torch.empty((1, n_heads, dim), dtype=q.dtype, device=q.device)
    sums = bounds = counters = out  # not read where there is one split
    if splits > 1:
        sums = torch.empty((n_kv_heads, splits, rows, dim), dtype=torch.float32, device=q.device)
        bounds = torch.empty((n_kv_heads, splits, rows, 2), dtype=torch.float32, device=q.device)
        counters = counters_of(q.device)
    q_norm, k_norm = norms if norms is not None else (None, None)
    _attend[(n_kv_heads, splits)](
        q, k, v, q_norm, k_norm, rope.cos, rope.sin, sinks, at.position.index,
        keys, values, sums, bounds, counters, out,
        q.stride(1), window, eps, _LOG2_E * (dim**-0.5 if scale is None else scale),
        KV_HEADS=n_kv_heads, GROUP=n_heads // n_kv_heads, ROWS=rows, DIM=dim,
        PAIRS=rope.rope.dims // 2, INTERLEAVED=rope.rope.interleaved, NORM=norms is not None,
        SPLITS=splits, SPLIT_ROWS=split_rows, TILE=_TILE,
        num_warps=4 if rows * dim <= _FEW_NUMBERS else 8, num_stages=2,
    )  # fmt: skip
    return out


def splits_of(n_rows: int, n_kv_heads: int) -> int:
    """Into how many parts a head's positions are cut: a power of two, and enough programs for a whole GPU."""
    enough = max(1, 256 // n_kv_heads)
    return 1 << (min(enough, _MOST_SPLITS, max(1, n_rows // _TILE)).bit_length() - 1)
