"""Where a step on a device finds its weights: a slot, a bank or resident memory. (On the host: `executor.host`.)"""

from __future__ import annotations

import torch

from executor.model import Model, TensorInfo
from executor.quants.dispatch import dequantise, dequantise_chosen, dequantise_experts
from executor.weights.resident import ResidentStore
from executor.weights.splits import Split
from executor.weights.views import expert_view, in_dtype, rows_view


class StepWeights:
    """`executor.layers.weights.Weights` for one step on a device: a slot's parts first, then the resident ones."""

    def __init__(
        self, model: Model, store: ResidentStore, layer: int | None, split: Split | None, slot: torch.Tensor | None
    ) -> None:
        self._tensors, self._store = model.tensors, store
        self._prefix = "" if layer is None else f"blk.{layer}."
        self._slot = slot
        self._parts = {part.info.name: part for part in split.parts} if split is not None else {}

    def __call__(self, short_name: str) -> torch.Tensor:
        name = self._prefix + short_name
        part = self._parts.get(name)
        if part is None:
            return self._store.get(name)
        assert self._slot is not None
        raw = self._slot[part.offset : part.offset + part.info.n_bytes]
        return in_dtype(rows_view(raw, part.info), part.info, self._store.dtype)

    def maybe(self, short_name: str) -> torch.Tensor | None:
        return self(short_name) if self._prefix + short_name in self._tensors else None

    def rows(self, short_name: str, ids: torch.Tensor) -> torch.Tensor:
        name = self._prefix + short_name
        return dequantise(self._store.raw(name)[ids], self._tensors[name].quant, self._store.dtype)


class SlotExperts:
    """`ExpertStack` for one MoE step: each projection lies in the slot (or bank), or is resident.

    `place_of` (n_experts,) int32 maps an expert to its place in the buffer; None is the identity.
    """

    def __init__(
        self,
        model: Model,
        store: ResidentStore,
        layer: int,
        split: Split | None,
        buffer: torch.Tensor | None,
        place_of: torch.Tensor | None = None,
    ) -> None:
        self._model, self._store, self._layer = model, store, layer
        self._parts = {part.info.short_name: part for part in split.parts} if split is not None else {}
        self._buffer, self._place_of = buffer, place_of

    def one(self, name: str, expert: int) -> torch.Tensor:
        info, raw, in_slot = self._stack(name)
        place = expert if not in_slot or self._place_of is None else int(self._place_of[expert])
        return dequantise(raw[place], info.quant, self._store.dtype)

    def all(self, name: str, flags: torch.Tensor) -> torch.Tensor:
        info, raw, in_slot = self._stack(name)
        place_of = self._place_of if in_slot else None
        return dequantise_experts(raw, info.quant, self._store.dtype, flags, place_of)

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        info, raw, in_slot = self._stack(name)
        places = ids if not in_slot or self._place_of is None else self._place_of[ids]
        return dequantise_chosen(raw, info.quant, self._store.dtype, places)

    def _stack(self, name: str) -> tuple[TensorInfo, torch.Tensor, bool]:
        part = self._parts.get(name)
        if part is not None and self._buffer is not None:
            return part.info, expert_view(self._buffer, part), True
        full = f"blk.{self._layer}.{name}"
        return self._model.tensors[full], self._store.raw(full), False
