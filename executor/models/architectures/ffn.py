"""A layer's FFN, dense or of experts, as a file's keys and tensors describe it."""

from __future__ import annotations

from typing import Final

from executor.errors import HprofError
from executor.model import DenseFfn, Ffn, MoeFfn, Scoring
from executor.models.architectures.base import ModelFile
from executor.models.checks import Fields

_GATING_FUNCTIONS: Final[dict[int, Scoring]] = {1: "softmax", 2: "sigmoid", 3: "softmax_topk"}


def read_ffn(file: ModelFile, layer: int) -> Ffn:
    """The FFN of layer number `layer`: dense where no experts are stated, and in the leading dense blocks."""
    n_experts, n_dense = file.fields.integer("expert_count", 0, low=0), 0
    if file.architecture.leading_dense:
        n_dense = file.fields.integer("leading_dense_block_count", 0, low=0)
    return read_moe(file, layer) if n_experts and layer >= n_dense else read_dense(file, layer)


def read_dense(file: ModelFile, layer: int) -> DenseFfn:
    """A dense layer's FFN."""
    n_ff = file.fields.integers("feed_forward_length", file.n_layers)[layer]
    may_have = ("gate", "up", "down") if file.architecture.ffn_bias else ()
    return DenseFfn(
        n_ff,
        biased=tuple(name for name in may_have if file.has(layer, f"ffn_{name}.bias")),
        scaled=file.scaled(layer, "ffn_{}", "gate", "up", "down"),
    )


def read_moe(file: ModelFile, layer: int) -> MoeFfn:
    """A layer of experts."""
    fields, known = file.fields, file.architecture
    n_experts, n_used = fields.integer("expert_count"), fields.integer("expert_used_count")
    n_ff = fields.integer("expert_feed_forward_length", _default_n_ff_expert(file, n_used))
    read = fields.only(known.router_keys)
    n_groups = max(1, fields.integer("expert_group_count", 1, low=0))
    return MoeFfn(
        n_experts=n_experts,
        n_used=n_used,
        n_ff_expert=n_ff,
        n_ff_shared=_n_ff_shared(file, layer, n_ff),
        shared_gate=known.shared == "always",
        scoring=_scoring(file, read),
        normalise=read.flag("expert_weights_norm", known.normalise),
        scale=read.number("expert_weights_scale", 1.0),
        n_groups=n_groups,
        n_groups_used=fields.integer("expert_group_used_count") if n_groups > 1 else 1,
        weighs_input=known.weighs_input,
        score_bias=file.has(layer, "exp_probs_b.bias"),
        expert_bias=file.has(layer, "ffn_up_exps.bias", "ffn_gate_up_exps.bias"),
        scaled=file.scaled(layer, "ffn_{}_exps", "gate", "up", "down"),
        activation=known.activation,
    )


def _n_ff_shared(file: ModelFile, layer: int, n_ff: int) -> int:
    """The shared experts' width together, as their tensor has it; 0 where there are none.

    Of the keys that say it each architecture reads others, and their products are the tensor's rows.
    """
    up = file.tensors.get(f"blk.{layer}.ffn_up_shexp.weight")
    if up is None:
        return n_ff if file.architecture.shared == "always" else 0  # which is then found to be missing
    return up.shape[0]


def _scoring(file: ModelFile, read: Fields) -> Scoring:
    gating = read.integer("expert_gating_func", 0, low=0)
    if gating and gating not in _GATING_FUNCTIONS:
        raise HprofError(
            f"{read.origin}: its router's gating function {gating} is not known; known are 1 (softmax), "
            "2 (sigmoid) and 3 (softmax over the chosen)."
        )
    return _GATING_FUNCTIONS.get(gating, file.architecture.scoring)


def _default_n_ff_expert(file: ModelFile, n_used: int) -> int | None:
    """An expert's width where the file does not say it, as llama.cpp's code for the architecture has it."""
    if not file.fields.has("feed_forward_length"):
        return None
    n_ff = file.fields.integer("feed_forward_length")
    return n_ff // n_used if file.architecture.splits_n_ff else n_ff
