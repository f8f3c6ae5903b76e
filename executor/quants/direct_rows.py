"""Activations as products with stored weights read them: 16-bit integers in two signed bytes, one scale a block of 32.

A float of a row becomes `scale * (256 * high + low)`, within 2 ** -16 of its block's largest: 256 times finer than the
8 bits of llama.cpp's products, while `dp4a` still multiplies four bytes at once. Where a row's values are not finite
its scales are not, and so neither are the products. Needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from triton import jit
from triton import language as tl

from executor.quants.fused import launching_on

BLOCK: Final = 32  # values that share a scale
_BLOCKS: Final = 8  # a program's
_LARGEST: Final = tl.constexpr(127 * 256.0)
_SMALLEST: Final = tl.constexpr(1e-30)  # blocks of less count as zeros: their scales' inverses would overflow

# gpt-oss's activation, as `executor.layers.dense` has it
_OAI_ALPHA: Final = tl.constexpr(1.702)
_OAI_LIMIT: Final = tl.constexpr(7.0)


@jit
def split_rows(
    x: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    sums: tl.tensor,
    stride: tl.tensor,
    n_blocks: tl.tensor,
    low_plane: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """One row's `BLOCKS` blocks: (n, 32) floats to words (2, n_rows, n_blocks * 8), scales (n_rows, n_blocks)."""
    row = tl.program_id(0)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    inside = (block < n_blocks)[:, None]
    columns = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    values = tl.load(x + row.to(tl.int64) * stride + columns, mask=inside, other=0.0).to(tl.float32)
    _store_split(values, words, scales, sums, row * n_blocks + block, inside, low_plane, BLOCKS)


@jit
def split_gated_rows(
    gates: tl.tensor,
    ups: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    sums: tl.tensor,
    stride: tl.tensor,
    n_blocks: tl.tensor,
    low_plane: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """The same of activation(gate) * up."""
    row = tl.program_id(0)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    inside = (block < n_blocks)[:, None]
    columns = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    at = row.to(tl.int64) * stride + columns
    gate = tl.load(gates + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(ups + at, mask=inside, other=0.0).to(tl.float32)
    values = _activated(gate, up, ACTIVATION)
    _store_split(values, words, scales, sums, row * n_blocks + block, inside, low_plane, BLOCKS)


@jit
def _activated(gate: tl.tensor, up: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """`executor.layers.dense.activate` in float32."""
    steepness = gate
    if ACTIVATION == "gelu":  # half of 1 + tanh(z) is sigmoid(2 z)
        steepness = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    if ACTIVATION == "oai_swiglu":
        gate = tl.minimum(gate, _OAI_LIMIT)
        up = tl.minimum(tl.maximum(up, -_OAI_LIMIT), _OAI_LIMIT) + 1
        steepness = _OAI_ALPHA * gate
    return gate * tl.sigmoid(steepness) * up


@jit
def _store_split(
    values: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    sums: tl.tensor,
    block: tl.tensor,
    inside: tl.tensor,
    low_plane: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    # NaN has to show in the products, as infinity does: its scale times 0 is NaN
    largest = tl.max(tl.where(values == values, tl.abs(values), float("inf")), axis=1)
    scale = largest / _LARGEST
    inverse = tl.where(largest > _SMALLEST, _LARGEST / largest, 0.0)
    integers = tl.floor(values * inverse[:, None] + 0.5).to(tl.int32)
    high = (integers + 128) >> 8
    low = integers - (high << 8)
    eight = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(words + eight, _packed(high, BLOCKS), mask=inside)
    tl.store(words + low_plane + eight, _packed(low, BLOCKS), mask=inside)
    tl.store(scales + block[:, None], scale[:, None], mask=inside)
    halves = tl.sum(tl.reshape(integers, (BLOCKS, 2, 16)), axis=2)
    tl.store(sums + block[:, None] * 2 + tl.arange(0, 2)[None, :], halves, mask=inside)


@jit
def _packed(signed: tl.tensor, BLOCKS: tl.constexpr) -> tl.tensor:
    """(n, 32) integers of 8 bits as (n, 8) words, the first one's byte lowest."""
    four = tl.reshape(signed & 255, (BLOCKS, 8, 4)) << (tl.arange(0, 4) * 8)[None, None, :]
    return tl.sum(four, axis=2)


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of n_blocks * 32 values, on their device."""

    words: torch.Tensor  # (2, n, n_blocks * 8) int32: high bytes, low bytes
    scales: torch.Tensor  # (n, n_blocks) float32
    sums: torch.Tensor  # (n, n_blocks * 2) int32: of each 16 integers


def split(x: torch.Tensor) -> SplitRows:
    """Rows (n, k) of any float type, k a multiple of 32."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    n, k = x.shape
    n_blocks = k // BLOCK
    out = _empty(x.device, n, n_blocks)
    grid = (n, -(-n_blocks // _BLOCKS))
    with launching_on(x.device):
        split_rows[grid](x, out.words, out.scales, out.sums, x.stride(0), n_blocks, out.words[0].numel(), _BLOCKS)
    return out


def split_gated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> SplitRows:
    """activation(gate) * up, of rows (n, k) of one dtype that lie equally far apart."""
    n, k = gate.shape
    n_blocks = k // BLOCK
    out = _empty(gate.device, n, n_blocks)
    grid = (n, -(-n_blocks // _BLOCKS))
    with launching_on(gate.device):
        split_gated_rows[grid](
            gate, up, out.words, out.scales, out.sums, gate.stride(0), n_blocks, out.words[0].numel(), activation,
            _BLOCKS,
        )  # fmt: skip
    return out


def _empty(device: torch.device, n: int, n_blocks: int) -> SplitRows:
    return SplitRows(
        torch.empty((2, n, n_blocks * 8), dtype=torch.int32, device=device),
        torch.empty((n, n_blocks), dtype=torch.float32, device=device),
        torch.empty((n, n_blocks * 2), dtype=torch.int32, device=device),
    )
