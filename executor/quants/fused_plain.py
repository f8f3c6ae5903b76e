"""Decoders of the types that are floats already (see `fused_legacy`): a block is one cell."""

from __future__ import annotations

from triton import jit
from triton import language as tl

from executor.quants.fused_loads import Cells, Lanes, Mask, Plane, Pointers


@jit
def f32(blocks: Pointers, _cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane]:
    return (_eight_of(blocks, lane, inside, tl.float32),)


@jit
def f16(blocks: Pointers, _cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane]:
    return (_eight_of(blocks, lane, inside, tl.float16).to(tl.float32),)


@jit
def bf16(blocks: Pointers, _cell: Cells, lane: Lanes, inside: Mask) -> tuple[Plane]:
    """The upper half of a float32's bits."""
    return ((_eight_of(blocks, lane, inside, tl.uint16).to(tl.int32) << 16).to(tl.float32, bitcast=True),)


@jit
def _eight_of(blocks: Pointers, lane: Lanes, inside: Mask, DTYPE: tl.constexpr) -> Plane:
    values = blocks.to(tl.pointer_type(DTYPE))
    return tl.load(values[:, None] + lane[None, :], mask=inside[:, None])
