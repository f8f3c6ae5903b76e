"""Any GGUF file as a shape to predict: bytes and shapes are its tensors'; what is not known of the arithmetic is said.

For what computes nothing: `hprof models`, `predict`, `advise`, and the `sim` device. A layer is taken to do products
with its matrices, and attention as far as its tensors and metadata tell of heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from executor.model import (
    AttentionShape,
    DeltaNetShape,
    DenseFfn,
    Ffn,
    LayerShape,
    Mixer,
    MlaShape,
    Model,
    ModelShape,
    MoeFfn,
    RopeShape,
    TensorInfo,
)
from executor.models.architectures.base import Tensors
from executor.models.checks import check_shape

_NOT_TURNED: Final = RopeShape(theta=10_000.0, dims=0)
_USUAL_HEAD: Final = 128
_USUAL_USED: Final = 8
_MOST_LAYERS: Final = 10_000
_NO_ATTENTION: Final = DeltaNetShape(n_key_heads=1, n_value_heads=1, key_dim=1, value_dim=1, conv_width=2)
_MIXES_OTHERWISE: Final = ("ssm_", "shortconv", "time_mix", "attn_kv_a")


def model_from_tensors(path: str, why: str) -> Model:
    """The model whose tensors a file holds. `why`: what hprof cannot compute of it, for the notes.

    Raises HprofError where the file is damaged, or holds no layers or no output.
    """
    from executor.gguf.file import open_gguf
    from executor.gguf.fused import FusedSource, fused_parts, with_parts

    file = open_gguf(Path(path))
    shape = shape_of_tensors(file.metadata, file.tensors, path, why)
    parts = fused_parts(shape, file.tensors)
    kept = {
        name: info
        for name, info in with_parts(file.tensors, parts).items()
        if info.layer is None or info.layer < len(shape.layers)
    }
    return Model(shape, kept, FusedSource(file, parts) if parts else file, path)


def shape_of_tensors(metadata: Mapping[str, object], tensors: Tensors, origin: str, why: str) -> ModelShape:
    """What can be told of a model from its tensors' names and shapes, and from metadata that most files have."""
    told = _Told(metadata)
    layers = _by_layer(tensors)
    output = next((name for name in ("output.weight", "token_embd.weight") if name in tensors), None)
    if not layers or output is None or len(tensors[output].shape) != 2:
        raise HprofError(f"{origin} holds no layers (blk.N.…) with an output matrix, so that nothing can be predicted.")
    n_vocab, hidden = tensors[output].shape
    shape = ModelShape(
        name=str(metadata.get("general.name", "unnamed"))[:80],
        architecture=told.architecture,
        n_vocab=n_vocab,
        hidden=hidden,
        layers=tuple(LayerShape(_mixer(of_layer, told, i), _ffn(of_layer, told)) for i, of_layer in enumerate(layers)),
        norm_eps=1e-6,
        tied_embeddings=output != "output.weight",
        context_length=told.number("context_length") or 131_072,
        notes=(f"hprof does not compute this model ({why}): what it costs follows from its tensors", *_doubts(layers)),
    )
    return check_shape(shape, origin)


class _Told:
    """The whole numbers that a file tells under its architecture's name."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        name = metadata.get("general.architecture")
        self.architecture = name[:40] if isinstance(name, str) else "unnamed"
        self._metadata = metadata

    def number(self, key: str, layer: int = 0) -> int | None:
        """One that is above 0; None where there is none. Of a list, the layer's."""
        value = self._metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, list):
            value = value[layer] if layer < len(value) else None
        return value if type(value) is int and value > 0 else None


def _by_layer(tensors: Tensors) -> list[dict[str, TensorInfo]]:
    """Each layer's tensors by short name, up to the last one that has any."""
    numbers = [info.layer for info in tensors.values() if info.layer is not None and info.layer < _MOST_LAYERS]
    found: list[dict[str, TensorInfo]] = [{} for _ in range(max(numbers, default=-1) + 1)]
    for info in tensors.values():
        if info.layer is not None and info.layer < len(found):
            found[info.layer][info.short_name] = info
    return found


def _mixer(tensors: Mapping[str, TensorInfo], told: _Told, layer: int) -> Mixer:
    """Attention where a layer has queries and keys; else something that costs its matrices alone."""
    latent = tensors.get("attn_kv_a_mqa.weight")
    n_heads = told.number("attention.head_count", layer)
    rank = told.number("attention.kv_lora_rank")
    if latent is not None and n_heads is not None and rank is not None and latent.shape[0] > rank:
        key = told.number("attention.key_length_mla") or told.number("attention.key_length") or _USUAL_HEAD
        value = told.number("attention.value_length_mla") or told.number("attention.value_length") or key
        turned = min(latent.shape[0] - rank, max(key - 1, 1)) // 2 * 2
        rope = RopeShape(theta=10_000.0, dims=turned)
        return MlaShape(n_heads, told.number("attention.q_lora_rank"), rank, max(key - turned, 1), value, rope)
    query, joined, key_matrix = (tensors.get(f"attn_{name}.weight") for name in ("q", "qkv", "k"))
    if (query is None or key_matrix is None) and joined is None:
        return _NO_ATTENTION
    if query is not None:
        rows = query.shape[0]
    else:
        assert joined is not None
        n_kv = told.number("attention.head_count_kv", layer) or n_heads or 1
        rows = joined.shape[0] * (n_heads or 1) // ((n_heads or 1) + 2 * n_kv)
    head = told.number("attention.key_length") or (max(rows // n_heads, 1) if n_heads else min(_USUAL_HEAD, rows))
    n_heads = n_heads or max(rows // head, 1)
    n_kv = told.number("attention.head_count_kv", layer) or n_heads
    return AttentionShape(n_heads, n_kv if n_heads % n_kv == 0 else n_heads, head, _NOT_TURNED)


def _ffn(tensors: Mapping[str, TensorInfo], told: _Told) -> Ffn:
    stacks = [info for name, info in tensors.items() if "_exps.weight" in name and len(info.shape) == 3]
    if stacks:
        n_experts = stacks[0].shape[0]
        down = tensors.get("ffn_down_exps.weight", stacks[0])
        shared = tensors.get("ffn_down_shexp.weight")
        return MoeFfn(
            n_experts=n_experts,
            n_used=min(told.number("expert_used_count") or _USUAL_USED, n_experts),
            n_ff_expert=down.shape[-1],
            n_ff_shared=0 if shared is None else shared.shape[-1],
        )
    whole = tensors.get("ffn_down.weight")
    return DenseFfn(1 if whole is None else whole.shape[-1])


def _doubts(layers: list[dict[str, TensorInfo]]) -> Iterator[str]:
    names = {name for layer in layers for name in layer}
    if any(name.startswith(("attn_q", "attn_k")) for name in names):
        yield "attention is taken to see all positions before a token, and no sliding window"
    others = sorted({start for start in _MIXES_OTHERWISE for name in names if name.startswith(start)})
    if others:
        starts = ", ".join(f"{start}…" for start in others)
        yield f"what is done besides products with the tensors {starts} is not counted"
    if any("_exps" in name for name in names):
        yield "which experts are used follows from the routing model, not from this model's own router"
