"""The gated delta net against its recurrence, one token at a time, in float64."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import pytest
import torch

from executor.layers.delta_net import chunked_delta_rule
from executor.layers.mixer import mix
from executor.layers.state import DeltaNetState, new_state
from executor.model import DeltaNetShape, DenseFfn, LayerShape
from tests.executor.layers.layer_weights import RandomWeights

CPU = torch.device("cpu")
SHAPE = DeltaNetShape(n_key_heads=2, n_value_heads=4, key_dim=8, value_dim=6, conv_width=4)
LAYER = LayerShape(SHAPE, DenseFfn(8))
HIDDEN = 16


def recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor, memory: torch.Tensor
) -> torch.Tensor:
    """By definition; `memory` (heads, key_dim, value_dim) is advanced in place."""
    outputs = []
    for i in range(q.shape[0]):
        memory *= g[i].exp()[:, None, None]
        read = torch.einsum("hkv,hk->hv", memory, k[i])
        memory += torch.einsum("hk,hv->hkv", k[i], beta[i][:, None] * (v[i] - read))
        outputs.append(torch.einsum("hkv,hk->hv", memory, q[i]))
    return torch.stack(outputs)


class Inputs(NamedTuple):
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    beta: torch.Tensor
    g: torch.Tensor

    def to(self, device: str, dtype: torch.dtype) -> Inputs:
        return Inputs(*(t.to(device, dtype) for t in self))


def example(n: int, forgetting: float = 1.0) -> Inputs:
    generator = torch.Generator().manual_seed(n)

    def noise(*dims: int) -> torch.Tensor:
        return torch.randn(dims, generator=generator, dtype=torch.float64)

    k = torch.nn.functional.normalize(noise(n, 3, 8), dim=-1)
    return Inputs(noise(n, 3, 8), k, noise(n, 3, 6), noise(n, 3).sigmoid(), -forgetting * noise(n, 3).abs())


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 300])
@pytest.mark.parametrize("forgetting", [0.01, 1.0, 30.0])
def test_chunks_are_the_recurrence(n: int, forgetting: float) -> None:
    inputs = example(n, forgetting)
    start = torch.randn(3, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    memory, wanted_memory = start.clone(), start.clone()
    want = recurrent(*inputs, wanted_memory)
    got = chunked_delta_rule(*inputs, memory)
    torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(memory, wanted_memory, atol=1e-9, rtol=1e-9)


def test_float32_stays_close_over_many_chunks() -> None:
    inputs = example(1000, 0.05)
    want = recurrent(*inputs, torch.zeros(3, 8, 6, dtype=torch.float64))
    got = chunked_delta_rule(*inputs.to("cpu", torch.float32), torch.zeros(3, 8, 6))
    assert (got - want).norm() < 1e-5 * want.norm()


def by_definition(x: torch.Tensor, w: RandomWeights, heads: list[int]) -> torch.Tensor:
    """The whole mixer, token by token; `heads` is the key head of each value head."""
    h = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w("attn_norm.weight")
    inputs = torch.cat([torch.zeros(3, SHAPE.channels), h @ w("attn_qkv.weight").T])
    taps = w("ssm_conv1d.weight")
    channels = torch.stack([(inputs[i : i + 4].T * taps).sum(1) for i in range(len(x))])
    channels = channels * channels.sigmoid()
    q, k, v = channels.double().split([16, 16, 24], dim=1)
    q, k = (torch.nn.functional.normalize(t.view(-1, 2, 8), dim=-1)[:, heads] for t in (q, k))
    beta, alpha = gates(h, w)
    step = torch.nn.functional.softplus(alpha + w("ssm_dt.bias"))
    memory = torch.zeros(4, 8, 6, dtype=torch.float64)
    kept = (w("ssm_a") * step).double()
    out = recurrent(q / 8**0.5, k, v.view(-1, 4, 6), beta.sigmoid().double(), kept, memory).float()
    gate = (h @ w("attn_gate.weight").T).view(-1, 4, 6)
    normed = out / (out.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w("ssm_norm.weight")
    return x + (normed * gate * gate.sigmoid()).flatten(1) @ w("ssm_out.weight").T


def gates(h: torch.Tensor, w: RandomWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """Beta and alpha of the 4 value heads; where they are one matrix, its rows are those of each key head in turn."""
    both = w.maybe("ssm_ba.weight")
    if both is None:
        return h @ w("ssm_beta.weight").T, h @ w("ssm_alpha.weight").T
    return h @ both[[0, 1, 4, 5]].T, h @ both[[2, 3, 6, 7]].T


def weights(layer: LayerShape = LAYER) -> RandomWeights:
    w = RandomWeights(layer, HIDDEN)
    w.tensors["ssm_a"] = -w.tensors["ssm_a"].abs()
    return w


def run(x: torch.Tensor, w: RandomWeights, cuts: list[int], state: DeltaNetState) -> torch.Tensor:
    edges = [0, *cuts, len(x)]
    pieces = [mix(x[a:b], w, LAYER, state, a, 1e-6) for a, b in itertools.pairwise(edges)]
    return torch.cat(pieces)


def fresh_state() -> DeltaNetState:
    state = new_state(SHAPE, 100, CPU, torch.float32)
    assert isinstance(state, DeltaNetState)
    return state


@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [150]])
def test_mixer(cuts: list[int]) -> None:
    w = weights()
    x = torch.randn(200, HIDDEN, generator=torch.Generator().manual_seed(2))
    got = run(x, w, cuts, fresh_state())
    torch.testing.assert_close(got, by_definition(x, w, [0, 1, 0, 1]), atol=1e-4, rtol=1e-4)


def test_neighbours_share_a_key_head() -> None:
    layer = dataclasses.replace(LAYER, mixer=dataclasses.replace(SHAPE, by_key_head=True))
    w, x = weights(layer), torch.randn(50, HIDDEN, generator=torch.Generator().manual_seed(2))
    got = mix(x, w, layer, fresh_state(), 0, 1e-6)
    torch.testing.assert_close(got, by_definition(x, w, [0, 0, 1, 1]), atol=1e-4, rtol=1e-4)


def test_position_0_begins_afresh() -> None:
    w, state = weights(), fresh_state()
    x = torch.randn(5, HIDDEN)
    first = run(x, w, [], state)
    assert state.memory.abs().sum() > 0
    assert torch.equal(run(x, w, [], state), first)


def test_noise_is_seeded_and_stands_for_a_past() -> None:
    one, two = fresh_state(), fresh_state()
    one.fill_noise(3, seed=1)
    two.fill_noise(3, seed=1)
    assert torch.equal(one.memory, two.memory)
    assert one.memory.std() > 0.1
    two.fill_noise(0, seed=1)
    assert two.memory.abs().sum() == 0
    assert one.n_bytes == 4 * (4 * 8 * 6 + 3 * SHAPE.channels)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_cuda_does_not_wait_and_agrees() -> None:
    inputs = example(300, 0.1).to("cpu", torch.float32)
    want = recurrent(*inputs, torch.zeros(3, 8, 6))
    on_gpu = inputs.to("cuda", torch.float32)
    memory = torch.zeros(3, 8, 6, device="cuda")
    chunked_delta_rule(*on_gpu, memory)  # the first call sets up cuBLAS
    memory.zero_()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = chunked_delta_rule(*on_gpu, memory)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(got.cpu(), want, atol=1e-3, rtol=1e-3)
