"""Stored blocks as words of four signed bytes, which `dp4a` multiplies: one decoder a quant type. Needs Triton.

A *unit* is what one thread takes at once: 16 bytes of packed weights (32 of Q8_0), which hold one to four *groups* of
16 neighbouring weights. A decoder gives one group of a unit: four words, and what its integers are multiplied by and
what is added to each, both as numbers a unit. It takes the stack's bytes, the offset of each unit's block (int64), the
unit's number in its block, and a mask. Loads that two groups share are merged by the compiler.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from triton import jit
from triton import language as tl

from executor.quants.fused_decoders import IQ4_NL, MXFP4

# Dimensions are (units, rows, 1, words), as `direct_kernels` tells.
Bytes: TypeAlias = tl.tensor  # a pointer to uint8
Offsets: TypeAlias = tl.tensor  # (units, rows, 1, 1) int64
Units: TypeAlias = tl.tensor  # (units, 1, 1, 1) int32
Mask: TypeAlias = tl.tensor  # (units, rows, 1, 1)
Integer: TypeAlias = tl.tensor  # (units, rows, 1, 1) int32
Words: TypeAlias = tl.tensor  # (units, rows, 1, 4) int32
Number: TypeAlias = tl.tensor  # (units, rows, 1, 1) float32


@jit
def byte_at(raw: Bytes, at: Offsets, inside: Mask) -> Integer:
    return tl.load(raw + at, mask=inside, other=0).to(tl.int32)


@jit
def half_at(raw: Bytes, at: Offsets, inside: Mask) -> Number:
    """The float16 at an even offset."""
    return tl.load((raw + at).to(tl.pointer_type(tl.float16)), mask=inside, other=0.0).to(tl.float32)


@jit
def pair_at(raw: Bytes, at: Offsets, inside: Mask) -> Integer:
    """The two bytes at an even offset."""
    return tl.load((raw + at).to(tl.pointer_type(tl.uint16)), mask=inside, other=0).to(tl.int32)


@jit
def four() -> Units:
    """0 to 3, as words (…, 4) are counted."""
    return tl.arange(0, 4)[None, None, None, :]


@jit
def aligned_words(raw: Bytes, at: Offsets, inside: Mask) -> Words:
    """The 16 bytes at a multiple of 16, in one load."""
    first = tl.multiple_of((raw + at).to(tl.pointer_type(tl.int32)), [16, 16, 16, 16])
    return tl.load(first + four(), mask=inside, other=0)


@jit
def words_at(raw: Bytes, at: Offsets, inside: Mask) -> Words:
    """The 16 bytes at any offset from `raw`, which 4 divides: of two whole words each, shifted into place."""
    first = (raw + (at & -4)).to(tl.pointer_type(tl.int32)) + four()
    shift = (at & 3) * 8
    low = tl.load(first, mask=inside, other=0)
    high = tl.load(first + 1, mask=inside & (shift != 0), other=0)  # behind an aligned word memory may end
    both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
    return (both >> shift).to(tl.int32)


@jit
def with_fifths(low: Words, bits: Integer) -> Words:
    """`low` with one of 16 `bits` above the lower four of each byte.

    Four bits become bit 0 of four bytes as shifted copies beside each other, of which one bit a byte stays.
    """
    of_word = (bits >> (four() * 4)) & 15
    return low | (((of_word * 0x00204081) & 0x01010101) << 4)


@jit
def q8_0(raw: Bytes, at: Offsets, _unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    scale = half_at(raw, at, inside)
    return words_at(raw, at + 2 + 16 * group, inside), scale, scale


@jit
def q8_0_by_eight(
    raw: Bytes, at: Offsets, unit: Units, group: tl.constexpr, inside: Mask
) -> tuple[Words, Number, Number]:
    """Eight blocks' scales, then their weights (`executor.quants.relaid`); so below."""
    scale = half_at(raw, at + unit * 2, inside)
    return aligned_words(raw, at + 16 + unit * 32 + 16 * group, inside), scale, scale


