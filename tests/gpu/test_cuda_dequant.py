"""The fused kernels on a GPU: every type equal to gguf bit for bit, and nothing but the used experts written."""

from __future__ import annotations

import pytest
import torch

from executor.quants import QUANTS, dispatch, unpack
from executor.triton_support import has_triton
from tests.executor.quants.dequant_cases import Stack, assert_same_weights, expected, rows, stack

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
    pytest.mark.skipif(not has_triton(), reason="no Triton, or no C compiler"),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
POISON = 12345.0


@pytest.fixture
def fused_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test whose call falls back to PyTorch's operations."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("not fused")

    monkeypatch.setattr(unpack, "dequantise", refuse)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results start as POISON everywhere, so that what a kernel leaves unwritten shows."""
    from executor.quants import fused

    empty = fused._empty
    monkeypatch.setattr(fused, "_empty", lambda *arguments: empty(*arguments).fill_(POISON))


@pytest.mark.usefixtures("fused_only", "poisoned")
@pytest.mark.parametrize("n_weights", [256, 3 * 4096, 1_000_000])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quant", QUANTS)
def test_rows(quant: str, dtype: torch.dtype, n_weights: int, cuda: torch.device) -> None:
    raw = rows(quant, 5, n_weights, seed=n_weights)
    assert_same_weights(dispatch.dequantise(raw.to(cuda), quant, dtype), expected(raw, quant, dtype))


@pytest.mark.usefixtures("fused_only", "poisoned")
@pytest.mark.parametrize("quant", QUANTS)
def test_bytes_that_start_at_a_block_but_not_at_a_multiple_of_16(quant: str, cuda: torch.device) -> None:
    stored = rows(quant, 1, 3 * 4096, seed=7)[0]
    start = QUANTS[quant].block_bytes
    length = (len(stored) - start) // (8 * start) * 8 * start
    raw = stored.to(cuda)[start : start + length]
    assert_same_weights(
        dispatch.dequantise(raw, quant, torch.bfloat16), expected(stored[start : start + length], quant, torch.bfloat16)
    )


@pytest.mark.usefixtures("fused_only", "poisoned")
@pytest.mark.parametrize(("quant", "placed"), [(quant, True) for quant in QUANTS] + [("Q4_0", False)])
def test_used_experts_only(quant: str, placed: bool, cuda: torch.device) -> None:
    case = stack(quant, 3 * 5000, seed=3)
    got = _experts(case.to(cuda), quant, placed)
    case.check(got, quant, torch.bfloat16, placed=placed)
    assert (got[case.flags.to(cuda) == 0] == torch.tensor(POISON, dtype=torch.bfloat16)).all()


@pytest.mark.usefixtures("fused_only", "poisoned")
@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_chosen_experts_in_their_order(quant: str, dtype: torch.dtype, cuda: torch.device) -> None:
    case = stack(quant, 3 * 5000, seed=5)
    places = torch.tensor([6, 0, 3], dtype=dtype, device=cuda)
    got = dispatch.dequantise_chosen(case.to(cuda).raw, quant, torch.bfloat16, places)
    assert_same_weights(got, expected(case.raw[[6, 0, 3]], quant, torch.bfloat16))


def _experts(case: Stack, quant: str, placed: bool) -> torch.Tensor:
    return dispatch.dequantise_experts(case.raw, quant, torch.bfloat16, case.flags, case.place_of if placed else None)


@pytest.mark.usefixtures("fused_only")
def test_strided_rows(cuda: torch.device) -> None:
    wide = rows("Q6_K", 70, 70 * 1024, seed=4)
    assert_same_weights(
        dispatch.dequantise(wide.to(cuda)[::3, 210:630], "Q6_K", torch.bfloat16),
        expected(wide[::3, 210:630], "Q6_K", torch.bfloat16),
    )


@pytest.mark.parametrize("quant", ["Q4_0", "F32"])
def test_what_the_kernel_cannot_read_still_comes_right(quant: str, cuda: torch.device) -> None:
    stored = rows(quant, 1, 512, seed=5)[0]
    shifted = torch.cat((stored.new_zeros(1), stored)).to(cuda)[1:]
    short = shifted[: len(shifted) - 3 * 4] if quant == "F32" else shifted
    got = dispatch.dequantise(short, quant, torch.float32)
    assert_same_weights(got, expected(stored[: len(short)], quant, torch.float32))


@pytest.mark.parametrize("quant", QUANTS)
def test_nothing_waits_for_the_device(quant: str, cuda: torch.device) -> None:
    case = stack(quant, 3 * 5000, seed=6).to(cuda)
    for _ in range(2):
        torch.cuda.set_sync_debug_mode("error")
        try:
            _experts(case, quant, placed=True)
            dispatch.dequantise(case.raw, quant, torch.bfloat16)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_weights_beyond_the_reach_of_32_bits(cuda: torch.device) -> None:
    """1,500 experts of 1.6M weights: the last one's numbers lie beyond 2 ** 31, its bytes beyond 2 ** 30."""
    n_experts, n_rows, n_cols = 1500, 768, 2048
    one = rows("Q4_0", n_rows, n_rows * n_cols, seed=8)
    raw = torch.empty(n_experts, *one.shape, dtype=torch.uint8, device=cuda)
    raw[-1] = one.to(cuda)
    flags = torch.zeros(n_experts, dtype=torch.uint8, device=cuda)
    flags[-1] = 1
    got = dispatch.dequantise_experts(raw, "Q4_0", torch.bfloat16, flags, None)
    assert_same_weights(got[-1], expected(one, "Q4_0", torch.bfloat16))


def test_bytes_beyond_the_reach_of_32_bits(cuda: torch.device) -> None:
    """One matrix of 2.4 GB, whose last rows are checked."""
    tail = rows("Q8_0", 64, 64 * 8192, seed=9)
    raw = torch.empty(270_000, tail.shape[1], dtype=torch.uint8, device=cuda)
    raw[-64:] = tail.to(cuda)
    got = dispatch.dequantise(raw, "Q8_0", torch.bfloat16)[-64:]
    assert_same_weights(got, expected(tail, "Q8_0", torch.bfloat16))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_on_a_device_that_is_not_current() -> None:
    raw = rows("Q4_K", 4, 100_000, seed=10)
    for index in range(torch.cuda.device_count()):
        got = dispatch.dequantise(raw.to(f"cuda:{index}"), "Q4_K", torch.bfloat16)
        assert got.device.index == index
        assert_same_weights(got, expected(raw, "Q4_K", torch.bfloat16))
