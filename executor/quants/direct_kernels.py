"""The kernels of `executor.quants.direct`. Needs Triton.

All tensors have four dimensions, (units, rows of a matrix, rows of activations, words of a unit), in which every thread
keeps what it has read: with units first Triton 3.6 gives neighbouring units to neighbouring threads, and with the words
last a thread reads its 16 bytes at once. A program takes `ROWS` rows of a matrix and walks along them, `UNITS` units at
a time. Each thread keeps a float32 sum of its own units; these are added up once, at the end. So the order of summation
depends on the tile and on nothing else, and a matrix gives the same bits wherever and in whichever layout it lies.
Compile without contraction of products and sums, which might differ between two layouts' kernels.

What kernels share: `words`, `scales`, `sums` and the distance of the low plane are `direct_rows.SplitRows`; rows have
`n_units` units and `n_halves` sixteens of weights; `DECODE` to `HAS_MINIMUM` are a `direct_words.WordFormat`.
"""

from __future__ import annotations

import os
from typing import Final, TypeAlias

from triton import jit
from triton import language as tl

from executor.quants.direct_words import four

Tensor: TypeAlias = tl.tensor
Pointer: TypeAlias = tl.tensor
Scalar: TypeAlias = tl.tensor

_HAS_ASSEMBLY: Final = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")
_DP4A: Final = tl.constexpr("dp4a.s32.s32 $0, $1, $2, $3;")


@jit
def dense_products(
    first: Pointer, second: Pointer, third: Pointer, out: Pointer,
    residual_scale: Scalar, words: Pointer, scales: Pointer, sums: Pointer, low_plane: Scalar,
    n_first: Scalar, n_second: Scalar, n_third: Scalar,
    row_bytes: Scalar, n_units: Scalar, n_halves: Scalar, n_x: Scalar,
    DECODE: tl.constexpr, BLOCK_BYTES: tl.constexpr, BLOCK_UNITS: tl.constexpr, GROUPS: tl.constexpr,
    DISTANCE: tl.constexpr, ZERO: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    X_ROWS: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, ADDS: tl.constexpr,
) -> None:  # fmt: skip
    """out (n_x, n_first + n_second + n_third) of up to three matrices; `ADDS`, to `out`, times `residual_scale`.

    Where there are more than `X_ROWS` rows of activations, neighbouring programs take the same rows of a matrix.
    """
    x_tiles = tl.cdiv(n_x, X_ROWS)
    tile, x_tile = tl.program_id(0) // x_tiles, tl.program_id(0) % x_tiles
    raw, n_rows, column, n_columns = first, n_first, 0, n_first
    if second is not None:
        n_columns += n_second + n_third
        tiles = tl.cdiv(n_first, ROWS)
        if tile >= tiles:
            raw, n_rows, column = second, n_second, n_first
            tile -= tiles
            if third is not None:
                tiles = tl.cdiv(n_second, ROWS)
                if tile >= tiles:
                    raw, n_rows, column = third, n_third, n_first + n_second
                    tile -= tiles
    row = _rows_from(tile * ROWS, ROWS)
    x_row = x_tile * X_ROWS + tl.arange(0, X_ROWS)[None, None, :, None]
    base = row.to(tl.int64) * row_bytes
    total = tl.zeros([UNITS, ROWS, X_ROWS, 1], tl.float32)
    for start in range(0, n_units, UNITS):
        unit = _units_from(start, UNITS)
        here = unit < n_units
        total += _unit_products(
            raw, base, (row < n_rows) & here, unit,
            words, scales, sums, low_plane, x_row * n_halves, (x_row < n_x) & here,
            DECODE, BLOCK_BYTES, BLOCK_UNITS, GROUPS, DISTANCE, ZERO, HAS_MINIMUM,
        )  # fmt: skip
    target = out + column + x_row * n_columns + row
    _store_products(target, (x_row < n_x) & (row < n_rows), total, residual_scale, ADDS)


@jit
def chosen_products(
    gate: Pointer, up: Pointer, out: Pointer, ids: Pointer, place_of: Pointer,
    words: Pointer, scales: Pointer, sums: Pointer, low_plane: Scalar,
    gate_stride: Scalar, up_stride: Scalar, n_rows: Scalar,
    row_bytes: Scalar, n_units: Scalar, n_halves: Scalar, n_used: Scalar,
    DECODE: tl.constexpr, BLOCK_BYTES: tl.constexpr, BLOCK_UNITS: tl.constexpr, GROUPS: tl.constexpr,
    DISTANCE: tl.constexpr, ZERO: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
) -> None:  # fmt: skip
    """out (choices, 2, n_rows): for each choice of an expert its gate and its up by the token's row."""
    choice = tl.program_id(1)
    place = tl.load(ids + choice)
    if place_of is not None:
        place = tl.load(place_of + place)
    raw, stride, tile, column = gate, gate_stride, tl.program_id(0), 0
    tiles = tl.cdiv(n_rows, ROWS)
    if tile >= tiles:
        raw, stride, column = up, up_stride, n_rows
        tile -= tiles
    row = _rows_from(tile * ROWS, ROWS)
    base = place.to(tl.int64) * stride + row.to(tl.int64) * row_bytes
    total = tl.zeros([UNITS, ROWS, 1, 1], tl.float32)
    for start in range(0, n_units, UNITS):
        unit = _units_from(start, UNITS)
        here = unit < n_units
        total += _unit_products(
            raw, base, (row < n_rows) & here, unit,
            words, scales, sums, low_plane, choice // n_used * n_halves, here,
            DECODE, BLOCK_BYTES, BLOCK_UNITS, GROUPS, DISTANCE, ZERO, HAS_MINIMUM,
        )  # fmt: skip
    products = tl.sum(total, axis=0, keep_dims=True).to(out.dtype.element_ty)
    tl.store(out + choice * 2 * n_rows + column + row, products, mask=row < n_rows)


