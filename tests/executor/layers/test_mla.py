"""Multi-head latent attention: both forms against attention with every key and value written out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from executor.layers.mixer import mix
from executor.layers.mla import attend_in_latent_space, attend_projected
from executor.layers.state import MlaState, new_state
from executor.shape import DenseFfn, LayerShape, MlaShape, RopeShape
from tests.executor.layers.layer_weights import RandomWeights

CPU = torch.device("cpu")
HIDDEN = 24
ROPE = RopeShape(theta=1000.0, dims=4, interleaved=True)
SHAPES = {
    "as DeepSeek-V3": MlaShape(3, q_lora_rank=10, kv_lora_rank=16, nope_dim=8, value_dim=8, rope=ROPE),
    "wide values, no query rank": MlaShape(3, None, kv_lora_rank=16, nope_dim=4, value_dim=12, rope=ROPE),
    "window": MlaShape(3, q_lora_rank=10, kv_lora_rank=16, nope_dim=8, value_dim=8, rope=ROPE, window=5),
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


def by_definition(x: torch.Tensor, w: RandomWeights, shape: MlaShape) -> torch.Tensor:
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
    state = new_state(shape, 40, CPU, torch.float32)
    pieces = [mix(x[a:b], w, layer, state, a, 1e-6) for a, b in itertools.pairwise([0, *cuts, 40])]
    torch.testing.assert_close(torch.cat(pieces), by_definition(x, w, shape), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("n", "total"), [(1, 9), (5, 9), (9, 9)])
def test_the_two_forms_agree(n: int, total: int, window: int | None) -> None:
    generator = torch.Generator().manual_seed(n)
    q_nope, q_rope, latents, keys, k_b, v_b = (
        torch.randn(dims, generator=generator)
        for dims in ((n, 3, 8), (n, 3, 4), (total, 16), (total, 4), (3, 16, 8), (3, 6, 16))
    )
    torch.testing.assert_close(
        attend_in_latent_space(q_nope, q_rope, latents, keys, k_b, v_b, window),
        attend_projected(q_nope, q_rope, latents, keys, k_b, v_b, window),
        atol=1e-4,
        rtol=1e-4,
    )


def test_state_is_one_latent_and_one_key_a_token() -> None:
    state = new_state(SHAPES["window"], 10, CPU, torch.float32)
    assert isinstance(state, MlaState)
    assert state.n_bytes == 10 * (16 + 4) * 4
    state.fill_noise(6, seed=1)
    assert state.latents[:6].std() > 0.5
    assert (state.latents[6:] == 0).all()