@jit
def q4_0(raw: Bytes, at: Offsets, _unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    scale = half_at(raw, at, inside)
    return (words_at(raw, at + 2, inside) >> (4 * group)) & 0x0F0F0F0F, scale, scale


@jit
def q4_0_by_eight(
    raw: Bytes, at: Offsets, unit: Units, group: tl.constexpr, inside: Mask
) -> tuple[Words, Number, Number]:
    scale = half_at(raw, at + unit * 2, inside)
    return (aligned_words(raw, at + 16 + unit * 16, inside) >> (4 * group)) & 0x0F0F0F0F, scale, scale


@jit
def q4_1(raw: Bytes, at: Offsets, _unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    words = (words_at(raw, at + 4, inside) >> (4 * group)) & 0x0F0F0F0F
    return words, half_at(raw, at, inside), half_at(raw, at + 2, inside)


@jit
def q5_0(raw: Bytes, at: Offsets, _unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    scale = half_at(raw, at, inside)
    low = (words_at(raw, at + 6, inside) >> (4 * group)) & 0x0F0F0F0F
    return with_fifths(low, pair_at(raw, at + 2 + 2 * group, inside)), scale, scale


@jit
def q5_1(raw: Bytes, at: Offsets, _unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    low = (words_at(raw, at + 8, inside) >> (4 * group)) & 0x0F0F0F0F
    words = with_fifths(low, pair_at(raw, at + 4 + 2 * group, inside))
    return words, half_at(raw, at, inside), half_at(raw, at + 2, inside)


@jit
def q2_k(raw: Bytes, at: Offsets, unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    words = (words_at(raw, at + 16 + 16 * unit, inside) >> (2 * group)) & 0x03030303
    both = byte_at(raw, at + _sixteen(unit, group), inside)
    scale = half_at(raw, at + 80, inside) * (both & 15).to(tl.float32)
    return words, scale, -half_at(raw, at + 82, inside) * (both >> 4).to(tl.float32)


@jit
def q3_k(raw: Bytes, at: Offsets, unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    low = (words_at(raw, at + 32 + 16 * unit, inside) >> (2 * group)) & 0x03030303
    high = (words_at(raw, at + unit % 2 * 16, inside) >> (unit // 2 * 4 + group)) & 0x01010101
    sixteen = _sixteen(unit, group)
    of_low = byte_at(raw, at + 96 + sixteen % 8, inside) >> (sixteen // 8 * 4)
    of_high = byte_at(raw, at + 104 + sixteen % 4, inside) >> (sixteen // 4 * 2)
    integer = ((of_low & 15) | ((of_high & 3) << 4)) - 32
    scale = half_at(raw, at + 108, inside) * integer.to(tl.float32)
    return low | (high << 2), scale, scale


@jit
def q6_k(raw: Bytes, at: Offsets, unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    half, first = unit // 2, unit % 2 * 16
    low = (words_at(raw, at + half * 64 + first + group % 2 * 32, inside) >> (group // 2 * 4)) & 0x0F0F0F0F
    high = (words_at(raw, at + 128 + half * 32 + first, inside) >> (2 * group)) & 0x03030303
    integer = byte_at(raw, at + 192 + _sixteen(unit, group), inside).to(tl.int8)
    scale = half_at(raw, at + 208, inside) * integer.to(tl.float32)
    return low | (high << 4), scale, scale


@jit
def _sixteen(unit: Units, group: tl.constexpr) -> Units:
    """Which 16 weights of a block of 256, where a unit holds four groups."""
    return unit // 2 * 8 + 2 * group + unit % 2


@jit
def q4_k(raw: Bytes, at: Offsets, unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    words = (aligned_words(raw, at + 16 + 16 * unit, inside) >> (4 * group)) & 0x0F0F0F0F
    scale, minimum = _six_bits(raw, at, unit // 2 * 2 + group, inside)
    return words, scale, minimum


@jit
def q5_k(raw: Bytes, at: Offsets, unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    thirty_two = unit // 2 * 2 + group
    low = (aligned_words(raw, at + 48 + 16 * unit, inside) >> (4 * group)) & 0x0F0F0F0F
    high = (aligned_words(raw, at + 16 + unit % 2 * 16, inside) >> thirty_two) & 0x01010101
    scale, minimum = _six_bits(raw, at, thirty_two, inside)
    return low | (high << 4), scale, minimum


@jit
def _six_bits(raw: Bytes, at: Offsets, thirty_two: Units, inside: Mask) -> tuple[Number, Number]:
    """Scale and minimum of 32 weights in Q4_K and Q5_K; the layout is told at `unpack.scales_and_minima`."""
    column, shift = thirty_two % 4, tl.where(thirty_two < 4, 0, 2)
    scale = byte_at(raw, at + 4 + column, inside)
    minimum = byte_at(raw, at + 8 + column, inside)
    low = byte_at(raw, at + 12 + column, inside)
    scale = tl.where(shift == 0, scale & 63, (low & 15) | ((scale >> 2) & 48))
    minimum = tl.where(shift == 0, minimum & 63, (low >> 4) | ((minimum >> 2) & 48))
    return half_at(raw, at, inside) * scale.to(tl.float32), -half_at(raw, at + 2, inside) * minimum.to(tl.float32)


@jit
def iq4_nl(raw: Bytes, at: Offsets, _unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    scale = half_at(raw, at, inside)
    return _looked_up((words_at(raw, at + 2, inside) >> (4 * group)) & 0x0F0F0F0F, IQ4_NL), scale, scale


@jit
def iq4_xs(raw: Bytes, at: Offsets, unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    low = byte_at(raw, at + 4 + unit // 2, inside) >> (unit % 2 * 4)
    high = byte_at(raw, at + 2 + unit // 4, inside) >> (unit % 4 * 2)
    scale = half_at(raw, at, inside) * (((low & 15) | ((high & 3) << 4)) - 32).to(tl.float32)
    return _looked_up((words_at(raw, at + 8 + 16 * unit, inside) >> (4 * group)) & 0x0F0F0F0F, IQ4_NL), scale, scale


@jit
def mxfp4(raw: Bytes, at: Offsets, _unit: Units, group: tl.constexpr, inside: Mask) -> tuple[Words, Number, Number]:
    e = byte_at(raw, at, inside)
    # 2 ** (e - 128) from its bits: the two smallest are subnormal
    scale = tl.where(e < 2, (e + 1) << 21, (e - 1) << 23).to(tl.float32, bitcast=True)
    return _looked_up((words_at(raw, at + 1, inside) >> (4 * group)) & 0x0F0F0F0F, MXFP4), scale, scale


@jit
def _looked_up(codes: Words, TABLE: tl.constexpr) -> Words:
    """What the four codes of a word stand for, each a byte. `TABLE`: 16 signed bytes as two int64."""
    values = codes * 0
    for number in tl.static_range(4):
        code = (codes >> (8 * number)) & 15
        value = (tl.where(code < 8, TABLE[0], TABLE[1]) >> (code % 8 * 8)).to(tl.int32) & 255
        values |= value << (8 * number)
    return values


class WordFormat(NamedTuple):
    """Blocks of `block_bytes` hold `units` units of `groups` groups, which are `distance` sixteens of weights apart."""

    decode: Any
    block_bytes: int
    units: int
    groups: int
    distance: int
    zero: int = 0  # the integer that stands for 0
    has_minimum: bool = False
    alignment: int = 4  # of the bytes' address


WORDS: Final[dict[str, WordFormat]] = {
    "Q8_0": WordFormat(q8_0, 34, 1, 2, 1),
    "Q8_0/8": WordFormat(q8_0_by_eight, 272, 8, 2, 1, alignment=16),
    "Q4_0": WordFormat(q4_0, 18, 1, 2, 1, zero=8),
    "Q4_0/8": WordFormat(q4_0_by_eight, 144, 8, 2, 1, zero=8, alignment=16),
    "Q4_1": WordFormat(q4_1, 20, 1, 2, 1, has_minimum=True),
    "Q5_0": WordFormat(q5_0, 22, 1, 2, 1, zero=16),
    "Q5_1": WordFormat(q5_1, 24, 1, 2, 1, has_minimum=True),
    "Q2_K": WordFormat(q2_k, 84, 4, 4, 2, has_minimum=True),
    "Q3_K": WordFormat(q3_k, 110, 4, 4, 2, zero=4),
    "Q4_K": WordFormat(q4_k, 144, 8, 2, 2, has_minimum=True, alignment=16),
    "Q5_K": WordFormat(q5_k, 176, 8, 2, 2, has_minimum=True, alignment=16),
    "Q6_K": WordFormat(q6_k, 210, 4, 4, 2, zero=32),
    "IQ4_NL": WordFormat(iq4_nl, 18, 1, 2, 1),
    "IQ4_XS": WordFormat(iq4_xs, 136, 8, 2, 1),
    "MXFP4": WordFormat(mxfp4, 17, 1, 2, 1),
}
"""Of every type whose weights are small integers; and of the layouts of residents (`relaid`)."""
