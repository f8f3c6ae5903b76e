"""Which layers each arm keeps on the device, in words and as a table."""

from __future__ import annotations

import pandas as pd

from profiler.report.residency import Residency
from profiler.report.units import format_bytes, number_ranges

_UNKNOWN = "–"


def sentence(arm: str, found: Residency) -> str:
    """`on keeps 20 of 48 layers resident (0, 29-47); the host holds weights of 28 (1-28), 38.1 GB.`"""
    if not found.host_layers:
        return f"{arm} keeps every layer resident, {format_bytes(found.resident_bytes)}."
    on_host = f"the host holds weights of {len(found.host_layers)} ({number_ranges(found.host_layers)})"
    whole = "" if found.n_layers is None else _whole_layers(found.host_layers, found.n_layers)
    return f"{arm} keeps {whole or 'the other layers'} wholly resident; {on_host}, {format_bytes(found.host_bytes)}."


def _whole_layers(host_layers: list[int], n_layers: int) -> str:
    stay = sorted(set(range(min(n_layers, 100_000))) - set(host_layers))
    return f"{len(stay)} of {n_layers} layers ({number_ranges(stay)})" if stay else f"none of its {n_layers} layers"


def table(found: dict[str, Residency]) -> pd.DataFrame:
    """One row an arm: what stays, what the host holds, slots, bank, and their cost in layers."""
    rows = [
        {
            "arm": arm,
            "resident": format_bytes(one.resident_bytes),
            "in host memory": format_bytes(one.host_bytes),
            "layers with weights in host memory": number_ranges(one.host_layers) or "none",
            "slots": f"{one.slots}, {format_bytes(one.slots_bytes)}" if one.slots_bytes else "none",
            "bank": format_bytes(one.bank_bytes) if one.bank_bytes else "none",
            "room of slots and bank, in layers": _UNKNOWN
            if one.cost_in_layers is None
            else f"{one.cost_in_layers:.1f}",
        }
        for arm, one in found.items()
    ]
    return pd.DataFrame(rows)


def device_table(found: dict[str, Residency]) -> pd.DataFrame:
    """One row an arm and device, of the arms that say it by device: weights that stay, slots, bank, and their sum."""
    rows = [
        {
            "arm": arm,
            "device": held.device,
            "resident": format_bytes(held.resident_bytes),
            "slots": format_bytes(held.slots_bytes) if held.slots_bytes else "none",
            "bank": format_bytes(held.bank_bytes) if held.bank_bytes else "none",
            "VRAM held": format_bytes(held.n_bytes),
        }
        for arm, one in found.items()
        for held in one.by_device
    ]
    return pd.DataFrame(rows)
