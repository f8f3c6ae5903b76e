"""Attention's kernels against the softmax written out, on the CPU and (marked) on CUDA; the KV cache around them."""

from __future__ import annotations

import pytest
import torch

from executor.layers.attend import attend, plain_attention
from executor.layers.mixer import mix
from executor.layers.state import AttentionState, new_state
from executor.shape import AttentionShape, DenseFfn, LayerShape, RopeShape
from tests.executor.layers.layer_weights import RandomWeights

CPU = torch.device("cpu")


def by_definition(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """One query at a time; a sink is a further key column with the value 0."""
    n, heads, dim = q.shape
    total, group = keys.shape[0], heads // keys.shape[1]
    out = torch.zeros(n, heads, dim, dtype=torch.float64)
    for row in range(n):
        position = total - n + row
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            k, v = (t[first : position + 1, head // group].double() for t in (keys, values))
            logits = k @ q[row, head].double() / dim**0.5
            if sinks is not None:
                logits = torch.cat([logits, sinks[head : head + 1].double()])
                v = torch.cat([v, torch.zeros(1, dim, dtype=torch.float64)])
            out[row, head] = logits.softmax(0) @ v
    return out


def example(n: int, total: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(n * 1000 + total)
    q, keys, values, sinks = (
        torch.randn(shape, generator=generator) for shape in ((n, 6, 16), (total, 2, 16), (total, 2, 16), (6,))
    )
    return tuple(t.to(device, dtype) for t in (q, keys, values, sinks))


LENGTHS = [(1, 1), (1, 9), (9, 9), (5, 21), (3, 4)]


@pytest.mark.parametrize(("n", "total"), LENGTHS)
@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attend(n: int, total: int, window: int | None, with_sinks: bool) -> None:
    q, keys, values, sinks = example(n, total, CPU, torch.float32)
    got = attend(q, keys, values, window, sinks if with_sinks else None)
    want = by_definition(q, keys, values, window, sinks if with_sinks else None)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("n", "total"), LENGTHS)
def test_plain_attention(n: int, total: int) -> None:
    """The path for devices without a flash kernel."""
    q, keys, values, _ = example(n, total, CPU, torch.float32)
    out, log_sum_exp = plain_attention(q, keys, values, window=3)
    torch.testing.assert_close(out.double(), by_definition(q, keys, values, 3, None), atol=1e-5, rtol=1e-5)
    assert log_sum_exp.shape == (n, 6)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(("n", "total"), [*LENGTHS, (200, 300)])
@pytest.mark.parametrize("window", [None, 4, 128])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attend_on_cuda(n: int, total: int, window: int | None, with_sinks: bool, dtype: torch.dtype) -> None:
    q, keys, values, sinks = example(n, total, torch.device("cuda"), dtype)
    got = attend(q, keys, values, window, sinks if with_sinks else None)
    want = by_definition(q.cpu(), keys.cpu(), values.cpu(), window, sinks.cpu() if with_sinks else None)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(got.cpu().double(), want, atol=tolerance, rtol=tolerance)


ROPE = RopeShape(theta=10000.0, dims=16)
VARIANTS = {
    "plain": AttentionShape(4, 2, 16, ROPE),
    "biases": AttentionShape(4, 2, 16, ROPE, bias=True, output_bias=True),
    "norms": AttentionShape(4, 4, 16, ROPE, qk_norm=True),
    "window and sinks": AttentionShape(4, 1, 16, ROPE, window=5, sinks=True),
    "a gate a head": AttentionShape(4, 2, 16, ROPE, head_gate=True),
    "gated, half rotated": AttentionShape(4, 2, 16, RopeShape(1e4, 8), qk_norm=True, output_gate=True),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_ubatches_continue_where_the_last_one_ended(variant: str) -> None:
    layer = LayerShape(VARIANTS[variant], DenseFfn(32))
    w = RandomWeights(layer, hidden=24)
    x = torch.randn(13, 24, generator=torch.Generator().manual_seed(1))
    whole = mix(x, w, layer, new_state(layer.mixer, 13, CPU, torch.float32), 0, 1e-5)
    state = new_state(layer.mixer, 13, CPU, torch.float32)
    cut = [mix(x[a:b], w, layer, state, a, 1e-5) for a, b in ((0, 6), (6, 7), (7, 13))]
    torch.testing.assert_close(torch.cat(cut), whole, atol=1e-5, rtol=1e-5)


def test_gate_and_biases_by_definition() -> None:
    """One head, one token: attention is its own value, so the whole mixer can be written down."""
    shape = AttentionShape(1, 1, 4, RopeShape(1e4, 4), bias=True, output_bias=True, output_gate=True)
    layer = LayerShape(shape, DenseFfn(8))
    w = RandomWeights(layer, hidden=6)
    x = torch.randn(1, 6)
    h = x / (x.pow(2).mean() + 1e-5).sqrt() * w("attn_norm.weight")
    gate = (w("attn_q.weight") @ h[0] + w("attn_q.bias"))[4:]
    value = w("attn_v.weight") @ h[0] + w("attn_v.bias")
    want = x + w("attn_output.weight") @ (value * gate.sigmoid()) + w("attn_output.bias")
    got = mix(x, w, layer, new_state(shape, 1, CPU, torch.float32), 0, 1e-5)
    torch.testing.assert_close(got, want)


def test_head_gate_by_definition() -> None:
    shape = AttentionShape(2, 1, 4, RopeShape(1e4, 4), head_gate=True)
    layer = LayerShape(shape, DenseFfn(8))
    w, x = RandomWeights(layer, hidden=6), torch.randn(1, 6)
    h = x / (x.pow(2).mean() + 1e-5).sqrt() * w("attn_norm.weight")
    gates = (w("attn_gate.weight") @ h[0]).exp().log1p()
    value = w("attn_v.weight") @ h[0]
    want = x + w("attn_output.weight") @ torch.cat([gates[0] * value, gates[1] * value])
    got = mix(x, w, layer, new_state(shape, 1, CPU, torch.float32), 0, 1e-5)
    torch.testing.assert_close(got, want)


def test_noise_is_seeded_and_counts() -> None:
    shape = VARIANTS["plain"]
    states = [new_state(shape, 10, CPU, torch.float32) for _ in range(2)]
    for state in states:
        state.fill_noise(7, seed=3)
    first, second = states
    assert isinstance(first, AttentionState)
    assert isinstance(second, AttentionState)
    assert torch.equal(first.keys, second.keys)
    assert first.keys[:7].std() > 0.5
    assert (first.keys[7:] == 0).all()
    second.fill_noise(7, seed=4)
    assert not torch.equal(first.values, second.values)
    assert first.n_bytes == 2 * 10 * 2 * 16 * 4
