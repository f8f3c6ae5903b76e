"""Writes a synthetic model as a GGUF file, so that hprof and llama.cpp can run the same bytes."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch

from executor.model import AttentionShape, DenseFfn, LayerShape, Model, ModelShape, MoeFfn, RopeShape
from executor.models.synthetic import QuantPlan, SyntheticSource, model_tensors

N_VOCAB = 32000


def dense_shape() -> ModelShape:
    """llama architecture: 16 layers, 5120 / 17408, 40 / 8 heads of 128."""
    attention = AttentionShape(40, 8, 128, RopeShape(10000.0, 128, interleaved=True))
    return ModelShape("dense-16", "llama", N_VOCAB, 5120, (LayerShape(attention, DenseFfn(17408)),) * 16, 1e-5)


def moe_shape(n_experts: int = 128) -> ModelShape:
    """qwen3moe architecture: 24 layers, 2048, experts of 768, top-8. A token reads as much however many they are."""
    attention = AttentionShape(32, 4, 128, RopeShape(10000.0, 128), qk_norm=True)
    layer = LayerShape(attention, MoeFfn(n_experts, 8, 768))
    return ModelShape("moe-24", "qwen3moe", N_VOCAB, 2048, (layer,) * 24, 1e-5)


def synthetic(shape: ModelShape, quant: str, seed: int = 0) -> Model:
    """A model of this shape with seeded weights of one type, in memory."""
    tensors = model_tensors(shape, QuantPlan.uniform(quant))
    return Model(shape, tensors, SyntheticSource(tensors, seed), "synthetic")


def write_gguf(shape: ModelShape, quant: str, path: Path, seed: int = 0) -> Path:
    """Write `shape` with seeded weights; returns `path`."""
    model = synthetic(shape, quant, seed)
    writer = gguf.GGUFWriter(path, shape.architecture)
    _add_metadata(writer, shape)
    for info in model.tensors.values():
        raw = torch.empty(info.n_bytes, dtype=torch.uint8)
        model.source.read_into(info.name, raw)
        kind = gguf.GGMLQuantizationType[info.quant]
        writer.add_tensor(info.name, raw.view(*info.shape[:-1], -1).numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_metadata(writer: gguf.GGUFWriter, shape: ModelShape) -> None:
    layer = shape.layers[0]
    assert isinstance(layer.mixer, AttentionShape)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(len(shape.layers))
    writer.add_head_count(layer.mixer.n_heads)
    writer.add_head_count_kv(layer.mixer.n_kv_heads)
    writer.add_key_length(layer.mixer.head_dim)
    writer.add_value_length(layer.mixer.head_dim)
    writer.add_rope_dimension_count(layer.mixer.rope.dims)
    writer.add_rope_freq_base(layer.mixer.rope.theta)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_tokenizer_model("no_vocab")
    if isinstance(layer.ffn, MoeFfn):
        writer.add_expert_count(layer.ffn.n_experts)
        writer.add_expert_used_count(layer.ffn.n_used)
        writer.add_expert_feed_forward_length(layer.ffn.n_ff_expert)
        writer.add_feed_forward_length(layer.ffn.n_ff_expert)
    else:
        writer.add_feed_forward_length(layer.ffn.n_ff)
