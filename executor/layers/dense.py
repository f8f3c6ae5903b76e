"""What every decoder has: access to a step's weights, the norm, the dense FFN, embedding and logits.

`Weights` and `ExpertStack` are what a layer asks of whoever holds its weights: device, host or the reference
forward.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
import torch.nn.functional as F

from executor.layers import one_token
from executor.model import Activation, DenseFfn, ModelShape

# gpt-oss's activation (its reference code's `swiglu`): a clamped gate with a steeper sigmoid, and up + 1.
_OAI_ALPHA: Final = 1.702
_OAI_LIMIT: Final = 7.0
MOST_ROWS = 4096  # rows of n_ff numbers held at once: more gain no speed and cost memory


class Weights(Protocol):
    """One step's tensors by short name (`attn_q.weight`), dequantised to the compute dtype, on its device."""

    def __call__(self, short_name: str) -> torch.Tensor:
        """The whole tensor in numpy order: a linear layer's weight is (out, in)."""

    def maybe(self, short_name: str) -> torch.Tensor | None:
        """The same, or None where the model has no such tensor."""

    def rows(self, short_name: str, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` (n,) of a matrix, (n, in): an embedding lookup that dequantises only these rows."""


class ExpertStack(Protocol):
    """One MoE layer's routed experts; `name` is `ffn_gate_exps.weight`, `ffn_up_exps…`, `ffn_down_exps…`."""

    def one(self, name: str, expert: int) -> torch.Tensor:
        """One expert's matrix (out, in): what the loop over used experts on the CPU reads."""

    def all(self, name: str, flags: torch.Tensor) -> torch.Tensor:
        """The stack (n_experts, out, in) for a grouped GEMM.

        `flags` (n_experts,) uint8 on the device: an expert whose flag is 0 is not read and may hold anything.
        """

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        """The matrices (n, out, in) of the experts ids (n,) int64 on the device, in their order."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension (any leading shape)."""
    if one_token.norm_serves(x):
        return one_token.rms_norm(x, weight, eps)
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def project(h: torch.Tensor, w: Weights, name: str) -> torch.Tensor:
    """h @ weight.T, times a number and plus a bias where the model has them."""
    weight, bias, scale = w(f"{name}.weight"), w.maybe(f"{name}.bias"), w.maybe(f"{name}.scale")
    if scale is None:
        return F.linear(h, weight, bias)
    out = F.linear(h, weight) * scale
    return out if bias is None else out + bias


def dense_ffn(x: torch.Tensor, w: Weights, ffn: DenseFfn, eps: float, scale: float = 1.0) -> torch.Tensor:
    """x (n, hidden) plus `scale` times what the FFN makes of the normed x."""
    return with_residual(x, added_by_ffn(x, w, ffn, eps), scale)


def added_by_ffn(x: torch.Tensor, w: Weights, ffn: DenseFfn, eps: float) -> torch.Tensor:
    """What the FFN makes of the normed x (n, hidden)."""
    return closed_ffn(gated_ffn(ffn_norm(x, w, eps), w, ffn.activation), w, ffn, eps)


def closed_ffn(added: torch.Tensor, w: Weights, ffn: DenseFfn, eps: float) -> torch.Tensor:
    """What the FFN adds, normed once more where the model does that."""
    return rms_norm(added, w("post_ffw_norm.weight"), eps) if ffn.post_norm else added


def with_residual(x: torch.Tensor, added: torch.Tensor, scale: float) -> torch.Tensor:
    """x + scale * added."""
    return torch.add(x, added, alpha=scale)


def add_residual(x: torch.Tensor, added: torch.Tensor, scale: float) -> None:
    """The same in place, which saves a copy of x."""
    x.add_(added, alpha=scale)


def gated_ffn(h: torch.Tensor, w: Weights, activation: Activation, suffix: str = "") -> torch.Tensor:
    """down(activation(gate(h)) * up(h)), (n, hidden), of the tensors `ffn_gate{suffix}.weight` and so on."""
    gate, up, down = (w(f"ffn_{name}{suffix}.weight") for name in ("gate", "up", "down"))

    def piece(rows: torch.Tensor) -> torch.Tensor:
        first = completed(F.linear(rows, gate), w, f"ffn_gate{suffix}")
        second = completed(F.linear(rows, up), w, f"ffn_up{suffix}")
        return completed(F.linear(activate(first, second, activation), down), w, f"ffn_down{suffix}")

    pieces = [piece(rows) for rows in h.split(MOST_ROWS)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def completed(out: torch.Tensor, w: Weights, name: str) -> torch.Tensor:
    """A product with an FFN's matrix, plus a bias and then times a number where the model has them."""
    bias, scale = w.maybe(f"{name}.bias"), w.maybe(f"{name}.scale")
    out = out if bias is None else out + bias
    return out if scale is None else out * scale


def activate(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """What joins two projections of one shape; they stay as they are."""
    match activation:
        case "silu":
            return F.silu(gate).mul_(up)
        case "gelu":
            return F.gelu(gate, approximate="tanh").mul_(up)
        case "oai_swiglu":
            gate = gate.clamp(max=_OAI_LIMIT)
            up = up.clamp(-_OAI_LIMIT, _OAI_LIMIT)
            return gate * torch.sigmoid(_OAI_ALPHA * gate) * (up + 1)


def ffn_norm(x: torch.Tensor, w: Weights, eps: float) -> torch.Tensor:
    """The norm before the FFN."""
    return rms_norm(x, ffn_norm_weight(w), eps)


def ffn_norm_weight(w: Weights) -> torch.Tensor:
    """That norm's weight; some architectures' files call it `post_attention_norm`."""
    weight = w.maybe("ffn_norm.weight")
    return w("post_attention_norm.weight") if weight is None else weight


def embed(ids: torch.Tensor, w: Weights, shape: ModelShape) -> torch.Tensor:
    """Embeddings (n, hidden) of token ids (n,)."""
    x = w.rows("token_embd.weight", ids)
    return x if shape.embedding_scale == 1.0 else x * shape.embedding_scale


def logits(x: torch.Tensor, w: Weights, shape: ModelShape) -> torch.Tensor:
    """Float32 logits (m, vocab) of the hidden rows x (m, hidden) whose next token is wanted."""
    h = rms_norm(x, w("output_norm.weight"), shape.norm_eps)
    found = F.linear(h, w(shape.output_tensor), w.maybe("output.bias")).float()
    if shape.logit_scale != 1.0:
        found = found * shape.logit_scale
    return found if shape.logit_cap is None else torch.tanh(found / shape.logit_cap) * shape.logit_cap
