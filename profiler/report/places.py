"""Where each arm kept its weights and did its work: resident layers, what slots and bank cost, what the host
computed, and each device's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

import numpy as np
import pandas as pd

from executor.policies.cache import MAX_BATCH
from executor.units import format_bytes
from profiler.manifest import Manifest, ManifestArm
from profiler.metrics import CaptureTables, Scope
from profiler.metrics.memory import cost_in_layers
from profiler.report.cells import ArmFigures, Cell, DeviceMedians

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
        cost_in_layers=cost_in_layers(sizes["vram_slots"] + sizes["vram_bank"], sizes["host_bytes"], len(layers)),
        by_device=_by_device(placed.get("by_device")),
    )


def budget_lines(manifest: Manifest) -> list[str]:
    """What `--vram-budget` left for weights, slots and bank; nothing where none was given."""
    found = manifest.placement.get("configurations")
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []
    sizes = [(row.get("budget_bytes"), row.get("kept_bytes")) for row in rows]
    whole = dict.fromkeys(arm.requested or arm.name for arm in manifest.arms if arm.is_resident)
    beyond = "".join(f" `{name}` keeps everything resident, whatever the budget." for name in whole)
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


_SAID: Final = {
    "int4": "packed int4 (PyTorch's CPU kernel)",
    "bf16": "bf16, dequantised once",
    "f32": "float32, dequantised once",
    "stored": "it is stored",
}


def host_products(arm: ManifestArm) -> dict[str, str] | None:
    """How each quant type was multiplied on the host, by the manifest; None where nothing was, or it does not say."""
    found = _part(arm, "effective").get("host_products")
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


def with_places(cells: Sequence[Cell], arms: Sequence[ManifestArm]) -> list[Cell]:
    """The cells, each with a note where its prompt's shorter last ubatch was served, and one for its decode steps."""
    by_name = {arm.name: arm for arm in arms}
    return [_noted(cell, [by_name[name] for name in cell.arms if name in by_name]) for cell in cells]


def _noted(cell: Cell, arms: Sequence[ManifestArm]) -> Cell:
    groups: dict[int, list[ManifestArm]] = {}
    for arm in arms:
        if (least := _threshold(arm)) is not None:
            groups.setdefault(least, []).append(arm)
    pieces = _pieces(cell)
    notes = [_note(cell, piece, least, served) for piece in pieces for least, served in groups.items()]
    return replace(cell, notes=[*cell.notes, *notes]) if notes else cell


@dataclass(frozen=True, slots=True)
class _SmallUbatch:
    """A ubatch that is smaller than -ub asks; `scope` is the part of a pass that has only such, if one does."""

    said: str
    n_tokens: int
    scope: Scope | None


def _pieces(cell: Cell) -> list[_SmallUbatch]:
    n_prompt, n_ubatch, n_gen = cell.n_prompt or 0, cell.n_ubatch or 0, cell.n_gen or 0
    found = []
    if n_ubatch and (last := n_prompt % n_ubatch):
        tokens = f"{last} token{'' if last == 1 else 's'}"
        is_all = n_prompt < n_ubatch
        said = f"The prompt is one ubatch of {tokens}" if is_all else f"The last ubatch has {tokens}"
        found.append(_SmallUbatch(said, last, "prefill" if is_all else None))
    if n_gen > (1 if n_prompt else 0):
        found.append(_SmallUbatch("Decode goes token by token", 1, "decode"))
    return found


def _note(cell: Cell, piece: _SmallUbatch, least: int, arms: Sequence[ManifestArm]) -> str:
    cached = [arm for arm in arms if _has_cache(arm) and piece.n_tokens <= MAX_BATCH]
    is_small = piece.n_tokens < least
    did: dict[str, list[ManifestArm]] = {}
    for arm in arms:
        if arm not in cached:
            did.setdefault(_did(cell.arms[arm.name], piece.scope, arm, is_small=is_small), []).append(arm)
    told = [f"{_names(alike)} {what}" for what, alike in did.items()]
    rest = "used other FFN weights in host memory on the CPU" if is_small else "copied other host weights to the device"
    for divides, bank in ((False, ""), (True, ", divided between CPU and device what it lacked,")):
        alike = [arm for arm in cached if _divides(arm) == divides]
        told += [f"{_names(alike)} took experts from the bank{bank} and {rest}"] if alike else []
    return f"{piece.said}, {'' if is_small else 'not '}below --op-offload-min-batch {least}: {'; '.join(told)}."


def _did(figures: ArmFigures, scope: Scope | None, arm: ManifestArm, *, is_small: bool) -> str:
    if _divides(arm):
        return "divided the experts between CPU and device"
    return _on_host(figures, scope) if is_small else "copied the host weights to the device"


def _divides(arm: ManifestArm) -> bool:
    return arm.traits is not None and arm.traits.divides


