"""What a manifest and `hprof models` say about a model."""

from __future__ import annotations

from typing import Any

from executor.model import Model


def model_fields(model: Model) -> dict[str, Any]:
    """Name, origin, digest, bytes, quant types and shape of a model."""
    quants: dict[str, int] = {}
    for tensor in model.tensors.values():
        quants[tensor.quant] = quants.get(tensor.quant, 0) + tensor.n_bytes
    shape = model.shape
    return {
        "name": shape.name,
        "origin": model.origin,
        "digest": model.source.digest(),
        "architecture": shape.architecture,
        "n_bytes": model.n_bytes,
        "quant_bytes": dict(sorted(quants.items(), key=lambda item: -item[1])),
        "n_layers": len(shape.layers),
        "hidden": shape.hidden,
        "n_vocab": shape.n_vocab,
        "layer_kinds": layer_kinds(model),
        "notes": list(shape.notes),
    }


def layer_kinds(model: Model) -> dict[str, int]:
    """How many layers there are of each kind, e.g. `attention + dense ffn`."""
    kinds: dict[str, int] = {}
    for layer in model.shape.layers:
        mixer = type(layer.mixer).__name__.removesuffix("Shape").lower()
        ffn = "experts" if hasattr(layer.ffn, "n_experts") else "dense ffn"
        window = getattr(layer.mixer, "window", None)
        name = f"{mixer}{f' (window {window})' if window else ''} + {ffn}"
        kinds[name] = kinds.get(name, 0) + 1
    return kinds
