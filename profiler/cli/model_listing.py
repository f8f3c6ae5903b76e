"""What `hprof models` shows: presets, model files at hand, and one model's tensors by kind."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.errors import HprofError
from executor.model import Model, TensorInfo
from executor.models.fetch import DEFAULT_DEST
from executor.models.load import load_model
from executor.models.presets import preset_names
from executor.placement.overrides import DEFAULT_OVERRIDE
from executor.placement.place import place
from profiler.facts.model import model_fields


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of the list. `problem` says why a file cannot be read, else None."""

    name: str
    origin: str
    architecture: str | None
    n_layers: int | None
    n_parameters: int | None
    n_bytes: int | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TensorKind:
    """All tensors of one short name, quant type and shape; `n_bytes` of one of them."""

    name: str
    quant: str
    shape: tuple[int, ...]
    count: int
    n_bytes: int
    on_host: bool  # with the default -ot

    @property
    def total_bytes(self) -> int:
        return self.count * self.n_bytes


def list_models() -> list[ModelEntry]:
    """The presets, then the GGUF files in `.cache/models` and in llama.cpp's cache folder."""
    return [_entry(name) for name in preset_names()] + [_entry(str(path)) for path in _files()]


def describe_model(model: Model) -> dict[str, Any]:
    """Name, layers, tensors by kind, and what the default `-ot` keeps in host memory."""
    kinds = tensor_kinds(model)
    host_bytes = sum(kind.total_bytes for kind in kinds if kind.on_host)
    return {
        "schema": 1,
        **model_fields(model),
        "n_parameters": n_parameters(model),
        "context_length": model.shape.context_length,
        "tensors": [
            {"name": k.name, "quant": k.quant, "shape": list(k.shape), "count": k.count, "n_bytes": k.n_bytes}
            | {"total_bytes": k.total_bytes, "on_host": k.on_host}
            for k in kinds
        ],
        "default_placement": {
            "spelled": f"-ot {DEFAULT_OVERRIDE}",
            "host_bytes": host_bytes,
            "resident_bytes": model.n_bytes - host_bytes,
        },
    }


def tensor_kinds(model: Model) -> list[TensorKind]:
    """The model's tensors by kind, the largest first."""
    host = _default_host(model)
    groups: dict[tuple[str, str, tuple[int, ...]], list[TensorInfo]] = {}
    for tensor in model.tensors.values():
        groups.setdefault((tensor.short_name, tensor.quant, tensor.shape), []).append(tensor)
    kinds = [
        TensorKind(name, quant, shape, len(found), found[0].n_bytes, found[0].name in host)
        for (name, quant, shape), found in groups.items()
    ]
    return sorted(kinds, key=lambda kind: -kind.total_bytes)


def n_parameters(model: Model) -> int:
    """How many weights the model has, all tensors counted."""
    return sum(math.prod(tensor.shape) for tensor in model.tensors.values())


def _default_host(model: Model) -> frozenset[str]:
    try:
        return place(model.tensors).host
    except HprofError:
        return frozenset()  # no tensor that the default pattern knows


def _entry(spec: str) -> ModelEntry:
    name = Path(spec).name
    try:
        model = load_model(spec)
    except HprofError as error:
        return ModelEntry(name, spec, None, None, None, None, str(error))
    shape = model.shape
    return ModelEntry(name, model.origin, shape.architecture, len(shape.layers), n_parameters(model), model.n_bytes)


def _files() -> Iterator[Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (DEFAULT_DEST, Path(os.environ.get("LLAMA_CACHE") or cache / "llama.cpp")):
        yield from sorted(path for path in folder.glob("*.gguf") if path.is_file())
