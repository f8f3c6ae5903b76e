"""The plainest whole-model forward: everything in one place, one tensor dequantised at a time, no policy.

The engine is tested against it, and it against llama.cpp's logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.layers.dense import dense_ffn, embed, logits
from executor.layers.mixer import mix
from executor.layers.moe import combine, experts, shared_expert
from executor.layers.router import route
from executor.layers.state import new_state
from executor.model import DenseFfn, LayerShape, Model
from executor.quants import dequantise


class ModelWeights:
    """`Weights` and `ExpertStack` straight from the source: each call reads and dequantises again."""

    def __init__(self, model: Model, layer: int | None, dtype: torch.dtype, device: torch.device) -> None:
        self._model = model
        self._prefix = "" if layer is None else f"blk.{layer}."
        self._dtype, self._device = dtype, device

    def __call__(self, short_name: str) -> torch.Tensor:
        info = self._model.tensors[self._prefix + short_name]
        return dequantise(self._raw(short_name), info.quant, self._dtype).view(info.shape)

    def maybe(self, short_name: str) -> torch.Tensor | None:
        return self(short_name) if self._prefix + short_name in self._model.tensors else None

    def one(self, name: str, expert: int) -> torch.Tensor:
        info = self._model.tensors[self._prefix + name]
        return dequantise(self._raw(name)[expert], info.quant, self._dtype)

    def all(self, name: str, flags: torch.Tensor) -> torch.Tensor:
        return self(name)

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        info = self._model.tensors[self._prefix + name]
        return dequantise(self._raw(name)[ids], info.quant, self._dtype)

    def rows(self, short_name: str, ids: torch.Tensor) -> torch.Tensor:
        info = self._model.tensors[self._prefix + short_name]
        return dequantise(self._raw(short_name)[ids], info.quant, self._dtype)

    def _raw(self, short_name: str) -> torch.Tensor:
        info = self._model.tensors[self._prefix + short_name]
        raw = torch.empty(info.n_bytes, dtype=torch.uint8)
        self._model.source.read_into(info.name, raw)
        return raw.view(*info.shape[:-1], -1).to(self._device)


class KeptWeights:
    """`Weights` and `ExpertStack` of one layer whose dequantised tensors are kept, by short name."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def __call__(self, short_name: str) -> torch.Tensor:
        return self.tensors[short_name]

    def maybe(self, short_name: str) -> torch.Tensor | None:
        return self.tensors.get(short_name)

    def rows(self, short_name: str, ids: torch.Tensor) -> torch.Tensor:
        return self(short_name)[ids]

    def one(self, name: str, expert: int) -> torch.Tensor:
        return self(name)[expert]

    def all(self, name: str, flags: torch.Tensor) -> torch.Tensor:
        return self(name)

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        return self(name)[ids]


def forward(
    model: Model,
    tokens: Sequence[int],
    dtype: torch.dtype = torch.float32,
    n_ubatch: int | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Float32 logits (n, vocab) after each of n tokens, computed on `device`; `n_ubatch` cuts the prompt."""
    shape, device = model.shape, torch.device(device)
    states = [new_state(layer.mixer, len(tokens), device, dtype) for layer in shape.layers]
    outer = ModelWeights(model, None, dtype, device)
    pieces = []
    n_past = 0
    for ids in torch.tensor(tokens, device=device).split(n_ubatch or len(tokens)):
        x = embed(ids, outer, shape)
        for i, layer in enumerate(shape.layers):
            w = ModelWeights(model, i, dtype, device)
            x = mix(x, w, layer, states[i], n_past, shape.norm_eps)
            x = _ffn(x, w, layer, shape.norm_eps)
        pieces.append(logits(x, outer, shape))
        n_past += len(ids)
    return torch.cat(pieces)


def _ffn(x: torch.Tensor, w: ModelWeights, layer: LayerShape, eps: float) -> torch.Tensor:
    if isinstance(layer.ffn, DenseFfn):
        return dense_ffn(x, w, layer.ffn, eps, layer.residual_scale)
    routed = route(x, w, layer.ffn, eps)
    shared = shared_expert(routed.h, w, layer.ffn) if layer.ffn.n_ff_shared else None
    combine(x, experts(routed, w, layer.ffn, w), shared, layer.residual_scale)
    return x