def _on_host(arm: ArmFigures, scope: Scope | None) -> str:
    """What an arm did below the threshold, which spares FFN and expert weights the copy and no others."""
    figures = arm.figures[scope] if scope is not None else {}
    copied, computed = figures.get("bytes_h2d"), figures.get("host_compute_ns")
    if copied is None:
        return "used FFN weights in host memory on the CPU and copied none of them"
    if figures.get("selective_saving_bytes") is None:  # no copy names a tensor: activations, which follow the work
        return "used the host weights on the CPU and copied none"
    others = f"copied weights outside the FFN all the same ({format_bytes(copied.median)} with the activations)"
    return others if computed is not None and not computed.median else f"used FFN weights on the CPU, but {others}"


def _names(arms: Sequence[ManifestArm]) -> str:
    return ", ".join(arm.name for arm in arms)


def _has_cache(arm: ManifestArm) -> bool:
    return bool(_part(arm, "effective").get("vram_bank"))


def _threshold(arm: ManifestArm) -> int | None:
    """The arm's `--op-offload-min-batch`; None where nothing depends on it: no host tensors, or it never asks."""
    least, host_bytes = _part(arm, "requested").get("op_offload_min_batch"), _part(arm, "effective").get("host_bytes")
    never_asks = arm.traits is not None and "op_offload_min_batch" not in arm.traits.reads
    return least if isinstance(least, int) and host_bytes and not never_asks else None


def _part(arm: ManifestArm, name: str) -> Mapping[str, Any]:
    found = arm.options.get(name)
    return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, slots=True)
class _MediansByDevice:
    """Figures by (pass_id, device)."""

    frame: pd.DataFrame

    def of(self, pass_ids: Sequence[int], held: Mapping[int, int]) -> tuple[DeviceMedians, ...]:
        """Medians over these passes, a device after the other; `held` has bytes of device memory by device."""
        rows = self.frame[self.frame["pass_id"].isin(pass_ids)]
        medians = rows.groupby("device").median(numeric_only=True)
        return tuple(
            DeviceMedians(
                device=int(str(device)),
                bytes_h2d=None if pd.isna(row["bytes_h2d"]) else float(row["bytes_h2d"]),
                busy_copy_ns=float(row["busy_copy_ns"]),
                hidden_copy_ns=float(row["hidden_copy_ns"]),
                busy_compute_ns=float(row["busy_compute_ns"]),
                vram_held_bytes=held.get(int(str(device))),
            )
            for device, row in medians.iterrows()
        )


def with_devices(cells: Sequence[Cell], tables: CaptureTables, residency: Mapping[str, Residency]) -> list[Cell]:
    """The cells with `n_devices` in each arm, and with `by_device` where passes ran on devices of several numbers.

    residency: what each arm holds where, of the arms that say.
    """
    if not cells:
        return []
    (devices,) = tables.recording.keys("device")
    rows = _rows(tables) if len(np.unique(devices[devices >= 0])) > 1 else None
    at_work = _n_devices(tables)
    passes = tables.passes.to_pandas()
    held = {arm: {one.device: one.n_bytes for one in found.by_device} for arm, found in residency.items()}
    return [replace(cell, arms=_arms(cell, passes, at_work, rows, held)) for cell in cells]


def _n_devices(tables: CaptureTables) -> pd.Series[int]:
    """How many devices copied or computed, by pass; the same number in two processes is two devices."""
    overlap = tables.recording.overlap(("pass_id", "process", "device"))
    worked = (overlap.busy_copy_ns > 0) | (overlap.busy_compute_ns > 0)
    return pd.Series(overlap.keys["pass_id"][worked]).value_counts()


def _rows(tables: CaptureTables) -> _MediansByDevice:
    names = ("pass_id", "device")
    overlap, transfers = tables.recording.overlap(names), tables.recording.transfers(names)
    busy = pd.DataFrame(
        {
            **overlap.keys,
            "busy_copy_ns": overlap.busy_copy_ns,
            "hidden_copy_ns": overlap.hidden_copy_ns,
            "busy_compute_ns": overlap.busy_compute_ns,
        }
    )
    moved = pd.DataFrame({**transfers.keys, "bytes_h2d": transfers.bytes_h2d})
    found = busy.merge(moved, on=list(names), how="left")
    return _MediansByDevice(found[found["device"] >= 0])


def _arms(
    cell: Cell,
    passes: pd.DataFrame,
    at_work: pd.Series[int],
    rows: _MediansByDevice | None,
    held: Mapping[str, Mapping[int, int]],
) -> dict[str, ArmFigures]:
    in_cell = passes[cell.rows_in(passes)]
    found = {}
    for name, arm in cell.arms.items():
        ids = in_cell.loc[in_cell["arm"] == name, "pass_id"]
        n_devices = int(at_work.reindex(ids).max(skipna=True)) if at_work.index.isin(ids).any() else 1
        by_device = rows.of(ids.tolist(), held.get(name, {})) if rows is not None else ()
        found[name] = replace(arm, n_devices=n_devices, by_device=by_device)
    return found
