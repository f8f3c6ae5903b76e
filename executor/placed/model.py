"""What stays put between passes: the model, its devices, where its weights are, who routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from executor.host.weights import HostWeights
from executor.model import Model, TensorInfo
from executor.placed.lane import Lane
from executor.placement.place import Placement
from executor.shape import LayerShape, MoeFfn
from executor.weights.splits import Split, StepKind, step_kind

if TYPE_CHECKING:
    from executor.routing.kinds import Routing


@dataclass(slots=True)
class PlacedModel:
    """One model, placed. `routing` None means that the model's own router decides."""

    model: Model
    lanes: Sequence[Lane]
    lane_of: Sequence[int]  # a layer's lane
    splits: Sequence[Split]
    host: HostWeights
    routing: Routing | None
    dtype: torch.dtype
    seed: int
    prompt: Sequence[int] | None = None
    """Tokens that every prompt repeats; None: seeded random ones, new in each repetition."""
    tensors_of: dict[tuple[int, StepKind], list[TensorInfo]] = field(init=False, repr=False)
    """What each layer's step reads, resident or not."""
    split_of: dict[tuple[int, StepKind], Split] = field(init=False, repr=False)
    """What each layer's step streams, where it does."""

    def __post_init__(self) -> None:
        self.tensors_of = {}
        for tensor in self.model.tensors.values():
            if tensor.layer is not None:
                kind = step_kind(tensor, is_moe=self.moe(tensor.layer) is not None)
                self.tensors_of.setdefault((tensor.layer, kind), []).append(tensor)
        self.split_of = {(split.layer, split.what): split for split in self.splits}

    @property
    def is_simulated(self) -> bool:
        """Whether nothing is computed: no logits, no tokens, no router to read."""
        return self.lanes[0].device.kind == "sim"

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        """The model's layers, in order."""
        return self.model.shape.layers

    def moe(self, layer: int) -> MoeFfn | None:
        """The layer's MoE part, None for a dense layer."""
        ffn = self.layers[layer].ffn
        return ffn if isinstance(ffn, MoeFfn) else None

    def lane(self, layer: int) -> Lane:
        """The lane that a layer lives on."""
        return self.lanes[self.lane_of[layer]]

    def tensors(self, layer: int, kind: StepKind) -> list[TensorInfo]:
        """The tensors that a step reads."""
        return self.tensors_of.get((layer, kind), [])

    def prompt_ids(self, repetition: int, n_tokens: int) -> torch.Tensor:
        """The prompt (n_tokens,) int64: the same for every arm of a repetition."""
        if self.prompt:
            given = torch.tensor(self.prompt, dtype=torch.int64)
            return given.repeat(-(-n_tokens // given.numel()))[:n_tokens]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + repetition)
        return torch.randint(self.model.shape.n_vocab, (n_tokens,), generator=generator)

    def splits_of(self, placement: Placement) -> list[Split]:
        """The splits whose tensors a placement has in host memory."""
        return [split for split in self.splits if placement.is_host(split.parts[0].info.name)]

    def with_splits(self, splits: Sequence[Split]) -> PlacedModel:
        """The same with another set of streamed splits (the `full` arm streams none)."""
        return replace(self, splits=splits)
