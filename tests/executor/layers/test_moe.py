"""Mixture of experts: routing rules and expert products against a loop over tokens, in both of their forms."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from executor.layers.choice_factors import choice_factors
from executor.layers.moe import combine, experts, shared_expert
from executor.layers.router import MOST_COUNTED, Routed, route, route_given, rows_by_expert, used_flags
from executor.layers.widened_experts import grouped_experts, looped_experts, one_token_experts
from executor.model import AttentionShape, LayerShape, MoeFfn, RopeShape
from tests.executor.layers.layer_weights import RandomWeights

HIDDEN, N = 16, 11
MOES = {
    "qwen3moe": MoeFfn(8, 2, 16),
    "not normalised, scaled": MoeFfn(8, 3, 16, normalise=False, scale=2.5),
    "sigmoid with a bias on the choice": MoeFfn(8, 2, 16, scoring="sigmoid", score_bias=True),
    "two of four groups": MoeFfn(8, 3, 16, scoring="sigmoid", score_bias=True, n_groups=4, n_groups_used=2),
    "llama4": MoeFfn(8, 2, 16, scoring="sigmoid_topk", normalise=False, weighs_input=True),
    "scaled": MoeFfn(8, 2, 16, scaled=("gate", "up", "down")),
    "gpt-oss": MoeFfn(8, 2, 16, scoring="softmax_topk", normalise=False, expert_bias=True, activation="oai_swiglu"),
}
SHARED = MoeFfn(4, 2, 16, n_ff_shared=24, shared_gate=True)


def layer_weights(moe: MoeFfn) -> RandomWeights:
    return RandomWeights(LayerShape(AttentionShape(2, 1, 8, RopeShape(1e4, 8)), moe), HIDDEN)


def tokens() -> torch.Tensor:
    return torch.randn(N, HIDDEN, generator=torch.Generator().manual_seed(5))


def expert_by_definition(h: torch.Tensor, w: RandomWeights, moe: MoeFfn, expert: int) -> torch.Tensor:
    def bias(name: str) -> torch.Tensor:
        return w(f"{name}.bias")[expert] if moe.expert_bias else torch.zeros(())

    def matrix(name: str) -> torch.Tensor:
        scale = w(f"ffn_{name}_exps.scale")[expert] if name in moe.scaled else 1.0
        return w(f"ffn_{name}_exps.weight")[expert] * scale

    gate = matrix("gate") @ h + bias("ffn_gate_exps")
    up = matrix("up") @ h + bias("ffn_up_exps")
    if moe.activation == "silu":
        inner = gate * torch.sigmoid(gate) * up
    else:
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        inner = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    return matrix("down") @ inner + bias("ffn_down_exps")


def routed_by_definition(h: torch.Tensor, w: RandomWeights, moe: MoeFfn) -> tuple[list[int], torch.Tensor]:
    """One token's experts in falling order of what they are chosen by, and their weights."""
    logits = w("ffn_gate_inp.weight") @ h
    if moe.expert_bias:
        logits = logits + w("ffn_gate_inp.bias")
    scores = {"softmax": logits.softmax(0), "sigmoid": logits.sigmoid()}.get(moe.scoring, logits)
    compared = scores + w("exp_probs_b.bias") if moe.score_bias else scores
    if moe.n_groups > 1:
        groups = compared.split(moe.n_experts // moe.n_groups)
        totals = [sum(sorted(group.tolist())[-2:]) for group in groups]
        worst = sorted(range(moe.n_groups), key=totals.__getitem__)[: moe.n_groups - moe.n_groups_used]
        compared = torch.cat([group - 100.0 * (i in worst) for i, group in enumerate(groups)])
    chosen = sorted(range(moe.n_experts), key=lambda e: -float(compared[e]))[: moe.n_used]
    weights = scores[chosen]
    if moe.scoring == "softmax_topk":
        weights = weights.softmax(0)
    if moe.scoring == "sigmoid_topk":
        weights = weights.sigmoid()
    if moe.normalise:
        weights = weights / weights.sum()
    return chosen, weights * moe.scale


@pytest.mark.parametrize("name", MOES)
def test_route_and_experts(name: str) -> None:
    moe = MOES[name]
    w, x = layer_weights(moe), tokens()
    routed = route(x, w, moe, 1e-5)
    out = experts(routed, w, moe, w)
    for row, h in enumerate(routed.h):
        ids, weights = routed_by_definition(h, w, moe)
        assert routed.ids[row].tolist() == ids
        torch.testing.assert_close(routed.weights[row], weights)
        want = torch.zeros(HIDDEN)
        for weight, expert in zip(weights, ids, strict=True):
            if moe.weighs_input:
                want += expert_by_definition(weight * h, w, moe, expert)
            else:
                want += weight * expert_by_definition(h, w, moe, expert)
        torch.testing.assert_close(out[row], want)


def test_the_bias_moves_the_choice_but_not_the_weights() -> None:
    moe = MOES["sigmoid with a bias on the choice"]
    w = layer_weights(moe)
    w.tensors["exp_probs_b.bias"] = torch.zeros(8).index_fill_(0, torch.tensor([3]), 10.0)
    routed = route(tokens(), w, moe, 1e-5)
    assert (routed.ids[:, 0] == 3).all()
    assert (routed.weights <= 1).all()


@pytest.mark.parametrize("name", MOES)
def test_grouped_and_looped_agree(name: str) -> None:
    """torch's grouped GEMM also runs on the CPU, so the CUDA path's arithmetic is checked here."""
    moe = MOES[name]
    w = layer_weights(moe)
    routed = route(tokens(), w, moe, 1e-5)
    flags = used_flags(routed.ids, moe.n_experts)
    biases, factors = w if moe.expert_bias else None, choice_factors(routed, moe, w)
    grouped = grouped_experts(routed.h, routed.ids, w, moe, biases, flags, factors)
    torch.testing.assert_close(grouped, looped_experts(routed.h, routed.ids, w, moe, biases, factors))


@pytest.mark.parametrize(("hidden", "n_ff"), [(18, 16), (16, 13), (34, 7)])
def test_grouped_products_of_odd_widths(hidden: int, n_ff: int) -> None:
    """Torch's own refuses rows that are not whole pieces of 16 bytes."""
    moe = MoeFfn(8, 2, n_ff)
    w = RandomWeights(LayerShape(AttentionShape(2, 1, 8, RopeShape(1e4, 8)), moe), hidden, torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    h = torch.randn(N, hidden, generator=generator).bfloat16()
    ids = torch.randint(8, (N, 2), generator=generator)
    grouped = grouped_experts(h, ids, w, moe, None, used_flags(ids, 8))
    torch.testing.assert_close(grouped, looped_experts(h, ids, w, moe, None))


@pytest.mark.parametrize("name", MOES)
def test_one_token_alone_and_looped_agree(name: str) -> None:
    moe = MOES[name]
    w = layer_weights(moe)
    routed = route(tokens()[:1], w, moe, 1e-5)
    biases, factors = w if moe.expert_bias else None, choice_factors(routed, moe, w)
    alone = one_token_experts(routed.h, routed.ids, w, moe, biases, factors)
    torch.testing.assert_close(alone, looped_experts(routed.h, routed.ids, w, moe, biases, factors))


@pytest.mark.parametrize("form", ["grouped", "looped"])
def test_unused_experts_are_not_read(form: str) -> None:
    moe = MOES["gpt-oss"]
    w = layer_weights(moe)
    h, ids = tokens(), torch.tensor([[1, 6]]).expand(N, 2)

    def run() -> torch.Tensor:
        if form == "looped":
            return looped_experts(h, ids, w, moe, w)
        return grouped_experts(h, ids, w, moe, w, used_flags(ids, moe.n_experts))

    before = run()
    for name, tensor in w.tensors.items():
        if name.endswith("_exps.weight"):
            w.tensors[name] = torch.full_like(tensor, torch.nan)
            w.tensors[name][[1, 6]] = tensor[[1, 6]]
    assert torch.equal(run(), before)


def test_route_given_weighs_the_given_experts_by_the_router() -> None:
    moe = MOES["qwen3moe"]
    w, x = layer_weights(moe), tokens()
    own = route(x, w, moe, 1e-5)
    again = route_given(x, w, moe, own.ids, 1e-5)
    assert torch.equal(again.weights, own.weights)
    assert torch.equal(again.h, own.h)
    swapped = route_given(x, w, moe, own.ids.flip(1), 1e-5)
    torch.testing.assert_close(swapped.weights, own.weights.flip(1))


def test_used_flags() -> None:
    flags = used_flags(torch.tensor([[0, 3], [3, 1]]), 6)
    assert flags.dtype == torch.uint8
    assert flags.tolist() == [1, 1, 0, 1, 0, 0]


def test_rows_by_expert_count_as_far_as_a_byte_goes() -> None:
    ids = torch.tensor([[0, 3], [3, 1]])
    assert rows_by_expert(ids, 6).tolist() == [1, 1, 0, 2, 0, 0]
    many = rows_by_expert(ids.repeat(200, 1), 6)
    assert many.tolist() == [200, 200, 0, MOST_COUNTED, 0, 0]
    assert many.to(torch.uint8).tolist() == many.tolist()


def test_shared_expert_and_combine() -> None:
    w, h = layer_weights(SHARED), tokens()
    inner = torch.nn.functional.silu(h @ w("ffn_gate_shexp.weight").T) * (h @ w("ffn_up_shexp.weight").T)
    gate = torch.sigmoid(h @ w("ffn_gate_inp_shexp.weight"))
    want = (inner @ w("ffn_down_shexp.weight").T) * gate[:, None]
    got = shared_expert(h, w, SHARED)
    torch.testing.assert_close(got, want)
    ungated = shared_expert(h, w, dataclasses.replace(SHARED, shared_gate=False))
    torch.testing.assert_close(ungated * gate[:, None], want)
    with_shared, without = h.clone(), h.clone()
    combine(with_shared, got, want)
    combine(without, got)
    torch.testing.assert_close(with_shared, h + 2 * want)
    torch.testing.assert_close(without, h + want)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", MOES)
def test_cuda_agrees_with_the_cpu_and_with_itself(name: str) -> None:
    moe = MOES[name]
    device = torch.device("cuda")
    w, x = layer_weights(moe), tokens().bfloat16()
    w.tensors = {key: tensor.bfloat16() for key, tensor in w.tensors.items()}
    on_cpu = route(x, w, moe, 1e-5)
    want = experts(on_cpu, w, moe, w)
    w.to(device)
    routed = Routed(on_cpu.h.to(device), on_cpu.ids.to(device), on_cpu.weights.to(device))
    torch.cuda.set_sync_debug_mode("error")
    try:
        chosen = route(x.to(device, non_blocking=True), w, moe, 1e-5)
        first, second = (experts(routed, w, moe, w) for _ in range(2))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert chosen.ids.shape == on_cpu.ids.shape
    assert torch.equal(first, second)
    torch.testing.assert_close(first.cpu(), want, atol=3e-2, rtol=3e-2)
