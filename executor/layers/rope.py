"""Positions: rotary embedding (frequencies under every scaling rule in use, a shared table, the rotation), and queries
that grow with their position.

Frequencies follow llama.cpp, whose GGUF files and logits are the reference: YaRN's ramp has whole-number
ends there (ggml `ggml_rope_yarn_corr_dims`), and a file's `rope_freqs.weight` divides each frequency.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import Final

import torch

from executor.model import RopeShape, TemperatureShape

_TableKey = tuple[RopeShape, int, torch.device, torch.dtype]
_tables: Final[weakref.WeakValueDictionary[_TableKey, RopeTable]] = weakref.WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class RopeTable:
    """Cosine and sine, each (length, rope.dims / 2), for positions 0 to length - 1."""

    rope: RopeShape
    cos: torch.Tensor = field(repr=False)
    sin: torch.Tensor = field(repr=False)

    def at(self, index: torch.Tensor) -> RopeTable:
        """The table of the positions (n,) alone, which may lie on a device: `rotate` then begins at its row 0."""
        return RopeTable(self.rope, self.cos.index_select(0, index), self.sin.index_select(0, index))


def rope_table(rope: RopeShape, length: int, device: torch.device, dtype: torch.dtype) -> RopeTable:
    """The table for these positions; layers that ask for the same one share it while any of them lives."""
    key = (rope, length, device, dtype)
    table = _tables.get(key)
    if table is None:
        table = _tables[key] = _without_storage(*key) if device.type == "meta" else _computed(*key)
    return table


def _computed(rope: RopeShape, length: int, device: torch.device, dtype: torch.dtype) -> RopeTable:
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies(rope, length))
    cos, sin = ((function(angles) * rope.attention_factor).to(device, dtype) for function in (torch.cos, torch.sin))
    return RopeTable(rope, cos, sin)


def _without_storage(rope: RopeShape, length: int, device: torch.device, dtype: torch.dtype) -> RopeTable:
    """As all else of a simulated device. Nothing is computed there: for that torch imports sympy."""
    cos, sin = (torch.empty((length, rope.dims // 2), dtype=dtype, device=device) for _ in range(2))
    return RopeTable(rope, cos, sin)


def rotate(x: torch.Tensor, table: RopeTable, n_past: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rotate x (n, heads, head_dim), whose rows stand at positions n_past, n_past + 1, ...

    Only the first `rope.dims` of a head turn, the rest pass. Writes into `out` (never `x` itself) if given.
    """
    out = torch.empty_like(x) if out is None else out
    n, dims = x.shape[0], table.rope.dims
    cos, sin = (part[n_past : n_past + n, None] for part in (table.cos, table.sin))
    (first, second), (first_out, second_out) = (_pairs(t, table.rope) for t in (x, out))
    torch.mul(first, cos, out=first_out).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=second_out).addcmul_(first, sin)
    if dims < x.shape[-1]:
        out[..., dims:] = x[..., dims:]
    return out


def _pairs(x: torch.Tensor, rope: RopeShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the two members of each rotated pair."""
    if rope.interleaved:
        return x[..., 0 : rope.dims : 2], x[..., 1 : rope.dims : 2]
    half = rope.dims // 2
    return x[..., :half], x[..., half : rope.dims]


def frequencies(rope: RopeShape, length: int = 0) -> torch.Tensor:
    """Radians a position for each pair, (dims / 2,), float64, after scaling, in a context of `length` positions."""
    plain = rope.theta ** (-torch.arange(0, rope.dims, 2, dtype=torch.float64) / rope.dims)
    is_long = bool(rope.long_factors) and length > rope.original_context
    if factors := rope.long_factors if is_long else rope.factors:
        plain = plain / torch.tensor(factors, dtype=torch.float64)
    match rope.scaling:
        case "linear":
            return plain / rope.factor
        case "yarn":
            return _mix(plain, plain / rope.factor, _yarn_ramp(rope))
        case "llama3":
            return _mix(plain, plain / rope.factor, _llama3_ramp(plain, rope))
        case "none":
            return plain


def _mix(plain: torch.Tensor, slowed: torch.Tensor, ramp: torch.Tensor) -> torch.Tensor:
    """Where the ramp is 0 the plain frequency, where it is 1 the slowed one."""
    return plain * (1 - ramp) + slowed * ramp


def _yarn_ramp(rope: RopeShape) -> torch.Tensor:
    """YaRN (arXiv 2309.00071, 3.2): 0 up to the pair that turns `beta_fast` times, 1 from `beta_slow` on."""

    def dimension(turns: float) -> float:
        ratio = rope.original_context / (turns * 2 * math.pi)
        return rope.dims * math.log(ratio) / (2 * math.log(rope.theta))

    low = max(0, math.floor(dimension(rope.beta_fast)))
    high = min(rope.dims - 1, math.ceil(dimension(rope.beta_slow)))
    pair = torch.arange(rope.dims // 2, dtype=torch.float64)
    return ((pair - low) / max(0.001, high - low)).clamp(0, 1)


def _llama3_ramp(plain: torch.Tensor, rope: RopeShape) -> torch.Tensor:
    """Llama 3.1's rule (transformers `_compute_llama3_parameters`): by turns in the original context."""
    turns = rope.original_context * plain / (2 * math.pi)
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    return 1 - ((turns - low) / (high - low)).clamp(0, 1)


def tempered(q: torch.Tensor, temperature: TemperatureShape, at: int | torch.Tensor) -> torch.Tensor:
    """Queries (n, heads, dim) times 1 + scale * ln(1 + floor((position + offset) / length)): sharp in long contexts.

    `at` is the first one's position, or (n,) positions on their device.
    """
    first = torch.arange(at, at + q.shape[0], device=q.device) if isinstance(at, int) else at
    periods = ((first.double() + temperature.offset) / temperature.length).floor()
    factor = 1.0 + temperature.scale * torch.log1p(periods)
    return q * factor.to(q.dtype).view(-1, 1, 1)
