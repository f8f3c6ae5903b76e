"""Where each arm's weights lie, in words and as tables: which layers stay on the device, and how two placements of
one capture differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dashboard.table_columns import in_one_unit
from executor.units import format_bytes, format_count, number_ranges
from profiler.manifest import Manifest, ManifestArm
from profiler.report.cells import placement_number
from profiler.report.residency import Residency, residency


@dataclass(frozen=True, slots=True)
class OtherPlacement:
    """A and B of different placements: each in a few words, and the pair that differs in the policy alone."""

    a: str  # `8 host layers`
    b: str
    sentence: str
    alike: tuple[str, str] | None  # arms of B's placement, or of A's


def other_placement(manifest: Manifest, a: str, b: str) -> OtherPlacement | None:
    """Null where A and B share a placement, or one of them keeps everything resident whatever the placement."""
    arms = {arm.name: arm for arm in manifest.arms}
    names = (a, b)
    places = [_suffix(manifest, name) for name in names]
    if places[0] == places[1] or not all(name in arms and not arms[name].is_resident for name in names):
        return None
    told = " and ".join(f"{name} has {_told(manifest, arms[name])}" for name in names)
    sentence = f"Their weights lie elsewhere: {told}. So the policy alone does not explain the difference."
    in_short = [_in_short(manifest, arms[name]) for name in names]
    return OtherPlacement(in_short[0], in_short[1], sentence, _alike(manifest, list(arms), a, b))


def partner(manifest: Manifest, others: Sequence[str], a: str) -> int:
    """Which of the other arms to hold against A first: one of its placement, else the first."""
    return next((at for at, name in enumerate(others) if _suffix(manifest, name) == _suffix(manifest, a)), 0)


def _suffix(manifest: Manifest, name: str) -> str:
    """`@3` for an arm of the third placement, nothing for one of the first."""
    number = next((placement_number(arm) for arm in manifest.arms if arm.name == name), 1)
    return f"@{number}" if number > 1 else ""


def _alike(manifest: Manifest, names: Sequence[str], a: str, b: str) -> tuple[str, str] | None:
    ends = {name: _suffix(manifest, name) for name in (a, b)}
    pairs = [(a.removesuffix(ends[a]) + ends[b], b), (a, b.removesuffix(ends[b]) + ends[a])]
    return next((pair for pair in pairs if pair[0] != pair[1] and set(pair) <= set(names)), None)


def _told(manifest: Manifest, arm: ManifestArm) -> str:
    found, spelled = residency(manifest, arm), arm.options.get("placement")
    how = f" ({spelled})" if isinstance(spelled, str) and spelled else ""
    if found is None:
        return f"a placement of its own{how}"
    layers = format_count(len(found.host_layers), "layer")
    return f"weights of {layers} in host memory, {format_bytes(found.host_bytes)}{how}"


def _in_short(manifest: Manifest, arm: ManifestArm) -> str:
    found = residency(manifest, arm)
    return "a placement of its own" if found is None else format_count(len(found.host_layers), "host layer")


def residency_sentence(arm: str, found: Residency) -> str:
    """`on keeps 20 of 48 layers resident (0, 29-47); the host holds weights of 28 (1-28), 35.5 GiB.`"""
    if not found.host_layers:
        return f"{arm} keeps every layer resident, {format_bytes(found.resident_bytes)}."
    on_host = f"the host holds weights of {len(found.host_layers)} ({number_ranges(found.host_layers)})"
    whole = "" if found.n_layers is None else _whole_layers(found.host_layers, found.n_layers)
    return f"{arm} keeps {whole or 'the other layers'} wholly resident; {on_host}, {format_bytes(found.host_bytes)}."


def _whole_layers(host_layers: list[int], n_layers: int) -> str:
    stay = sorted(set(range(min(n_layers, 100_000))) - set(host_layers))
    return f"{len(stay)} of {n_layers} layers ({number_ranges(stay)})" if stay else f"none of its {n_layers} layers"


def residency_table(found: dict[str, Residency]) -> pd.DataFrame:
    """One row an arm: what stays, what the host holds, slots, bank, and their cost in layers."""
    arms = list(found.values())
    sizes = {
        "resident": [one.resident_bytes for one in arms],
        "in host memory": [one.host_bytes for one in arms],
        "slots": [one.slots_bytes for one in arms],
        "bank": [one.bank_bytes for one in arms],
    }
    told = {
        "arm": list(found),
        **in_one_unit({title: pd.Series(values) for title, values in sizes.items()}, "bytes"),
        "number of slots": [one.slots for one in arms],
        "room of slots and bank, in layers": pd.Series([one.cost_in_layers for one in arms], dtype=float),
        "layers with weights in host memory": [number_ranges(one.host_layers) or "none" for one in arms],
    }
    return pd.DataFrame(told)


def residency_by_device(found: dict[str, Residency]) -> pd.DataFrame:
    """One row an arm and device, of the arms that say it by device: weights that stay, slots, bank, and their sum."""
    rows = [
        (arm, held.device, held.resident_bytes, held.slots_bytes, held.bank_bytes, held.n_bytes)
        for arm, one in found.items()
        for held in one.by_device
    ]
    table = pd.DataFrame(rows, columns=["arm", "device", "resident", "slots", "bank", "VRAM held"])
    sizes = {str(title): table[title] for title in table.columns[2:]}
    return table[["arm", "device"]].assign(**in_one_unit(sizes, "bytes"))
