"""What a session holds, by what asks for it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes by what asks for them; `total` adds them up."""

    @property
    def total(self) -> int:
        """All parts together, in bytes."""
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True, slots=True)
class OnDevice(Bytes):
    """One device's part."""

    resident: int = 0
    slots: int = 0
    bank: int = 0
    states: int = 0  # KV caches and other mixer states, and rotary tables, for `max_positions`
    activations: int = 0  # the fixed buffers of a ubatch, and a synthetic router's choices
    scratch: int = 0  # the largest dequantised weight, and the widest rows between two products
    logits: int = 0


@dataclass(frozen=True, slots=True)
class OnHost(Bytes):
    """The host's part. A mapped file's pages count only where they are pinned: else the system may drop them."""

    weights: int = 0
    loading: int = 0  # copies of tensors on their way to where they stay
    activations: int = 0  # where copies between host and device start and end
    products: int = 0  # weights that are computed with on the host, packed or in its dtype


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that a session holds for all its arms together."""

    devices: tuple[OnDevice, ...]
    host: OnHost
