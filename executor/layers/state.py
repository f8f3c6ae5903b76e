"""What a mixer keeps between ubatches: preallocated tensors, filled in place, one state a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from executor.layers.attention_kernels import OneToken
from executor.layers.rope import RopeTable, rope_table, rotate
from executor.model import AttentionShape, DeltaNetShape, Mixer, MlaShape


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
    chunk: int | None = None  # a position sees no further back than its own chunk's begin

    @property
    def n_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def append(self, k: torch.Tensor, v: torch.Tensor, n_past: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Store rotated k and v, each (n, kv_heads, head_dim), at n_past; return all keys and values."""
        total = n_past + k.shape[0]
        rotate(k, self.rope, n_past, out=self.keys[n_past:total])
        self.values[n_past:total] = v
        return self.keys[:total], self.values[:total]

    def append_one(self, k: torch.Tensor, v: torch.Tensor, at: OneToken) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one token's k, rotated already, and v, each (1, kv_heads, head_dim), at its position.

        Returns the first `n_rows` rows.
        """
        self.keys.index_copy_(0, at.position.index, k)
        self.values.index_copy_(0, at.position.index, v)
        return self.keys[: at.n_rows], self.values[: at.n_rows]

    def fill_noise(self, depth: int, seed: int) -> None:
        generator = torch.Generator(self.keys.device).manual_seed(seed)
        self.keys[:depth].normal_(generator=generator)
        self.values[:depth].normal_(generator=generator)

    def reset(self) -> None:
        """Nothing to clear: rows at and after n_past are never read."""


@dataclass(frozen=True, eq=False)
class DeltaNetState:
    """What a gated delta net remembers: the same size whatever the number of tokens."""

    memory: torch.Tensor  # (value heads, key_dim, value_dim), float32
    recent: torch.Tensor  # (conv_width - 1, channels): the convolution's last inputs

    @property
    def n_bytes(self) -> int:
        return self.memory.nbytes + self.recent.nbytes

    def convolve(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Causal depthwise convolution of x (n, channels) by weight (channels, width), going on from `recent`."""
        n, width = x.shape[0], weight.shape[1]
        padded = torch.cat([self.recent, x])
        self.recent.copy_(padded[n:])
        out = padded[:n] * weight[:, 0]
        for tap in range(1, width):
            out.addcmul_(padded[tap : tap + n], weight[:, tap])
        return out

    def fill_noise(self, depth: int, seed: int) -> None:
        self.reset()
        if depth:
            generator = torch.Generator(self.memory.device).manual_seed(seed)
            self.memory.normal_(std=self.memory.shape[1] ** -0.5, generator=generator)
            self.recent.normal_(generator=generator)

    def reset(self) -> None:
        self.memory.zero_()
        self.recent.zero_()


@dataclass(frozen=True, eq=False)
class MlaState:
    """Each token's normed latent, then its rotated key that all heads share: (max_tokens, kv_lora_rank + rope.dims)."""

    latents: torch.Tensor
    rope: RopeTable

    @property
    def n_bytes(self) -> int:
        return self.latents.nbytes

    def append(self, latent: torch.Tensor, key: torch.Tensor, n_past: int) -> torch.Tensor:
        """Store latent (n, kv_lora_rank) and rotated key (n, rope.dims) at n_past; return all rows so far."""
        total, rank = n_past + latent.shape[0], latent.shape[1]
        new = self.latents[n_past:total]
        new[:, :rank] = latent
        rotate(key.unsqueeze(1), self.rope, n_past, out=new[:, rank:].unsqueeze(1))
        return self.latents[:total]

    def fill_noise(self, depth: int, seed: int) -> None:
        self.latents[:depth].normal_(generator=torch.Generator(self.latents.device).manual_seed(seed))

    def reset(self) -> None:
        """Nothing to clear: rows at and after n_past are never read."""


def new_state(mixer: Mixer, max_tokens: int, device: torch.device, dtype: torch.dtype) -> MixerState:
    """An empty state for up to `max_tokens` positions (depth, prompt and generated tokens together)."""
    match mixer:
        case AttentionShape():
            shape = (max_tokens, mixer.n_kv_heads, mixer.head_dim)
            keys, values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
            return AttentionState(keys, values, rope_table(mixer.rope, max_tokens, device, dtype), mixer.chunk)
        case DeltaNetShape():
            memory = (mixer.n_value_heads, mixer.key_dim, mixer.value_dim)
            recent = (mixer.conv_width - 1, mixer.channels)
            return DeltaNetState(torch.zeros(memory, device=device), torch.zeros(recent, device=device, dtype=dtype))
        case MlaShape():
            latents = torch.zeros(max_tokens, mixer.kv_lora_rank + mixer.rope.dims, device=device, dtype=dtype)
            return MlaState(latents, rope_table(mixer.rope, max_tokens, device, dtype))
