"""Dense FFN, embedding and logits, written out."""

from __future__ import annotations

import dataclasses

import torch

from executor.layers.dense import dense_ffn, embed, logits, project
from executor.model import AttentionShape, DenseFfn, LayerShape, ModelShape, RopeShape
from tests.executor.layers.layer_weights import RandomWeights

FFN = DenseFfn(24)
LAYER = LayerShape(AttentionShape(2, 1, 8, RopeShape(1e4, 8)), FFN)
MODEL = ModelShape("test", "llama", n_vocab=5, hidden=16, layers=(LAYER,), norm_eps=1e-5)


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def test_dense_ffn() -> None:
    w, x = RandomWeights(LAYER, 16), torch.randn(3, 16)
    h = normed(x, w("ffn_norm.weight"))
    gate = h @ w("ffn_gate.weight").T
    want = x + (gate * gate.sigmoid() * (h @ w("ffn_up.weight").T)) @ w("ffn_down.weight").T
    torch.testing.assert_close(dense_ffn(x, w, FFN, 1e-5), want)


def test_biases_and_then_scales() -> None:
    ffn = DenseFfn(24, biased=("gate", "down"), scaled=("gate", "up", "down"))
    w, x = RandomWeights(dataclasses.replace(LAYER, ffn=ffn), 16), torch.randn(3, 16)
    h = normed(x, w("ffn_norm.weight"))
    gate = (h @ w("ffn_gate.weight").T + w("ffn_gate.bias")) * w("ffn_gate.scale")
    up = h @ w("ffn_up.weight").T * w("ffn_up.scale")
    added = (gate * gate.sigmoid() * up @ w("ffn_down.weight").T + w("ffn_down.bias")) * w("ffn_down.scale")
    torch.testing.assert_close(dense_ffn(x, w, ffn, 1e-5), x + added)


def test_a_projections_scale_comes_before_its_bias() -> None:
    shape = AttentionShape(2, 1, 8, RopeShape(1e4, 8), bias=True, scaled=("q",))
    w, h = RandomWeights(LayerShape(shape, FFN), 16), torch.randn(3, 16)
    want = h @ w("attn_q.weight").T * w("attn_q.scale") + w("attn_q.bias")
    torch.testing.assert_close(project(h, w, "attn_q"), want)


def test_gelu_a_second_norm_and_a_scaled_residual() -> None:
    ffn = DenseFfn(24, activation="gelu", post_norm=True)
    w, x = RandomWeights(dataclasses.replace(LAYER, ffn=ffn), 16), torch.randn(3, 16)
    h = normed(x, w("ffn_norm.weight"))
    gate = h @ w("ffn_gate.weight").T
    gelu = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    added = normed((gelu * (h @ w("ffn_up.weight").T)) @ w("ffn_down.weight").T, w("post_ffw_norm.weight"))
    torch.testing.assert_close(dense_ffn(x, w, ffn, 1e-5, scale=0.25), x + 0.25 * added)


def test_the_norm_before_the_ffn_may_have_its_other_name() -> None:
    w, x = RandomWeights(LAYER, 16), torch.randn(3, 16)
    want = dense_ffn(x, w, FFN, 1e-5)
    w.tensors["post_attention_norm.weight"] = w.tensors.pop("ffn_norm.weight")
    assert torch.equal(dense_ffn(x, w, FFN, 1e-5), want)


def test_head() -> None:
    w = RandomWeights(LAYER, 16)
    w.tensors |= {
        "token_embd.weight": torch.randn(5, 16),
        "output.weight": torch.randn(5, 16),
        "output_norm.weight": torch.rand(16) + 0.5,
    }
    x = embed(torch.tensor([4, 0]), w, MODEL)
    assert torch.equal(x, w("token_embd.weight")[[4, 0]])
    h = normed(x, w("output_norm.weight"))
    torch.testing.assert_close(logits(x, w, MODEL), h @ w("output.weight").T)
    tied = dataclasses.replace(MODEL, tied_embeddings=True, embedding_scale=3.0)
    torch.testing.assert_close(logits(x, w, tied), h @ w("token_embd.weight").T)
    assert torch.equal(embed(torch.tensor([4, 0]), w, tied), 3 * x)
    capped = dataclasses.replace(MODEL, logit_scale=0.5, logit_cap=2.0)
    torch.testing.assert_close(logits(x, w, capped), 2 * torch.tanh(logits(x, w, MODEL) / 4))


def test_logits_are_float32_whatever_computes() -> None:
    w = RandomWeights(LAYER, 16)
    w.tensors |= {"output.weight": torch.randn(5, 16), "output_norm.weight": torch.ones(16)}
    w.tensors = {name: tensor.bfloat16() for name, tensor in w.tensors.items()}
    assert logits(torch.randn(1, 16).bfloat16(), w, MODEL).dtype == torch.float32
