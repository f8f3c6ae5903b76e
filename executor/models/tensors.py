"""Which tensors a model of a given shape consists of: their GGUF names, and their shapes in numpy order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from executor.model import (
    AttentionShape,
    DeltaNetShape,
    DenseFfn,
    Ffn,
    LayerShape,
    Mixer,
    MlaShape,
    ModelShape,
    MoeFfn,
)

Shapes = dict[str, tuple[int, ...]]

# These architectures' files call the norm before the FFN `post_attention_norm`.
_POST_ATTENTION_NORM: Final = frozenset({"gpt-oss", "glm4moe", "qwen3next", "qwen35", "qwen35moe", "seed_oss"})


def layer_shapes(shape: ModelShape, layer: int) -> Shapes:
    """The tensors that layer number `layer` needs, by short name."""
    block: LayerShape = shape.layers[layer]
    post = shape.architecture in _POST_ATTENTION_NORM
    norm = {"post_attention_norm.weight" if post else "ffn_norm.weight": (shape.hidden,)}
    return _mixer_shapes(block.mixer, shape.hidden) | norm | _ffn_shapes(block.ffn, shape.hidden)


def outer_shapes(shape: ModelShape) -> Shapes:
    """The tensors outside the blocks."""
    shapes: Shapes = {
        "token_embd.weight": (shape.n_vocab, shape.hidden),
        "output_norm.weight": (shape.hidden,),
    }
    if not shape.tied_embeddings:
        shapes["output.weight"] = (shape.n_vocab, shape.hidden)
    if shape.output_bias:
        shapes["output.bias"] = (shape.n_vocab,)
    return shapes


def all_shapes(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor's full name and shape, in the order of a GGUF file."""
    yield from outer_shapes(shape).items()
    for layer in range(len(shape.layers)):
        for short_name, dims in layer_shapes(shape, layer).items():
            yield f"blk.{layer}.{short_name}", dims


def _mixer_shapes(mixer: Mixer, hidden: int) -> Shapes:
    shapes: Shapes = {"attn_norm.weight": (hidden,)}
    match mixer:
        case AttentionShape():
            return shapes | _attention_shapes(mixer, hidden)
        case DeltaNetShape():
            return shapes | _delta_net_shapes(mixer, hidden)
        case MlaShape():
            return shapes | _mla_shapes(mixer, hidden)


def _attention_shapes(a: AttentionShape, hidden: int) -> Shapes:
    q, kv = a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim
    q_rows = 2 * q if a.output_gate else q
    shapes: Shapes = {
        "attn_q.weight": (q_rows, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, q),
    }
    if a.bias:
        shapes |= {f"attn_{name}.bias": (q_rows if name == "q" else kv,) for name in a.biased}
    shapes |= {f"attn_{name}.scale": (1,) for name in a.scaled}
    if a.output_bias:
        shapes["attn_output.bias"] = (hidden,)
    if a.qk_norm:
        q_norm, k_norm = (q, kv) if a.qk_norm_joint else (a.head_dim, a.head_dim)
        shapes |= {"attn_q_norm.weight": (q_norm,), "attn_k_norm.weight": (k_norm,)}
    if a.head_gate:
        shapes["attn_gate.weight"] = (a.n_heads, hidden)
    if a.sinks:
        shapes["attn_sinks.weight"] = (a.n_heads,)
    if a.post_norm:
        shapes["post_attention_norm.weight"] = (hidden,)
    return shapes


def _delta_net_shapes(d: DeltaNetShape, hidden: int) -> Shapes:
    width = d.n_value_heads * d.value_dim
    gates: Shapes = dict.fromkeys(("ssm_alpha.weight", "ssm_beta.weight"), (d.n_value_heads, hidden))
    if d.by_key_head:
        gates = {"ssm_ba.weight": (2 * d.n_value_heads, hidden)}
    inputs: Shapes = {"attn_qkv.weight": (d.channels, hidden), "attn_gate.weight": (width, hidden)}
    if d.in_one:
        inputs = {"ssm_in.weight": (d.channels + width, hidden)}
    return {
        **inputs,
        **gates,
        "ssm_a": (d.n_value_heads,),
        "ssm_dt.bias": (d.n_value_heads,),
        "ssm_conv1d.weight": (d.channels, d.conv_width),
        "ssm_norm.weight": (d.value_dim,),
        "ssm_out.weight": (hidden, width),
    }


def _mla_shapes(m: MlaShape, hidden: int) -> Shapes:
    q_rows, rank = m.n_heads * (m.nope_dim + m.rope.dims), m.kv_lora_rank
    shapes: Shapes = {"attn_q.weight": (q_rows, hidden)}
    if m.q_lora_rank is not None:
        shapes = {
            "attn_q_a.weight": (m.q_lora_rank, hidden),
            "attn_q_a_norm.weight": (m.q_lora_rank,),
            "attn_q_b.weight": (q_rows, m.q_lora_rank),
        }
    apart = {"attn_k_b.weight": (m.n_heads, rank, m.nope_dim), "attn_v_b.weight": (m.n_heads, m.value_dim, rank)}
    joined: Shapes = {"attn_kv_b.weight": (m.n_heads * (m.nope_dim + m.value_dim), rank)}
    return shapes | {
        "attn_kv_a_mqa.weight": (rank + m.rope.dims, hidden),
        "attn_kv_a_norm.weight": (rank,),
        **(joined if m.joined else apart),
        "attn_output.weight": (hidden, m.n_heads * m.value_dim),
    }


def _ffn_shapes(ffn: Ffn, hidden: int) -> Shapes:
    match ffn:
        case DenseFfn():
            shapes = _swiglu_shapes("", (), ffn.n_ff, hidden)
            shapes |= {f"ffn_{name}.bias": (hidden if name == "down" else ffn.n_ff,) for name in ffn.biased}
            shapes |= {f"ffn_{name}.scale": (1,) for name in ffn.scaled}
            return shapes | ({"post_ffw_norm.weight": (hidden,)} if ffn.post_norm else {})
        case MoeFfn():
            return _moe_shapes(ffn, hidden)


def _moe_shapes(moe: MoeFfn, hidden: int) -> Shapes:
    shapes: Shapes = {"ffn_gate_inp.weight": (moe.n_experts, hidden)}
    if moe.score_bias:
        shapes["exp_probs_b.bias"] = (moe.n_experts,)
    shapes |= _swiglu_shapes("_exps", (moe.n_experts,), moe.n_ff_expert, hidden)
    shapes |= {f"ffn_{name}_exps.scale": (moe.n_experts,) for name in moe.scaled}
    if moe.expert_bias:
        shapes |= {
            "ffn_gate_inp.bias": (moe.n_experts,),
            "ffn_gate_exps.bias": (moe.n_experts, moe.n_ff_expert),
            "ffn_up_exps.bias": (moe.n_experts, moe.n_ff_expert),
            "ffn_down_exps.bias": (moe.n_experts, hidden),
        }
    if moe.n_ff_shared:
        shapes |= _swiglu_shapes("_shexp", (), moe.n_ff_shared, hidden)
    if moe.shared_gate:
        shapes["ffn_gate_inp_shexp.weight"] = (hidden,)
    return shapes


def _swiglu_shapes(suffix: str, stack: tuple[int, ...], n_ff: int, hidden: int) -> Shapes:
    return {
        f"ffn_gate{suffix}.weight": (*stack, n_ff, hidden),
        f"ffn_up{suffix}.weight": (*stack, n_ff, hidden),
        f"ffn_down{suffix}.weight": (*stack, hidden, n_ff),
    }
