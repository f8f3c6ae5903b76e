"""Packed int4 against the float32 weights: as near as bf16 weights are, for every type that has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gguf import GGMLQuantizationType, quants

from executor.host import int4
from executor.host.int4 import GROUP, is_affine, unpack_affine
from executor.quants import fill_random, tensor_bytes
from executor.quants.dispatch import dequantise
from tests.executor.host.errors import relative_error

TYPES = ["Q4_0", "Q4_1", "Q4_K"]
pytestmark = pytest.mark.skipif(not int4.has_int4(), reason="this PyTorch has no packed int4 product on the CPU")


@pytest.fixture
def fresh() -> Iterator[None]:
    int4.has_int4.cache_clear()
    yield
    int4.has_int4.cache_clear()


def stored(quant: str, n_rows: int, n_cols: int, mean: float = 0.0) -> torch.Tensor:
    """Rows of weights around `mean`, by gguf's own quantiser where it has one."""
    if quant == "Q4_K":
        raw = torch.empty(tensor_bytes(quant, (n_rows, n_cols)), dtype=torch.uint8)
        fill_random(raw, quant, n_cols**-0.5, 3)
        return raw.view(n_rows, -1)
    weights = torch.randn(n_rows, n_cols, generator=torch.Generator().manual_seed(5)).add_(mean).numpy()
    return torch.from_numpy(quants.quantize(weights, GGMLQuantizationType[quant]))


@pytest.mark.parametrize("quant", TYPES)
def test_codes_are_the_weights(quant: str) -> None:
    raw = stored(quant, 8, 512)
    codes, scale, zero = unpack_affine(raw, quant)
    found = (codes.view(8, -1, GROUP).float() - 8) * scale.unsqueeze(-1) + zero.unsqueeze(-1)
    torch.testing.assert_close(found.flatten(1), dequantise(raw, quant, torch.float32), rtol=0, atol=1e-6)


@pytest.mark.parametrize("quant", TYPES)
@pytest.mark.parametrize("shape", [(128, 512), (80, 256), (16, 768)])  # also rows that fill no block of 64
@pytest.mark.parametrize("n", [1, 5, 33])
def test_products_are_as_near_as_those_of_bf16_weights(quant: str, shape: tuple[int, int], n: int) -> None:
    raw = stored(quant, *shape)
    weights = dequantise(raw, quant, torch.float32)
    packed, scales = int4.empty_packed(1, *shape)
    int4.pack_into(packed[0], scales[0], raw, quant)
    rows = torch.randn(n, shape[1], generator=torch.Generator().manual_seed(n)).to(torch.bfloat16)
    want = rows.float() @ weights.t()
    rounded = relative_error(rows.float() @ weights.to(torch.bfloat16).float().t(), want)
    error = relative_error(int4.multiply(rows, packed[0], scales[0]), want)
    assert error < 2**-8
    assert error < 2 * rounded + 2**-9, "a result in bf16 is off by 2^-9 itself"


def test_weights_far_from_zero_keep_their_minimum() -> None:
    """A zero point computed from a rounded scale would be off by 8 roundings of it."""
    raw = stored("Q4_1", 64, 256, mean=4.0)
    packed, scales = int4.empty_packed(1, 64, 256)
    int4.pack_into(packed[0], scales[0], raw, "Q4_1")
    rows = torch.ones(1, 256, dtype=torch.bfloat16)
    want = dequantise(raw, "Q4_1", torch.float32).sum(-1, keepdim=True).t()
    assert relative_error(int4.multiply(rows, packed[0], scales[0]), want) < 2**-8


def test_a_cut_at_a_block_packs_as_the_whole() -> None:
    raw = stored("Q4_0", 144, 64)
    whole, in_pieces = int4.empty_packed(1, 144, 64), int4.empty_packed(1, 144, 64)
    int4.pack_into(whole[0][0], whole[1][0], raw, "Q4_0")
    for start, end in ((0, 64), (64, 144)):
        int4.pack_into(in_pieces[0][0, start:end], in_pieces[1][0, :, start:end], raw[start:end], "Q4_0")
    assert torch.equal(whole[0], in_pieces[0])
    assert torch.equal(whole[1], in_pieces[1])


def test_what_cannot_be_packed() -> None:
    assert int4.can_pack("Q4_K", (64, 256))
    assert not int4.can_pack("Q4_0", (40, 256)), "rows come in sixteens"
    assert not int4.can_pack("Q8_0", (64, 256))
    assert not is_affine("MXFP4")


def test_bytes_are_those_of_the_tensors() -> None:
    packed, scales = int4.empty_packed(3, 64, 256)
    assert int4.packed_bytes(3 * 64 * 256) == packed.nbytes + scales.nbytes


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_without_the_operation_nothing_is_packed(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def missing(name: str) -> None:
        raise error(name)

    monkeypatch.setattr(int4, "_op", missing)
    assert not int4.can_pack("Q4_0", (64, 256))


@pytest.mark.usefixtures("fresh")
def test_an_operation_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    real = int4.multiply
    monkeypatch.setattr(int4, "multiply", lambda *args: -real(*args))
    assert not int4.can_pack("Q4_0", (64, 256))
