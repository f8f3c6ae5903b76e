"""What became of ubatches that are smaller than `-ub` asks: a prompt's shorter last one, and decode's single tokens.
They may fall below the offload threshold, where arms do other work than in the rest of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from executor.policies.cache import MAX_BATCH
from executor.units import format_bytes, format_share
from profiler.manifest import ManifestArm
from profiler.metrics import Scope
from profiler.report.cells import ArmFigures, Cell


def with_small_ubatches(cells: Sequence[Cell], arms: Sequence[ManifestArm]) -> list[Cell]:
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
    if _divides(arm) and not _has_no_experts(figures):
        return _divided(figures, scope)
    return _on_host(figures, scope) if is_small else "copied the host weights to the device"


def _divided(arm: ArmFigures, scope: Scope | None) -> str:
    """Which side took experts, where a phase has only such ubatches: what takes least time may be one side alone."""
    figures = arm.figures[scope] if scope is not None else {}
    copied, computed = figures.get("bytes_h2d"), figures.get("host_compute_ns")
    if copied is not None and computed is not None:
        if figures.get("selective_saving_bytes") is None:  # no copy names a tensor
            return "left all experts to the CPU"
        if not (computed.high or computed.median):
            return "left all experts to the device"
    did = "divided the experts between CPU and device"
    used, crossed = figures.get("distinct_share"), figures.get("copied_share")
    if used is None or crossed is None or not used.median:
        return did
    return f"{did}: {format_share(crossed.median / used.median)} of those in use were copied"


def _has_no_experts(arm: ArmFigures) -> bool:
    """Whether passes were recorded, and no router's choice was."""
    return arm.median("busy_compute_ns") is not None and arm.median("distinct_share") is None


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
    return bool(arm.effective_options.get("vram_bank"))


def _threshold(arm: ManifestArm) -> int | None:
    """The arm's `--op-offload-min-batch`; None where nothing depends on it: no host tensors, or it never asks."""
    least, host_bytes = arm.requested_options.get("op_offload_min_batch"), arm.effective_options.get("host_bytes")
    never_asks = arm.traits is not None and "op_offload_min_batch" not in arm.traits.reads
    return least if isinstance(least, int) and host_bytes and not never_asks else None
