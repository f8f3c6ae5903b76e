"""Where each arm kept its weights, as the manifest of `hprof run` says it: resident layers, what slots and bank cost,
and how the host multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executor.units import format_bytes, listed
from profiler.manifest import Manifest, ManifestArm, is_count
from profiler.metrics.memory import cost_in_layers

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


def residency(manifest: Manifest, arm: ManifestArm) -> Residency | None:
    """What `hprof run` wrote of an arm; null for captures of other sources."""
    placed, layers, n_layers = arm.effective_options, arm.host_layers, manifest.model.get("n_layers")
    sizes = _sizes(placed)
    if sizes is None or layers is None:
        return None
    return Residency(
        host_layers=list(layers),
        n_layers=n_layers if is_count(n_layers) else None,
        host_bytes=sizes["host_bytes"],
        resident_bytes=sizes["vram_resident"],
        slots=sizes["slots"],
        slots_bytes=sizes["vram_slots"],
        bank_bytes=sizes["vram_bank"],
        cost_in_layers=cost_in_layers(sizes["vram_slots"] + sizes["vram_bank"], sizes["host_bytes"], len(layers)),
        by_device=_by_device(placed.get("by_device")),
    )


def budget_lines(manifest: Manifest) -> list[str]:
    """What `--vram-budget` left for weights, slots and bank; nothing where none was given."""
    sizes = [(_budget_text(row), row.get("kept_bytes")) for row in manifest.configurations]
    whole = dict.fromkeys(arm.requested or arm.name for arm in manifest.arms if arm.is_resident)
    beyond = "".join(f" `{name}` keeps everything resident, whatever the budget." for name in whole)
    return [
        f"VRAM budget: {budget}, {format_bytes(kept)} of it kept for the context, activations "
        f"and a dequantised weight.{beyond}"
        for budget, kept in dict.fromkeys(sizes)
        if budget is not None and is_count(kept)
    ]


def _budget_text(row: Mapping[str, object]) -> str | None:
    """`24 GiB a device`, or what each has; None where the row has no budget."""
    n_bytes, each = row.get("budget_bytes"), row.get("budget_bytes_by_device")
    if isinstance(each, list) and each and all(map(is_count, each)):
        return f"{listed(map(format_bytes, each))} by device"
    return f"{format_bytes(n_bytes)} a device" if is_count(n_bytes) else None


def all_residency(manifest: Manifest) -> dict[str, Residency]:
    """By arm, of those that say."""
    found = {arm.name: residency(manifest, arm) for arm in manifest.arms}
    return {name: one for name, one in found.items() if one is not None}


def _by_device(told: object) -> tuple[Held, ...]:
    """From one list a part, with one number a device."""
    if not isinstance(told, Mapping):
        return ()
    parts = [told.get(name) for name in _PARTS]
    columns = [part for part in parts if isinstance(part, list) and all(map(is_count, part))]
    if len(columns) != len(_PARTS) or len(set(map(len, columns))) != 1:
        return ()
    return tuple(Held(device, *sizes) for device, sizes in enumerate(zip(*columns, strict=True)))


def _sizes(placed: Mapping[str, Any]) -> dict[str, int] | None:
    sizes = {name: placed[name] for name in _SIZES if is_count(placed.get(name))}
    return sizes if len(sizes) == len(_SIZES) else None


_SAID: Final = {
    "int4": "packed int4 (PyTorch's CPU kernel)",
    "bf16": "bf16, dequantised once",
    "f32": "float32, dequantised once",
    "stored": "it is stored",
}


def host_products(arm: ManifestArm) -> dict[str, str] | None:
    """How each quant type was multiplied on the host, by the manifest; None where nothing was, or it does not say."""
    found = arm.effective_options.get("host_products")
    if not isinstance(found, Mapping):
        return None
    return {str(quant): str(product) for quant, product in found.items()} or None


def products_line(arms: Sequence[ManifestArm]) -> str | None:
    """One line about all arms; None where nothing was computed on the host."""
    found: dict[str, str] = {}
    for arm in arms:
        found |= host_products(arm) or {}
    told = [f"{quant} as {_said(quant, product)}" for quant, product in found.items()]
    return f"Weights computed on the host: {'; '.join(told)}." if told else None


def _said(quant: str, product: str) -> str:
    return "it is stored" if quant.lower() == product else _SAID.get(product, product)
