"""Dequantisation against gguf.quants, bit for bit, over random blocks of every type."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from executor.quants import QUANTS, dequantise, dequantise_into, quant_type, row_bytes, tensor_bytes, unpack


def reference(raw: np.ndarray, quant: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[quant]))


def assert_same_bits(got: torch.Tensor, expected: np.ndarray) -> None:
    """Equal bit patterns; where the reference is NaN, a NaN (IEEE 754 leaves its sign and payload open)."""
    found = got.numpy()
    assert found.shape == expected.shape
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def random_rows(quant: str, shape: tuple[int, ...], n_blocks: int, seed: int) -> np.ndarray:
    """Any bytes at all: subnormal, infinite and NaN scales occur."""
    width = n_blocks * QUANTS[quant].block_bytes
    return np.random.default_rng(seed).integers(0, 256, (*shape, width), dtype=np.uint8)


@pytest.mark.parametrize("quant", QUANTS)
@given(n_rows=st.integers(1, 5), n_blocks=st.integers(1, 9), seed=st.integers(0, 2**63))
@settings(max_examples=40, deadline=None)
def test_equals_gguf_bit_for_bit(quant: str, n_rows: int, n_blocks: int, seed: int) -> None:
    raw = random_rows(quant, (n_rows,), n_blocks, seed)
    assert_same_bits(dequantise(torch.from_numpy(raw), quant, torch.float32), reference(raw, quant))


@pytest.mark.parametrize("quant", QUANTS)
def test_every_byte_value_at_every_place(quant: str) -> None:
    """Block b holds the byte b everywhere."""
    raw = np.repeat(np.arange(256, dtype=np.uint8)[:, None], QUANTS[quant].block_bytes, axis=1)
    assert_same_bits(dequantise(torch.from_numpy(raw), quant, torch.float32), reference(raw, quant))


@pytest.mark.parametrize("quant", QUANTS)
def test_strided_experts_at_odd_offsets(quant: str) -> None:
    """A projection inside a larger slab row, whose start and stride have no alignment."""
    rows = random_rows(quant, (3, 4), 2, seed=1)
    slab = torch.zeros(3, 7 + rows[0].size + 6, dtype=torch.uint8)
    view = slab[:, 7 : 7 + rows[0].size].unflatten(-1, rows.shape[1:])
    view.copy_(torch.from_numpy(rows))
    assert not view.is_contiguous()
    assert_same_bits(dequantise(view, quant, torch.float32), reference(rows, quant))


@pytest.mark.parametrize("shape", [(), (1,), (64,), (2, 3), (5, 33)])
def test_pieces_make_no_difference(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    raw = torch.from_numpy(random_rows("Q5_K", shape, 3, seed=2))
    whole = dequantise(raw, "Q5_K", torch.bfloat16)
    for piece in (256, 3 * 256 * 4, 3 * 256 * 40):
        monkeypatch.setattr(unpack, "_PIECE", piece)
        assert torch.equal(dequantise(raw, "Q5_K", torch.bfloat16).view(torch.int16), whole.view(torch.int16))


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_once_from_float32(quant: str, dtype: torch.dtype) -> None:
    raw = torch.from_numpy(random_rows(quant, (2,), 4, seed=3))
    exact = dequantise(raw, quant, torch.float32)
    assert torch.equal(dequantise(raw, quant, dtype).nan_to_num(7), exact.to(dtype).nan_to_num(7))


def test_shares_no_memory_and_fills_a_given_buffer() -> None:
    raw = torch.arange(8, dtype=torch.float32).view(torch.uint8)
    out = dequantise(raw, "F32", torch.float32)
    raw.zero_()
    assert out.tolist() == list(range(8))
    dequantise_into(out, raw, "F32")
    assert out.tolist() == [0] * 8


def test_refuses_broken_rows() -> None:
    with pytest.raises(ValueError, match="multiple of 18"):
        dequantise(torch.zeros(2, 19, dtype=torch.uint8), "Q4_0", torch.float32)


def test_sizes_are_ggufs() -> None:
    assert (quant_type("Q4_K").block_size, quant_type("Q4_K").block_bytes) == (256, 144)
    assert row_bytes("Q4_0", 64) == 36
    assert tensor_bytes("MXFP4", (4, 2, 96)) == 4 * 2 * 3 * 17
    assert tensor_bytes("F32", (5,)) == 20


def test_errors_name_the_fact_and_the_choice() -> None:
    with pytest.raises(HprofError, match=r"'IQ1_S' is not known; choose one of F32, F16, .*MXFP4\."):
        quant_type("IQ1_S")
    with pytest.raises(HprofError, match=r"'q4_k_m' is not known; choose one of F32"):
        quant_type("q4_k_m")
    with pytest.raises(HprofError, match=r"Rows of 100 weights .* Q4_0, whose blocks hold 32"):
        row_bytes("Q4_0", 100)


def test_sizes_do_not_import_torch() -> None:
    code = "import sys, executor.quants as q; q.row_bytes('Q4_0', 64); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("quant", QUANTS)
def test_equals_gguf_on_cuda(quant: str) -> None:
    raw = random_rows(quant, (33,), 5, seed=4)
    got = dequantise(torch.from_numpy(raw).cuda(), quant, torch.float32)
    assert_same_bits(got.cpu(), reference(raw, quant))
