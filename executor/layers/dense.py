"""What every decoder has: access to a step's weights, the norm, the dense FFN, embedding and logits.

`Weights` and `ExpertStack` are what a layer asks of whoever holds its weights: device, host or the reference
forward.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol, runtime_checkable

import torch
import torch.nn.functional as F

from executor.layers import one_token
from executor.model import Activation, DenseFfn, ModelShape
from executor.quants import products
from executor.quants.stored import Stored

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


@runtime_checkable
class HasStored(Protocol):
    """`Weights` whose matrices lie on a device as they are stored."""

    def stored(self, short_name: str) -> Stored:
        """A matrix's bytes."""


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


@runtime_checkable
class HasStoredExperts(Protocol):
    """An `ExpertStack` whose matrices lie on a device as they are stored."""

    def stored(self, gate: str, up: str, down: str) -> products.StoredExperts:
        """The bytes of the projections so called."""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension (any leading shape)."""
    if one_token.norm_serves(x):
        return one_token.rms_norm(x, weight, eps)
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def linear(h: torch.Tensor, w: Weights, *names: str) -> tuple[torch.Tensor, ...]:
    """h (n, in) @ matrix.T for each of the matrices `names`, (n, out); few rows take them as they are stored."""

    def widened() -> tuple[torch.Tensor, ...]:
        return tuple(F.linear(h, w(name)) for name in names)

    if not (isinstance(w, HasStored) and products.serves(h)):
        return widened()
    return products.linear(h, [w.stored(name) for name in names], widened)


def project(h: torch.Tensor, w: Weights, name: str) -> torch.Tensor:
    """h @ weight.T, times a number and plus a bias where the model has them."""
    return project_all(h, w, name)[0]


def project_all(h: torch.Tensor, w: Weights, *names: str) -> tuple[torch.Tensor, ...]:
    """The same for several names."""
    if not products.serves(h):
        return tuple(_projected_widened(h, w, name) for name in names)
    outs = linear(h, w, *(f"{name}.weight" for name in names))
    return tuple(_scaled(out, w, name) for out, name in zip(outs, names, strict=True))


def add_projected(x: torch.Tensor, h: torch.Tensor, w: Weights, name: str, scale: float) -> None:
    """Add `scale` times what `project` gives to the residual x (n, hidden), in place."""
    is_plain = w.maybe(f"{name}.bias") is None and w.maybe(f"{name}.scale") is None
    if is_plain and isinstance(w, HasStored) and products.serves(h):
        products.add_linear(x, scale, h, w.stored(f"{name}.weight"), lambda: F.linear(h, w(f"{name}.weight")))
    else:
        add_residual(x, project(h, w, name), scale)


def _projected_widened(h: torch.Tensor, w: Weights, name: str) -> torch.Tensor:
    if w.maybe(f"{name}.scale") is None:
        return F.linear(h, w(f"{name}.weight"), w.maybe(f"{name}.bias"))
    return _scaled(F.linear(h, w(f"{name}.weight")), w, name)


def _scaled(out: torch.Tensor, w: Weights, name: str) -> torch.Tensor:
    bias, scale = w.maybe(f"{name}.bias"), w.maybe(f"{name}.scale")
    out = out if scale is None else out * scale
    return out if bias is None else out + bias


def dense_ffn(x: torch.Tensor, w: Weights, ffn: DenseFfn, eps: float, scale: float = 1.0) -> torch.Tensor:
    """x (n, hidden) plus `scale` times what the FFN makes of the normed x."""
    return with_residual(x, added_by_ffn(x, w, ffn, eps), scale)


def added_by_ffn(x: torch.Tensor, w: Weights, ffn: DenseFfn, eps: float) -> torch.Tensor:
    """What the FFN makes of the normed x (n, hidden)."""
    return closed_ffn(gated_ffn(ffn_norm(x, w, eps), w, ffn.activation), w, ffn, eps)


def add_ffn(x: torch.Tensor, w: Weights, ffn: DenseFfn, eps: float, scale: float) -> None:
    """Add `scale` times what the FFN makes of the normed x to x (n, hidden) itself."""
    stored = None if ffn.post_norm else _stored_ffn(x, w, "")
    if stored is None:
        add_residual(x, added_by_ffn(x, w, ffn, eps), scale)
        return
    h = ffn_norm(x, w, eps)
    widened = partial(_widened_ffn, h, w, ffn.activation, "ffn_gate", "ffn_up", "ffn_down")
    products.add_gated(x, scale, h, *stored, ffn.activation, widened)


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
    names = [f"ffn_{name}{suffix}" for name in ("gate", "up", "down")]

    def widened() -> torch.Tensor:
        return _widened_ffn(h, w, activation, *names)

    stored = _stored_ffn(h, w, suffix)
    return widened() if stored is None else products.gated(h, *stored, activation, widened)


def _stored_ffn(h: torch.Tensor, w: Weights, suffix: str) -> tuple[Stored, Stored, Stored] | None:
    """Gate, up and down for products from stored bytes; None where rows h are too many, or there is more than they."""
    names = [f"ffn_{name}{suffix}" for name in ("gate", "up", "down")]
    is_plain = all(w.maybe(f"{name}.{extra}") is None for name in names for extra in ("bias", "scale"))
    if not (is_plain and isinstance(w, HasStored) and products.serves(h)):
        return None
    gate, up, down = (w.stored(f"{name}.weight") for name in names)
    return gate, up, down


def _widened_ffn(
    h: torch.Tensor, w: Weights, activation: Activation, gate_name: str, up_name: str, down_name: str
) -> torch.Tensor:
    gate, up, down = (w(f"{name}.weight") for name in (gate_name, up_name, down_name))

    def piece(rows: torch.Tensor) -> torch.Tensor:
        first = completed(F.linear(rows, gate), w, gate_name)
        second = completed(F.linear(rows, up), w, up_name)
        return completed(F.linear(activate(first, second, activation), down), w, down_name)

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
    (found,) = linear(h, w, shape.output_tensor)
    bias = w.maybe("output.bias")
    found = found.float() if bias is None else (found + bias).float()
    if shape.logit_scale != 1.0:
        found = found * shape.logit_scale
    return found if shape.logit_cap is None else torch.tanh(found / shape.logit_cap) * shape.logit_cap
