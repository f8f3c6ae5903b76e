"""What a mixer keeps between ubatches: preallocated tensors, filled in place, one state a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from executor.layers.rope import RopeTable, rope_table, rotate
from executor.shape import AttentionShape, Mixer


class MixerState(Protocol):
    """A layer's memory of the tokens before."""

    @property
    def n_bytes(self) -> int:
        """Device memory of the state itself (the rope table is shared and not counted)."""

    def fill_noise(self, depth: int, seed: int) -> None:
        """Seeded noise, as if `depth` tokens had passed."""

    def reset(self) -> None:
        """Forget all tokens."""


@dataclass(frozen=True, eq=False)
class AttentionState:
    """KV cache: keys and values (max_tokens, kv_heads, head_dim), rows in order of position."""

    keys: torch.Tensor
    values: torch.Tensor
    rope: RopeTable

    @property
    def n_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def append(self, k: torch.Tensor, v: torch.Tensor, n_past: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Store rotated k and v, each (n, kv_heads, head_dim), at n_past; return all keys and values."""
        total = n_past + k.shape[0]
        rotate(k, self.rope, n_past, out=self.keys[n_past:total])
        self.values[n_past:total] = v
        return self.keys[:total], self.values[:total]

    def fill_noise(self, depth: int, seed: int) -> None:
        generator = torch.Generator(self.keys.device).manual_seed(seed)
        self.keys[:depth].normal_(generator=generator)
        self.values[:depth].normal_(generator=generator)

    def reset(self) -> None:
        """Nothing to clear: rows at and after n_past are never read."""


def new_state(mixer: Mixer, max_tokens: int, device: torch.device, dtype: torch.dtype) -> MixerState:
    """An empty state for up to `max_tokens` positions (depth, prompt and generated tokens together)."""
    match mixer:
        case AttentionShape():
            shape = (max_tokens, mixer.n_kv_heads, mixer.head_dim)
            keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
            return AttentionState(keys, values, rope_table(mixer.rope, max_tokens, device, dtype))
        case _:
            raise NotImplementedError(type(mixer).__name__)
