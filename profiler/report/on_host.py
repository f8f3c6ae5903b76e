"""What a run computed on the host: with which products, and in which ubatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from profiler.manifest import Arm
from profiler.metrics import Scope
from profiler.report.data import ArmFigures, Cell
from profiler.report.units import format_bytes

_SAID: Final = {
    "int4": "packed int4 (PyTorch's CPU kernel)",
    "bf16": "bf16, dequantised once",
    "f32": "float32, dequantised once",
}


def host_products(arm: Arm) -> dict[str, str] | None:
    """How each quant type was multiplied on the host, by the manifest; None where nothing was, or it does not say."""
    found = _part(arm, "effective").get("host_products")
    if not isinstance(found, Mapping):
        return None
    return {str(quant): str(product) for quant, product in found.items()} or None


def products_line(arms: Sequence[Arm]) -> str | None:
    """One line about all arms; None where nothing was computed on the host."""
    found: dict[str, str] = {}
    for arm in arms:
        found |= host_products(arm) or {}
    told = [f"{quant} as {_said(quant, product)}" for quant, product in found.items()]
    return f"Weights computed on the host: {'; '.join(told)}." if told else None


def _said(quant: str, product: str) -> str:
    return "it is stored" if quant.lower() == product else _SAID.get(product, product)


def with_places(cells: Sequence[Cell], arms: Sequence[Arm]) -> list[Cell]:
    """The cells, each with a note where its prompt's shorter last ubatch was served, and one for its decode steps."""
    by_name = {arm.name: arm for arm in arms}
    return [_noted(cell, [by_name[name] for name in cell.arms if name in by_name]) for cell in cells]


def _noted(cell: Cell, arms: Sequence[Arm]) -> Cell:
    groups: dict[int, list[Arm]] = {}
    for arm in arms:
        if (least := _threshold(arm)) is not None:
            groups.setdefault(least, []).append(arm)
    pieces = _pieces(cell)
    notes = [_note(cell, piece, least, served) for piece in pieces for least, served in groups.items()]
    return replace(cell, notes=[*cell.notes, *notes]) if notes else cell


@dataclass(frozen=True, slots=True)
class _Piece:
    """A ubatch that is smaller than -ub asks; `scope` is the part of a pass that has only such, if one does."""

    said: str
    n_tokens: int
    scope: Scope | None


def _pieces(cell: Cell) -> list[_Piece]:
    n_prompt, n_ubatch, n_gen = cell.n_prompt or 0, cell.n_ubatch or 0, cell.n_gen or 0
    found = []
    if n_ubatch and (last := n_prompt % n_ubatch):
        tokens = f"{last} token{'' if last == 1 else 's'}"
        is_all = n_prompt < n_ubatch
        said = f"The prompt is one ubatch of {tokens}" if is_all else f"The last ubatch has {tokens}"
        found.append(_Piece(said, last, "prefill" if is_all else None))
    if n_gen > (1 if n_prompt else 0):
        found.append(_Piece("Decode goes token by token", 1, "decode"))
    return found


def _note(cell: Cell, piece: _Piece, least: int, arms: Sequence[Arm]) -> str:
    cached = [arm for arm in arms if _has_cache(arm) and _is_served_from_bank(piece.n_tokens)]
    is_small = piece.n_tokens < least
    did: dict[str, list[Arm]] = {}
    for arm in arms:
        if arm not in cached:
            what = _on_host(cell.arms[arm.name], piece.scope) if is_small else "copied the host weights to the device"
            did.setdefault(what, []).append(arm)
    told = [f"{_names(alike)} {what}" for what, alike in did.items()]
    rest = "used other FFN weights in host memory on the CPU" if is_small else "copied other host weights to the device"
    told += [f"{_names(cached)} took experts from the bank and {rest}"] if cached else []
    return f"{piece.said}, {'' if is_small else 'not '}below --op-offload-min-batch {least}: {'; '.join(told)}."


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


def _names(arms: Sequence[Arm]) -> str:
    return ", ".join(arm.name for arm in arms)


def _has_cache(arm: Arm) -> bool:
    return bool(_part(arm, "effective").get("vram_bank"))


def _is_served_from_bank(size: int) -> bool:
    from executor.policies.cache import MAX_BATCH  # brings torch along, 2 s that few reports need

    return size <= MAX_BATCH


def _threshold(arm: Arm) -> int | None:
    """The arm's `--op-offload-min-batch` where that decides; None for arms without host tensors, `cpu`, and imports."""
    least, host_bytes = _part(arm, "requested").get("op_offload_min_batch"), _part(arm, "effective").get("host_bytes")
    return least if isinstance(least, int) and host_bytes and arm.requested != "cpu" else None


def _part(arm: Arm, name: str) -> Mapping[str, Any]:
    found = arm.options.get(name)
    return found if isinstance(found, Mapping) else {}
