"""Which layers each arm keeps resident, and what its slots and bank cost in layers that could have stayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from profiler.manifest import Arm, Manifest
from profiler.metrics.memory import cost_in_layers
from profiler.report.placements import FULL
from profiler.report.units import format_bytes

_PARTS: Final = ("vram_resident", "vram_slots", "vram_bank")
_SIZES: Final = (*_PARTS, "host_bytes", "slots")


@dataclass(frozen=True, slots=True)
class Held:
    """What an arm holds on one of several devices, in bytes: weights that stay, slots and bank."""

    device: int
    resident_bytes: int
    slots_bytes: int
    bank_bytes: int

    @property
    def n_bytes(self) -> int:
        """All three; mixer states and activations, which arms share, come on top."""
        return self.resident_bytes + self.slots_bytes + self.bank_bytes


@dataclass(frozen=True, slots=True)
class Residency:
    """One arm's placement; null where the capture does not say."""

    host_layers: list[int]  # layers with weights in host memory; all others are resident
    n_layers: int | None  # of the model
    host_bytes: int
    resident_bytes: int
    slots: int  # device buffers for streamed weights
    slots_bytes: int
    bank_bytes: int  # of the expert cache
    cost_in_layers: float | None  # how many of these layers slots and bank would have kept resident
    by_device: tuple[Held, ...] = ()  # where there are several; empty where there is one, or the capture does not say


def residency(manifest: Manifest, arm: Arm) -> Residency | None:
    """What `hprof run` wrote of an arm; null for captures of other sources."""
    placed = arm.options.get("effective")
    if not isinstance(placed, Mapping):
        return None
    sizes, layers, n_layers = _sizes(placed), placed.get("host_layers"), manifest.model.get("n_layers")
    if sizes is None or not isinstance(layers, list):
        return None
    return Residency(
        host_layers=sorted(layer for layer in layers if _is_count(layer)),
        n_layers=n_layers if _is_count(n_layers) else None,
        host_bytes=sizes["host_bytes"],
        resident_bytes=sizes["vram_resident"],
        slots=sizes["slots"],
        slots_bytes=sizes["vram_slots"],
        bank_bytes=sizes["vram_bank"],
        cost_in_layers=cost_in_layers(sizes["vram_slots"] + sizes["vram_bank"], placed),
        by_device=_by_device(placed.get("by_device")),
    )


def budget_lines(manifest: Manifest) -> list[str]:
    """What `--vram-budget` left for weights, slots and bank; nothing where none was given."""
    found = manifest.placement.get("configurations")
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []
    sizes = [(row.get("budget_bytes"), row.get("kept_bytes")) for row in rows]
    has_full = any(arm.requested == FULL for arm in manifest.arms)
    beyond = " `full` keeps everything resident, whatever the budget." if has_full else ""
    return [
        f"VRAM budget: {format_bytes(budget)} a device, {format_bytes(kept)} of it kept for the context, activations "
        f"and a dequantised weight.{beyond}"
        for budget, kept in dict.fromkeys(sizes)
        if _is_count(budget) and _is_count(kept)
    ]


def all_residency(manifest: Manifest) -> dict[str, Residency]:
    """By arm, of those that say."""
    found = {arm.name: residency(manifest, arm) for arm in manifest.arms}
    return {name: one for name, one in found.items() if one is not None}


def _by_device(told: object) -> tuple[Held, ...]:
    """From one list a part, with one number a device."""
    if not isinstance(told, Mapping):
        return ()
    parts = [told.get(name) for name in _PARTS]
    columns = [part for part in parts if isinstance(part, list) and all(map(_is_count, part))]
    if len(columns) != len(_PARTS) or len(set(map(len, columns))) != 1:
        return ()
    return tuple(Held(device, *sizes) for device, sizes in enumerate(zip(*columns, strict=True)))


def _sizes(placed: Mapping[str, Any]) -> dict[str, int] | None:
    sizes = {name: placed[name] for name in _SIZES if _is_count(placed.get(name))}
    return sizes if len(sizes) == len(_SIZES) else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
