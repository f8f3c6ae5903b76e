"""What a run computed on the host: with which products, and for which pieces of the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from profiler.manifest import Arm
from profiler.report.data import Cell

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


def with_last_ubatch(cells: Sequence[Cell], arms: Sequence[Arm]) -> list[Cell]:
    """The cells, each with a note where its prompt's last ubatch is shorter and was served otherwise for that."""
    by_name = {arm.name: arm for arm in arms}
    return [_noted(cell, [by_name[name] for name in cell.arms if name in by_name]) for cell in cells]


def _noted(cell: Cell, arms: Sequence[Arm]) -> Cell:
    n_prompt, n_ubatch = cell.n_prompt, cell.n_ubatch
    if not n_prompt or not n_ubatch or not (last := n_prompt % n_ubatch):
        return cell
    groups: dict[int, list[str]] = {}
    for arm in arms:
        if (least := _threshold(arm)) is not None:
            groups.setdefault(least, []).append(arm.name)
    return replace(cell, notes=[*cell.notes, *(_note(last, least, names) for least, names in groups.items())])


def _note(last: int, least: int, names: Sequence[str]) -> str:
    tokens = f"The prompt's last ubatch has {last} token{'' if last == 1 else 's'}"
    if last < least:
        return (
            f"{tokens}, below --op-offload-min-batch {least}: {', '.join(names)} computed its host tensors on the CPU."
        )
    return f"{tokens}, not below --op-offload-min-batch {least}: {', '.join(names)} streamed its host tensors."


def _threshold(arm: Arm) -> int | None:
    """The arm's `--op-offload-min-batch` where that decides; None for arms without host tensors, `cpu`, and imports."""
    least, host_bytes = _part(arm, "requested").get("op_offload_min_batch"), _part(arm, "effective").get("host_bytes")
    return least if isinstance(least, int) and host_bytes and arm.requested != "cpu" else None


def _part(arm: Arm, name: str) -> Mapping[str, Any]:
    found = arm.options.get(name)
    return found if isinstance(found, Mapping) else {}