@jit
def chosen_sums(
    down: Pointer, out: Pointer, ids: Pointer, place_of: Pointer, weights: Pointer,
    words: Pointer, scales: Pointer, sums: Pointer, low_plane: Scalar,
    stride: Scalar, n_rows: Scalar, row_bytes: Scalar, n_units: Scalar, n_halves: Scalar, n_used: Scalar,
    residual_scale: Scalar,
    DECODE: tl.constexpr, BLOCK_BYTES: tl.constexpr, BLOCK_UNITS: tl.constexpr, GROUPS: tl.constexpr,
    DISTANCE: tl.constexpr, ZERO: tl.constexpr, HAS_MINIMUM: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, ADDS: tl.constexpr,
) -> None:  # fmt: skip
    """out (tokens, n_rows): the choices' rows by their experts' down, times their weights, added up.

    `ADDS`: to `out`, times `residual_scale`.

    A row's units are those of all its choices, one expert's after the other's.
    """
    token = tl.program_id(1)
    row = _rows_from(tl.program_id(0) * ROWS, ROWS)
    base = row.to(tl.int64) * row_bytes
    total = tl.zeros([UNITS, ROWS, 1, 1], tl.float32)
    for start in range(0, n_used * n_units, UNITS):
        unit = _units_from(start, UNITS)
        here = unit < n_used * n_units
        choice = token * n_used + unit // n_units
        place = tl.load(ids + choice, mask=here, other=0)
        if place_of is not None:
            place = tl.load(place_of + place, mask=here, other=0)
        weight = tl.load(weights + choice, mask=here, other=0.0)
        total += weight * _unit_products(
            down, base + place.to(tl.int64) * stride, (row < n_rows) & here, unit % n_units,
            words, scales, sums, low_plane, choice * n_halves, here,
            DECODE, BLOCK_BYTES, BLOCK_UNITS, GROUPS, DISTANCE, ZERO, HAS_MINIMUM,
        )  # fmt: skip
    _store_products(out + token * n_rows + row, row < n_rows, total, residual_scale, ADDS)


@jit
def _store_products(target: Pointer, inside: Tensor, total: Tensor, residual_scale: Scalar, ADDS: tl.constexpr) -> None:
    """Each row's sum over its units; a residual is read and written by one thread, and rounded once."""
    products = tl.sum(total, axis=0, keep_dims=True)
    if ADDS:
        products = tl.load(target, mask=inside, other=0.0).to(tl.float32) + residual_scale * products
    tl.store(target, products.to(target.dtype.element_ty), mask=inside)


@jit
def _unit_products(
    raw: Pointer, base: Tensor, inside: Tensor, unit: Tensor,
    words: Pointer, scales: Pointer, sums: Pointer, low_plane: Scalar, x_start: Tensor, x_inside: Tensor,
    DECODE: tl.constexpr, BLOCK_BYTES: tl.constexpr, BLOCK_UNITS: tl.constexpr, GROUPS: tl.constexpr,
    DISTANCE: tl.constexpr, ZERO: tl.constexpr, HAS_MINIMUM: tl.constexpr,
) -> Tensor:  # fmt: skip
    """What each `unit` of each row contributes to the row's sum with each row of activations, float32.

    Rows begin at byte offsets `base`, their units are read where `inside`; rows of activations begin with sixteen
    `x_start` and are read where `x_inside`.
    """
    at = base + unit // BLOCK_UNITS * BLOCK_BYTES
    first_half = x_start + unit // DISTANCE * (DISTANCE * GROUPS) + unit % DISTANCE
    zero = tl.zeros([1, 1, 1, 1], tl.int32)
    high, low, x_sums, total = zero, zero, zero, zero.to(tl.float32)
    for group in tl.static_range(GROUPS):
        half = first_half + group * DISTANCE
        stored, scale, minimum = DECODE(raw, at, unit % BLOCK_UNITS, group, inside)
        high = _dot_of_four(stored, _activation_words(words, half, x_inside), high)
        low = _dot_of_four(stored, _activation_words(words + low_plane, half, x_inside), low)
        x_sums += tl.load(sums + half, mask=x_inside, other=0)
        # neighbouring sixteens share their scales, those of activations too
        if DISTANCE > 1 or group == GROUPS - 1:
            dot = tl.sum(high * 256 + low, axis=3, keep_dims=True) - ZERO * x_sums  # at most 32 * 128 * 2 ** 15
            x_scale = tl.load(scales + half // 2, mask=x_inside, other=0.0)
            total += dot.to(tl.float32) * (scale * x_scale)
            if HAS_MINIMUM:
                total += x_sums.to(tl.float32) * (minimum * x_scale)
            high, low, x_sums = zero, zero, zero
    return total


@jit
def _dot_of_four(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """`total` plus the four products of two words' signed bytes."""
    if _HAS_ASSEMBLY:
        total = tl.inline_asm_elementwise(_DP4A, "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True, pack=1)
    else:
        for number in tl.static_range(4):
            total = total + (a << (24 - 8 * number) >> 24) * (b << (24 - 8 * number) >> 24)
    return total


@jit
def _activation_words(words: Pointer, half: Tensor, inside: Tensor) -> Tensor:
    """The four words of each sixteen."""
    first = tl.multiple_of(words + half * 4, [16, 16, 16, 16])
    return tl.load(first + four(), mask=inside, other=0)


@jit
def _units_from(start: Scalar, N: tl.constexpr) -> Tensor:
    return start + tl.arange(0, N)[:, None, None, None]


@jit
def _rows_from(start: Scalar, N: tl.constexpr) -> Tensor:
    return start + tl.arange(0, N)[None, :, None, None]
