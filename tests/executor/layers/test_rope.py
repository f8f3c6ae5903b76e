"""Rotary embedding against complex rotation written out, and each scaling rule against its own definition."""

from __future__ import annotations

import math

import pytest
import torch

from executor.layers.rope import frequencies, rope_table, rotate
from executor.model import RopeShape

CPU = torch.device("cpu")


def rotated_by_definition(x: torch.Tensor, rope: RopeShape, n_past: int) -> torch.Tensor:
    out = x.clone()
    half = rope.dims // 2
    for row in range(x.shape[0]):
        for pair in range(half):
            a, b = (2 * pair, 2 * pair + 1) if rope.interleaved else (pair, pair + half)
            angle = (n_past + row) * rope.theta ** (-2 * pair / rope.dims)
            cos, sin = math.cos(angle), math.sin(angle)
            out[row, :, a] = x[row, :, a] * cos - x[row, :, b] * sin
            out[row, :, b] = x[row, :, a] * sin + x[row, :, b] * cos
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [4, 8])
def test_rotation(interleaved: bool, dims: int) -> None:
    rope = RopeShape(theta=100.0, dims=dims, interleaved=interleaved)
    x = torch.randn(3, 2, 8)
    got = rotate(x, rope_table(rope, 16, CPU, torch.float32), n_past=5)
    torch.testing.assert_close(got, rotated_by_definition(x, rope, 5))


def test_writes_into_a_given_buffer() -> None:
    rope = RopeShape(theta=100.0, dims=4)
    table = rope_table(rope, 8, CPU, torch.float32)
    x, out = torch.randn(2, 1, 8), torch.zeros(2, 1, 8)
    assert rotate(x, table, 0, out=out) is out
    torch.testing.assert_close(out, rotate(x, table, 0))


def test_states_share_a_table_while_one_lives() -> None:
    rope = RopeShape(theta=321.0, dims=4)
    table = rope_table(rope, 8, CPU, torch.float32)
    assert rope_table(rope, 8, CPU, torch.float32) is table
    assert rope_table(rope, 9, CPU, torch.float32) is not table


def test_a_table_without_storage_takes_no_memory_however_long() -> None:
    """As on a simulated device: `hprof run --device sim -d 2147483647` once took all that the host had."""
    table = rope_table(RopeShape(theta=10000.0, dims=64), 1 << 40, torch.device("meta"), torch.float16)
    assert (table.cos.shape, table.sin.dtype, table.cos.device.type) == ((1 << 40, 32), torch.float16, "meta")


def test_linear_scaling_slows_every_pair() -> None:
    plain = frequencies(RopeShape(theta=10000.0, dims=64))
    slowed = frequencies(RopeShape(theta=10000.0, dims=64, scaling="linear", factor=4.0))
    torch.testing.assert_close(slowed, plain / 4)


def test_other_factors_for_a_long_context() -> None:
    rope = RopeShape(theta=10000.0, dims=4, original_context=16, factors=(2.0, 3.0), long_factors=(4.0, 5.0))
    plain = frequencies(RopeShape(theta=10000.0, dims=4))
    torch.testing.assert_close(frequencies(rope, 16), plain / torch.tensor([2.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(frequencies(rope, 17), plain / torch.tensor([4.0, 5.0], dtype=torch.float64))
    table = rope_table(rope, 17, CPU, torch.float64)
    torch.testing.assert_close(table.cos[1], (plain / torch.tensor([4.0, 5.0], dtype=torch.float64)).cos())


def test_factors_divide() -> None:
    plain = frequencies(RopeShape(theta=10000.0, dims=4))
    torch.testing.assert_close(
        frequencies(RopeShape(theta=10000.0, dims=4, factors=(1.0, 8.0))), plain / torch.tensor([1.0, 8.0])
    )


def test_yarn_keeps_fast_pairs_and_slows_slow_ones() -> None:
    """gpt-oss's numbers: correction dimensions 8.09 and 17.4, so that pairs up to 8 are kept and from 18 on slowed."""
    rope = RopeShape(theta=150000.0, dims=64, scaling="yarn", factor=32.0, original_context=4096)
    ratio = frequencies(rope) / frequencies(RopeShape(theta=150000.0, dims=64))
    assert ratio[8] == 1.0
    assert ratio[9] < 1.0
    assert ratio[13] == pytest.approx(0.5 + 0.5 / 32)
    assert ratio[17] > 1 / 32
    torch.testing.assert_close(ratio[18:], torch.full((14,), 1 / 32, dtype=torch.float64))


def test_llama3_rule() -> None:
    """Llama 3.1's numbers, by its own text: wavelengths below 2048 are kept, above 8192 divided by 8."""
    rope = RopeShape(theta=500000.0, dims=128, scaling="llama3", factor=8.0, original_context=8192)
    plain = frequencies(RopeShape(theta=500000.0, dims=128))
    wavelength = 2 * math.pi / plain
    ratio = frequencies(rope) / plain
    assert (ratio[wavelength < 2048] == 1).all()
    torch.testing.assert_close(ratio[wavelength > 8192], torch.full_like(ratio[wavelength > 8192], 1 / 8))
    between = (wavelength > 2048) & (wavelength < 8192)
    smooth = (8192 / wavelength[between] - 1) / 3
    torch.testing.assert_close(ratio[between], (1 - smooth) / 8 + smooth)


def test_attention_factor_scales_both() -> None:
    rope = RopeShape(theta=100.0, dims=4, attention_factor=1.5)
    table = rope_table(rope, 8, CPU, torch.float64)
    torch.testing.assert_close(table.cos**2 + table.sin**2, torch.full((8, 2), 2.25, dtype=torch.float64))
