"""What a user should know about a plan before believing its report: which cells and arms cannot differ, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from executor.model import Model
from executor.policies import CACHE, FULL
from profiler.arithmetic.stats import MIN_PAIRS
from profiler.cupti.recorder import COST_WARNING
from profiler.planning.abba import Cell
from profiler.planning.request import RunRequest
from profiler.planning.setup import Setup

_SHOWN: Final = 3  # cells that a sentence names
_WITHOUT_EXPERTS: Final = {"off-whole": "off", CACHE: "off", "gated": "on", "hot": "on", "auto": "on"}


def plan_warnings(request: RunRequest, model: Model, setups: tuple[Setup, ...]) -> list[str]:
    """Sentences for the manifest, the report and whoever reads it."""
    found = [COST_WARNING] if request.recorder == "cupti" else []
    found += _beyond_context(request.cells, model)
    found += [
        f"{setup.placement.spelled}: no weight is left in host memory, so all arms do the same."
        for setup in setups
        if not any(setup.placement_of(arm).host for arm in setup.arms) and setup.arms != (FULL,)
    ]
    found += _small_ubatches(request, setups)
    found += _short_prompts(request.cells)
    found += _arms_without_experts(request.arms, model)
    if request.device.kind == "sim" and request.routing is None and model.has_experts and not model.is_synthetic:
        found.append("Device sim computes nothing: a routing model chooses the experts, not the file's own router.")
    return found + _few_pairs(request)


def left_out(asked: Sequence[Cell], kept: Sequence[Cell]) -> list[str]:
    """One sentence on the cells of a grid that would repeat a measurement."""
    missing = [cell for cell in dict.fromkeys(asked) if cell not in kept]
    if not missing:
        return []
    named = _listed(f"-p {cell.n_prompt} -ub {cell.n_ubatch}" for cell in missing)
    longer = max((cell.n_ubatch for cell in missing if cell.n_prompt), default=None)
    how = f"; give -p {longer} to fill them" if longer else ""
    return [f"{named}: left out, as the smaller -ub holds the whole prompt and measures the same{how}."]


def _few_pairs(request: RunRequest) -> list[str]:
    n = request.repetitions * request.boots
    if n >= MIN_PAIRS:
        return []
    boots = f" --boots {request.boots}" if request.boots > 1 else ""
    pairs = f"{n} pair{'' if n == 1 else 's'}"
    return [f"-r {request.repetitions}{boots} gives {pairs}; a verdict needs {MIN_PAIRS} or more."]


def _beyond_context(cells: Iterable[Cell], model: Model) -> list[str]:
    longest, made_for = max(cell.n_positions for cell in cells), model.shape.context_length
    if longest <= made_for:
        return []
    return [
        f"{longest:,} positions are more than the {made_for:,} that {model.shape.name} was made for; times are right, "
        "what it would write is not."
    ]


def _small_ubatches(request: RunRequest, setups: Sequence[Setup]) -> list[str]:
    """Cells in which no FFN or expert weight is ever copied, so that all arms without a cache do the same."""
    least = request.policy.op_offload_min_batch
    hosts = [setup.placement_of(arm).host for setup in setups for arm in setup.arms]
    cells = [cell for cell in request.cells if (min(cell.n_ubatch, cell.n_prompt) or 1) < least]
    if not cells or set(request.arms) <= {FULL, "cpu"} or not any("ffn_" in name for host in hosts for name in host):
        return []
    sizes = _listed(f"-p {cell.n_prompt} -ub {cell.n_ubatch}" for cell in cells)
    but = " but those with a cache" if any(CACHE in arm for arm in request.arms) else ""
    return [
        f"{sizes}: no ubatch has the {least} tokens of --op-offload-min-batch, so every arm{but} uses FFN weights in "
        "host memory on the CPU and copies none."
    ]


def _short_prompts(cells: Iterable[Cell]) -> list[str]:
    short = _listed(
        f"-p {cell.n_prompt} with -ub {cell.n_ubatch}" for cell in cells if 0 < cell.n_prompt < cell.n_ubatch
    )
    return [f"{short}: the whole prompt is one ubatch, shorter than -ub."] if short else []


def _arms_without_experts(arms: Iterable[str], model: Model) -> list[str]:
    if model.has_experts:
        return []
    plain = {arm: arm.removesuffix(f"+{CACHE}") for arm in arms}
    same = {arm: _WITHOUT_EXPERTS.get(base, base) for arm, base in plain.items()}
    told = [f"{arm} does what {other} does" for arm, other in same.items() if arm != other]
    return [f"{model.shape.name} has no experts: {', '.join(told)}."] if told else []


def _listed(items: Iterable[str]) -> str:
    found = list(dict.fromkeys(items))
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
