"""A GGUF file to a Model: what the file says, read as its architecture has it, and held against its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from executor.errors import HprofError
from executor.model import LayerShape, Model, ModelShape, TensorInfo, WeightSource
from executor.models.architectures import ARCHITECTURES
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import ModelFile, Multipliers, RopeFactors, Tensors
from executor.models.architectures.ffn import read_ffn
from executor.models.checks import Fields, check_shape
from executor.models.file_tensors import check_tensors, left_out, needed_tensors

_MAX_ROPE_FACTORS: Final = 4096
_NO_FACTORS: Final = RopeFactors()


def model_from_gguf(path: str) -> Model:
    """The model in a GGUF file, or in the parts of which `path` is the first: its shape, and the tensors it needs.

    Raises HprofError where the file is damaged, or describes what hprof does not run.
    """
    from executor.gguf.file import open_gguf
    from executor.gguf.fused import FusedSource, fused_parts, with_parts

    file = open_gguf(Path(path))
    shape = shape_from_gguf(file.metadata, file.tensors, path, _rope_factors(path, file, file.tensors))
    parts = fused_parts(shape, file.tensors)
    tensors = needed_tensors(shape, with_parts(file.tensors, parts))
    return Model(shape, tensors, FusedSource(file, parts) if parts else file, path)


def _rope_factors(path: str, source: WeightSource, tensors: Tensors) -> RopeFactors:
    """Factors of the rotation: few, needed before any layer runs, and so part of the shape."""
    names = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
    return RopeFactors(*(_short_vector(path, source, tensors.get(name)) for name in names))


def _short_vector(path: str, source: WeightSource, info: TensorInfo | None) -> tuple[float, ...]:
    import torch

    if info is None:
        return ()
    if info.quant != "F32" or len(info.shape) != 1 or info.shape[0] > _MAX_ROPE_FACTORS:
        raise HprofError(
            f"{path}: {info.name} is {info.quant} of shape {info.shape}, but must be a short F32 vector; "
            "the file is damaged, fetch or convert it again."
        )
    raw = torch.empty(info.n_bytes, dtype=torch.uint8)
    source.read_into(info.name, raw)
    return tuple(raw.view(torch.float32).tolist())


def shape_from_gguf(
    metadata: Mapping[str, object], tensors: Tensors, origin: str, rope_factors: RopeFactors = _NO_FACTORS
) -> ModelShape:
    """The model that a GGUF file describes.

    `rope_factors` are the numbers in its tensors of rotation factors. HprofError where the
    architecture is not known, a key is missing or senseless, or a tensor is absent or of another shape.
    """
    from executor.gguf.fused import fused_parts, with_parts

    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise _unknown_architecture(name, origin)
    fields = Fields(metadata, origin, f"{name}.")
    _check_causal(fields)
    shape = check_shape(_model_shape(name, fields, tensors, rope_factors), origin)
    apart = with_parts(tensors, fused_parts(shape, tensors))
    check_tensors(shape, apart, origin)
    return replace(shape, notes=(*shape.notes, *left_out(shape, apart, origin)))


def _model_shape(name: str, fields: Fields, tensors: Tensors, rope_factors: RopeFactors) -> ModelShape:
    known = ARCHITECTURES[name]
    n_vocab, hidden = _vocabulary(fields, tensors)
    file = ModelFile(name, known, fields, tensors, rope_factors, _n_layers(fields, tensors), hidden)
    read_mixer, read_layer_ffn = known.mixer or read_attention, known.ffn or read_ffn
    times = known.multipliers(file) if known.multipliers else Multipliers()
    return ModelShape(
        name=str(fields.values.get("general.name", "unnamed"))[:80],
        architecture=name,
        n_vocab=n_vocab,
        hidden=hidden,
        layers=tuple(
            LayerShape(read_mixer(file, i), read_layer_ffn(file, i), times.residual) for i in range(file.n_layers)
        ),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        tied_embeddings="output.weight" not in (*tensors, *known.requires),
        output_bias=known.output_bias and "output.bias" in tensors,
        embedding_scale=times.embedding,
        logit_scale=times.logits,
        logit_cap=times.logit_cap,
        context_length=fields.integer("context_length", 131072),
    )


def _vocabulary(fields: Fields, tensors: Tensors) -> tuple[int, int]:
    hidden = fields.integer("embedding_length")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise HprofError(
            f"{fields.origin}: the tensor token_embd.weight, a matrix, is missing; "
            "the file holds no whole model (a split file or an adapter?): join or convert it again."
        )
    return embedding.shape[0], hidden


def _n_layers(fields: Fields, tensors: Tensors) -> int:
    n_layers = fields.integer("block_count") - fields.integer("nextn_predict_layers", 0, low=0)
    if not 1 <= n_layers <= len(tensors):
        raise HprofError(
            f"{fields.origin}: its metadata say {n_layers} layers, but it holds {len(tensors)} tensors; "
            "the file is damaged, fetch it again."
        )
    return n_layers


def _check_causal(fields: Fields) -> None:
    """Refuse, by name, a key that changes what a model computes and that no layer here obeys."""
    if not fields.flag("attention.causal", True):
        raise HprofError(
            f"{fields.origin}: its key {fields.prefix}attention.causal is false: tokens see those after them, which "
            "hprof does not compute; use --engine llama-bench for this file."
        )


def _unknown_architecture(name: object, origin: str) -> HprofError:
    """No name is offered that is near: Gemma 2's layers are not Gemma 3's."""
    known = ", ".join(ARCHITECTURES)
    if not isinstance(name, str):
        return HprofError(f"{origin} does not say its architecture; hprof runs {known}.")
    return HprofError(
        f"{origin}: hprof does not run the architecture {name[:40]!r}; --engine llama-bench measures the file if "
        "llama.cpp runs it, and a preset or the model's config.json, with --device sim, its shape. "
        f"The architectures that it runs are {known}."
    )
