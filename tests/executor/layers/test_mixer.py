"""Attention's kernels against the softmax written out, on the CPU and (marked) on CUDA; the KV cache around them.
Multi-head latent attention: both forms against attention with every key and value written out.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from executor.layers.attention_kernels import attend, attend_in_chunks, plain_attention
from executor.layers.mixer import mix
from executor.layers.mla import attend_in_latent_space, attend_projected
from executor.layers.state import AttentionState, MlaState, new_state
from executor.model import AttentionShape, DenseFfn, LayerShape, MlaShape, RopeShape, TemperatureShape
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


@pytest.mark.parametrize(("n", "total"), [*LENGTHS, (11, 21)])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_attend_in_chunks(n: int, total: int, chunk: int) -> None:
    """Each position by itself, over the keys from where its chunk begins."""
    q, keys, values, _ = example(n, total, CPU, torch.float32)
    got = attend_in_chunks(q, keys, values, chunk)
    for row in range(n):
        position = total - n + row
        seen = slice(position // chunk * chunk, position + 1)
        want = by_definition(q[row : row + 1], keys[seen], values[seen], None, None)
        torch.testing.assert_close(got[row : row + 1].double(), want, atol=1e-5, rtol=1e-5)


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
    "one length, growing queries": AttentionShape(
        4, 2, 16, ROPE, qk_unit=True, temperature=TemperatureShape(4, 0.5, 1.0)
    ),
    "no positions": AttentionShape(4, 2, 16, RopeShape(theta=10000.0, dims=0)),
    "a gate a head": AttentionShape(4, 2, 16, ROPE, head_gate=True),
    "norms of all heads, a scale": AttentionShape(4, 2, 16, ROPE, qk_norm=True, qk_norm_joint=True, scale=0.5),
    "window, a norm behind": AttentionShape(4, 2, 16, ROPE, window=5, post_norm=True),
    "gated, half rotated": AttentionShape(4, 2, 16, RopeShape(1e4, 8), qk_norm=True, output_gate=True),
}


CHUNKS = {"chunks": AttentionShape(4, 2, 16, ROPE, chunk=5)}


@pytest.mark.parametrize("variant", VARIANTS | CHUNKS)
def test_ubatches_continue_where_the_last_one_ended(variant: str) -> None:
    layer = LayerShape((VARIANTS | CHUNKS)[variant], DenseFfn(32))
    w = RandomWeights(layer, hidden=24)
    x = torch.randn(13, 24, generator=torch.Generator().manual_seed(1))
    whole = mix(x, w, layer, new_state(layer.mixer, 13, CPU, torch.float32), 0, 1e-5)
    state = new_state(layer.mixer, 13, CPU, torch.float32)
    cut = [mix(x[a:b], w, layer, state, a, 1e-5) for a, b in ((0, 6), (6, 7), (7, 13))]
    torch.testing.assert_close(torch.cat(cut), whole, atol=1e-5, rtol=1e-5)


def test_norms_scales_and_residual_by_definition() -> None:
    shape = AttentionShape(2, 1, 4, RopeShape(1e9, 4), qk_norm=True, qk_norm_joint=True, scale=3.0, post_norm=True)
    layer = LayerShape(shape, DenseFfn(8), residual_scale=0.25)
    w = RandomWeights(layer, hidden=6)
    x = torch.randn(1, 6)
    two = torch.cat([x, torch.randn(1, 6)])
    got = mix(two, w, layer, new_state(shape, 2, CPU, torch.float32), 0, 1e-5)

    def normed(rows: torch.Tensor, name: str) -> torch.Tensor:
        return rows / (rows.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w(name)

    h = normed(two, "attn_norm.weight")
    q = normed(h @ w("attn_q.weight").T, "attn_q_norm.weight")[1].view(2, 4)
    k, v = normed(h @ w("attn_k.weight").T, "attn_k_norm.weight"), h @ w("attn_v.weight").T
    cos, sin = math.cos(1.0), math.sin(1.0)  # the first pair turns by 1 a position, the second hardly at all
    turn = torch.tensor([[cos, 0, -sin, 0], [0, 1, 0, 0], [sin, 0, cos, 0], [0, 0, 0, 1]])
    logits = torch.stack([turn @ q[0], turn @ q[1]]) @ torch.stack([k[0], turn @ k[1]]).T * 3.0
    added = normed((logits.softmax(-1) @ v).flatten() @ w("attn_output.weight").T, "post_attention_norm.weight")
    torch.testing.assert_close(got[1], two[1] + 0.25 * added, atol=1e-4, rtol=1e-4)


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


CPU_MLA = torch.device("cpu")
HIDDEN = 24
ROPE_MLA = RopeShape(theta=1000.0, dims=4, interleaved=True)
SHAPES = {
    "as DeepSeek-V3": MlaShape(3, q_lora_rank=10, kv_lora_rank=16, nope_dim=8, value_dim=8, rope=ROPE_MLA),
    "wide values, no query rank": MlaShape(3, None, kv_lora_rank=16, nope_dim=4, value_dim=12, rope=ROPE_MLA),
    "window": MlaShape(3, q_lora_rank=10, kv_lora_rank=16, nope_dim=8, value_dim=8, rope=ROPE_MLA, window=5),
}


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x: torch.Tensor) -> torch.Tensor:
    """x (positions, ..., 4), each pair (0, 1), (2, 3) turned by its position as a complex number."""
    out = torch.view_as_complex(x.contiguous().view(*x.shape[:-1], 2, 2))
    for position in range(x.shape[0]):
        angles = torch.tensor([position * 1000.0**0, position * 1000.0**-0.5])
        out[position] = out[position] * torch.polar(torch.ones(2), angles)
    return torch.view_as_real(out).flatten(-2)


def by_definition_mla(x: torch.Tensor, w: RandomWeights, shape: MlaShape) -> torch.Tensor:
    h = normed(x, w("attn_norm.weight"))
    if shape.q_lora_rank is None:
        q = h @ w("attn_q.weight").T
    else:
        q = normed(h @ w("attn_q_a.weight").T, w("attn_q_a_norm.weight")) @ w("attn_q_b.weight").T
    q = q.view(len(x), shape.n_heads, -1)
    q = torch.cat([q[..., : shape.nope_dim], turned(q[..., shape.nope_dim :])], dim=-1)
    down = h @ w("attn_kv_a_mqa.weight").T
    latents = normed(down[:, : shape.kv_lora_rank], w("attn_kv_a_norm.weight"))
    shared = turned(down[:, shape.kv_lora_rank :])
    heads = []
    for head in range(shape.n_heads):
        keys = torch.cat([latents @ w("attn_k_b.weight")[head], shared], dim=-1)
        values = latents @ w("attn_v_b.weight")[head].T
        logits = q[:, head] @ keys.T / math.sqrt(keys.shape[-1])
        seen = torch.ones(len(x), len(x)).tril()
        if shape.window is not None:
            seen = seen.triu(-shape.window + 1)
        heads.append(logits.masked_fill(seen == 0, -torch.inf).softmax(-1) @ values)
    return x + torch.cat(heads, dim=-1) @ w("attn_output.weight").T


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("cuts", [[], [1, 2], [20, 21, 38]])
def test_mixer(name: str, cuts: list[int]) -> None:
    """Cuts of 1 to 40 tokens take the latent form up to 16 and the projected one above."""
    shape = SHAPES[name]
    layer = LayerShape(shape, DenseFfn(8))
    w = RandomWeights(layer, HIDDEN)
    x = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(3))
    state = new_state(shape, 40, CPU_MLA, torch.float32)
    pieces = [mix(x[a:b], w, layer, state, a, 1e-6) for a, b in itertools.pairwise([0, *cuts, 40])]
    torch.testing.assert_close(torch.cat(pieces), by_definition_mla(x, w, shape), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("n", "total"), [(1, 9), (5, 9), (9, 9)])
def test_the_two_forms_agree(n: int, total: int, window: int | None) -> None:
    generator = torch.Generator().manual_seed(n)
    q_nope, q_rope, latents, keys, k_b, v_b = (
        torch.randn(dims, generator=generator)
        for dims in ((n, 3, 8), (n, 3, 4), (total, 16), (total, 4), (3, 16, 8), (3, 6, 16))
    )
    torch.testing.assert_close(
        attend_in_latent_space(q_nope, q_rope, latents, keys, k_b, v_b, window, 0.3),
        attend_projected(q_nope, q_rope, latents, keys, k_b, v_b, window, 0.3),
        atol=1e-4,
        rtol=1e-4,
    )


def test_state_is_one_latent_and_one_key_a_token() -> None:
    state = new_state(SHAPES["window"], 10, CPU_MLA, torch.float32)
    assert isinstance(state, MlaState)
    assert state.n_bytes == 10 * (16 + 4) * 4
    state.fill_noise(6, seed=1)
    assert state.latents[:6].std() > 0.5
    assert (state.latents[6:] == 0).all()
