"""Bytes as the file stores them, to numbers: the reference that every faster kernel is checked against.

A type's function takes (..., block_bytes) bytes and returns (..., block_size) float32, in the order of operations
of ggml's reference, which rounds after each one: results are equal bit for bit. K types are super-blocks of 256
weights whose small integer scales share a float16 d; byte i of a 32-byte group holds weights i, i + 32, i + 64,
... Codebook types index gguf's tables of 16 values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from gguf import quants

from executor.quants.table import quant_type

# On the CPU a piece of this many weights goes through all steps before the next one does, so that temporaries stay
# below 8 MB and in the cache; a tensor of 64M weights in one go takes 2 to 3 times as long.
_PIECE: Final = 1 << 19
PLAIN_DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The types whose bytes are numbers as they are."""
_Unpack = Callable[[torch.Tensor], torch.Tensor]


def bytes_as(field: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(..., k * itemsize) bytes as (..., k) little-endian values of `dtype`; works at any byte offset."""
    return field.clone(memory_format=torch.contiguous_format).view(dtype)


def f16(field: torch.Tensor) -> torch.Tensor:
    """(..., 2) bytes to (..., 1): a block's float16 scale, in float32."""
    return bytes_as(field, torch.float16).float()


def bit_planes(packed: torch.Tensor, width: int) -> torch.Tensor:
    """(..., k) bytes to (..., 8 // width, k): plane i holds bits [i * width, (i + 1) * width) of each byte."""
    packed = packed.contiguous()  # every plane reads it: strided reads cost 8 times as much on the CPU
    mask = (1 << width) - 1
    return torch.stack([(packed >> shift) & mask for shift in range(0, 8, width)], dim=-2)


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    """(..., k) bytes to (..., 2k): all low nibbles, then all high ones."""
    return bit_planes(packed, 4).flatten(-2)


def bits_of_word(packed: torch.Tensor) -> torch.Tensor:
    """(..., 4) bytes to (..., 32) int32: the bits of a little-endian word, lowest first."""
    word = bytes_as(packed, torch.int32)
    return (word >> torch.arange(32, dtype=torch.int32, device=packed.device)).bitwise_and_(1)


def q8_0(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) q(32, signed)."""
    d, q = blocks.split((2, 32), dim=-1)
    values: torch.Tensor = q.view(torch.int8).float()
    return values.mul_(f16(d))


def q4_0(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) q(16): weight i is the low nibble of byte i, weight 16 + i the high one; 8 means zero."""
    d, q = blocks.split((2, 16), dim=-1)
    return nibbles(q).float().sub_(8).mul_(f16(d))


def q4_1(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) m(2) q(16)."""
    d, m, q = blocks.split((2, 2, 16), dim=-1)
    return nibbles(q).float().mul_(f16(d)).add_(f16(m))


def q5_0(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) high(4: bit i is weight i's fifth) q(16); 16 means zero."""
    d, high, q = blocks.split((2, 4, 16), dim=-1)
    return _five_bits(q, high).sub_(16).mul_(f16(d))


def q5_1(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) m(2) high(4) q(16)."""
    d, m, high, q = blocks.split((2, 2, 4, 16), dim=-1)
    return _five_bits(q, high).mul_(f16(d)).add_(f16(m))


def _five_bits(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return nibbles(low).float().add_(bits_of_word(high), alpha=16)


def q2_k(blocks: torch.Tensor) -> torch.Tensor:
    """scales(16: low nibble scale, high nibble minimum) q(64, 2 bits) d(2) d_min(2)."""
    scales, q, d, d_min = blocks.split((16, 64, 2, 2), dim=-1)
    values = bit_planes(q.unflatten(-1, (2, 32)), 2).float()
    scale, minimum = f16(d) * (scales & 15), f16(d_min) * (scales >> 4)
    return _scaled(values, 16, scale).sub_(minimum.unsqueeze(-1)).flatten(-2)


def q3_k(blocks: torch.Tensor) -> torch.Tensor:
    """high(32: plane j holds the third bit of 32 weights; 0 means minus 4) q(64, 2 bits) scales(12) d(2)."""
    high, q, scales, d = blocks.split((32, 64, 12, 2), dim=-1)
    low = bit_planes(q.unflatten(-1, (2, 32)), 2).flatten(-3, -2)
    values = low.bitwise_or_(bit_planes(high, 1).bitwise_left_shift_(2)).float().sub_(4)
    return _scaled(values, 16, f16(d) * _q3_k_scales(scales)).flatten(-2)


def q4_k(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) d_min(2) scales(12) q(128, 4 bits)."""
    d, d_min, scales, q = blocks.split((2, 2, 12, 128), dim=-1)
    values = bit_planes(q.unflatten(-1, (4, 32)), 4).float()
    scale, minimum = scales_and_minima(scales)
    return _scaled(values, 32, f16(d) * scale).sub_((f16(d_min) * minimum).unsqueeze(-1)).flatten(-2)


def q5_k(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) d_min(2) scales(12) high(32: plane j holds sub-block j's fifth bits) q(128, 4 bits)."""
    d, d_min, scales, high, q = blocks.split((2, 2, 12, 32, 128), dim=-1)
    low = bit_planes(q.unflatten(-1, (4, 32)), 4).flatten(-3, -2)
    values = low.bitwise_or_(bit_planes(high, 1).bitwise_left_shift_(4)).float()
    scale, minimum = scales_and_minima(scales)
    return _scaled(values, 32, f16(d) * scale).sub_((f16(d_min) * minimum).unsqueeze(-1)).flatten(-2)


def q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """q(128, low 4 bits) high(64, upper 2 bits) scales(16, signed) d(2); 32 means zero."""
    q, high, scales, d = blocks.split((128, 64, 16, 2), dim=-1)
    low = bit_planes(q.unflatten(-1, (2, 64)), 4)
    upper = bit_planes(high.unflatten(-1, (2, 32)), 2)
    values = low.view(upper.shape).bitwise_or_(upper.bitwise_left_shift_(4)).float().sub_(32)
    return _scaled(values, 16, f16(d) * scales.view(torch.int8)).flatten(-2)


def _scaled(values: torch.Tensor, sub_block: int, scale: torch.Tensor) -> torch.Tensor:
    """256 values a block, however grouped, as (..., 256 // sub_block, sub_block) times one scale a sub-block."""
    return values.view(*scale.shape, sub_block).mul_(scale.unsqueeze(-1))


def scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """12 bytes to 8 scales and 8 minima of 6 bits.

    Byte j < 4 holds scale j and on top two bits of scale j + 4; byte 4 + j the same of the minima;
    byte 8 + j the low nibbles of scale j + 4 (low) and minimum j + 4 (high).
    """
    first, second, low = packed.split(4, dim=-1)
    scales = torch.cat((first & 63, (low & 15) | ((first >> 2) & 48)), dim=-1)
    minima = torch.cat((second & 63, (low >> 4) | ((second >> 2) & 48)), dim=-1)
    return scales, minima


def _q3_k_scales(packed: torch.Tensor) -> torch.Tensor:
    """12 bytes to 16 signed scales: 8 bytes hold low nibbles in two planes, 4 bytes the upper two bits in four."""
    low, upper = packed.split((8, 4), dim=-1)
    joined = bit_planes(low, 4).flatten(-2) | (bit_planes(upper, 2).flatten(-2) << 4)
    return joined.view(torch.int8) - 32


def iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) q(16)."""
    d, q = blocks.split((2, 16), dim=-1)
    return _look_up("IQ4_NL", nibbles(q)).mul_(f16(d))


def iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    """d(2) upper(2: two bits of each of 8 scales) low(4: their low nibbles) q(128); scale 32 means zero."""
    d, upper, low, q = blocks.split((2, 2, 4, 128), dim=-1)
    scales = _pairs(low, 4) | (_pairs(upper, 2) << 4)
    sub_blocks = nibbles(q.unflatten(-1, (8, 16)))
    scale = f16(d) * (scales.view(torch.int8) - 32)
    return _look_up("IQ4_NL", sub_blocks).mul_(scale.unsqueeze(-1)).flatten(-2)


def mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    """e(1: a power of two) q(16: e2m1 floats). The table holds doubled values, so the scale is halved."""
    e, q = blocks.split((1, 16), dim=-1)
    return _look_up("MXFP4", nibbles(q)).mul_(_half_power_of_two(e))


def _half_power_of_two(e: torch.Tensor) -> torch.Tensor:
    """2 ** (e - 128) in float32, built from its bits; the two smallest are subnormal."""
    e = e.int()
    return torch.where(e < 2, (e + 1) << 21, (e - 1) << 23).view(torch.float32)


def _pairs(packed: torch.Tensor, width: int) -> torch.Tensor:
    """(..., k) bytes to (..., 8 // width * k): each byte's integers, lowest first, byte after byte."""
    return bit_planes(packed, width).transpose(-1, -2).flatten(-2)


def _look_up(table: str, codes: torch.Tensor) -> torch.Tensor:
    return _values(table, codes.device).index_select(0, codes.flatten().int()).view(codes.shape)


@functools.cache
def _values(table: str, device: torch.device) -> torch.Tensor:
    """Kept a device: making it copies from the host, which must not happen in every call."""
    return torch.tensor(getattr(quants, table).kvalues, dtype=torch.float32, device=device)


_UNPACK: Final[dict[str, _Unpack]] = {
    **{quant: partial(bytes_as, dtype=dtype) for quant, dtype in PLAIN_DTYPES.items()},
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
}


def dequantise(raw: torch.Tensor, quant: str, dtype: torch.dtype) -> torch.Tensor:
    """The weights in `raw`, computed in float32 as ggml's reference does, then cast once to `dtype`.

    `raw`: uint8 of (..., row_bytes) on any device; the leading dimensions may be strided, the last is contiguous.
    Returns (..., n_cols), contiguous, sharing no memory with `raw`. Never waits for the device.
    """
    kind = quant_type(quant)
    n_cols = raw.shape[-1] // kind.block_bytes * kind.block_size
    out = torch.empty((*raw.shape[:-1], n_cols), dtype=dtype, device=raw.device)
    dequantise_into(out, raw, quant)
    return out


def dequantise_into(out: torch.Tensor, raw: torch.Tensor, quant: str) -> None:
    """`dequantise` into `out` of (..., n_cols), contiguous in its last dimension: a buffer to use again saves more
    time on the CPU than the arithmetic takes.
    """
    kind = quant_type(quant)
    if raw.dtype != torch.uint8 or raw.shape[-1] % kind.block_bytes:
        raise ValueError(
            f"{quant} rows are uint8, a multiple of {kind.block_bytes} long, not {raw.dtype} {tuple(raw.shape)}"
        )
    blocks, values = raw.unflatten(-1, (-1, kind.block_bytes)), out.unflatten(-1, (-1, kind.block_size))
    if raw.device.type == "cpu":
        _fill_in_pieces(values, blocks, _UNPACK[quant])
    else:
        values.copy_(_UNPACK[quant](blocks))


def _fill_in_pieces(values: torch.Tensor, blocks: torch.Tensor, unpack: _Unpack) -> None:
    """Cut along the outermost dimension until a piece is small: strided dimensions cannot be flattened.

    `values`: (..., n_blocks, block_size); `blocks`: (..., n_blocks, block_bytes).
    """
    if values.numel() <= _PIECE:
        values.copy_(unpack(blocks))
    elif n_rows := _PIECE * len(values) // values.numel():
        for piece, source in zip(values.split(n_rows), blocks.split(n_rows), strict=True):
            piece.copy_(unpack(source))
    else:
        for row, source in zip(values, blocks, strict=True):
            _fill_in_pieces(row, source, unpack)
