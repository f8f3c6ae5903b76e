"""What a user should know before believing the report of a run, as sentences for its manifest; and what helps where a
run is refused because `-ot` was meant to add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Final

from executor.errors import HprofError
from executor.fault_names import FAULT_MEANINGS
from executor.model import Model
from executor.policies import arm_traits
from executor.units import listed
from profiler.arithmetic.stats import MIN_PAIRS
from profiler.pass_kernels import COST_WARNING
from profiler.planning.placed_arms import PlacedArms
from profiler.planning.request import GridPoint, RunRequest

_JOINING: Final = "each -ot (and each ',' in one) is a configuration of its own: ';' joins overrides, as 'a=CPU;b=CPU'"
_CELLS_NAMED: Final = 3  # cells that a sentence names


def plan_warnings(request: RunRequest, model: Model, setups: tuple[PlacedArms, ...]) -> list[str]:
    """Sentences for the manifest, the report and whoever reads it."""
    found = [COST_WARNING] if request.recorder == "cupti" else []
    if request.inject is not None:
        meaning = FAULT_MEANINGS[request.inject]
        found.append(
            f"A fault was injected on purpose, --inject {request.inject}: {meaning} Trust no figure of this run."
        )
    found += _beyond_context(request.cells, model)
    found += [
        f"{setup.placement.spelled}: no weight is left in host memory, so all arms do the same."
        for setup in setups
        if not any(setup.placement_of(arm).host for arm in setup.arms)
        and not all(arm_traits(arm).is_resident for arm in setup.arms)
    ]
    found += dict.fromkeys(note for setup in setups for note in setup.placement.notes)
    found += _meant_as_one(request, setups)
    found += _small_ubatches(request, setups, model)
    found += _short_prompts(request.cells)
    found += _arms_without_experts(request.arms, model)
    if request.device.kind == "sim" and request.routing is None and model.has_experts and not model.is_synthetic:
        found.append("Device sim computes nothing: a routing model chooses the experts, not the file's own router.")
    return (
        found if request.device.kind == "sim" else found + _few_pairs(request)
    )  # sim reads no clock: nothing scatters


def left_out(asked: Sequence[GridPoint], kept: Sequence[GridPoint]) -> list[str]:
    """One sentence on the cells of a grid that would repeat a measurement."""
    measured = set(kept)
    missing = [cell for cell in dict.fromkeys(asked) if cell not in measured]
    if not missing:
        return []
    named = _listed(f"-p {cell.n_prompt} -ub {cell.n_ubatch}" for cell in missing)
    longer = max((cell.n_ubatch for cell in missing if cell.n_prompt), default=None)
    how = f"; give -p {longer} to fill them" if longer else ""
    return [f"{named}: left out, as the smaller -ub holds the whole prompt and measures the same{how}."]


@contextmanager
def told_how_to_join(request: RunRequest) -> Iterator[None]:
    """Adds to a refusal what one cannot guess where -ot was meant to add up, as it does for llama-server."""
    try:
        yield
    except HprofError as refused:
        if _n_overrides(request) < 2:
            raise
        raise HprofError(f"{str(refused).removesuffix('.')}; {_JOINING}.") from None


def _n_overrides(request: RunRequest) -> int:
    return len({options.overrides for options in request.placements if options.overrides})


def _few_pairs(request: RunRequest) -> list[str]:
    n = request.repetitions * request.boots
    if n >= MIN_PAIRS:
        return []
    boots = f" --boots {request.boots}" if request.boots > 1 else ""
    pairs = f"{n} pair{'' if n == 1 else 's'}"
    return [f"-r {request.repetitions}{boots} gives {pairs}; a verdict needs {MIN_PAIRS} or more."]


def _beyond_context(cells: Iterable[GridPoint], model: Model) -> list[str]:
    longest, made_for = max(cell.n_positions for cell in cells), model.shape.context_length
    if longest <= made_for:
        return []
    return [
        f"{longest:,} positions are more than the {made_for:,} that {model.shape.name} was made for; times are right, "
        "what it would write is not."
    ]


def _meant_as_one(request: RunRequest, setups: Sequence[PlacedArms]) -> list[str]:
    """Configurations that share no host weight were probably meant as one."""
    host = [setup.placement.host for setup in setups if setup.budgeted is None]
    if _n_overrides(request) < 2 or not any(a.isdisjoint(b) for a, b in combinations(host, 2)):
        return []
    return [f"Two configurations have no weight in common; {_JOINING}."]


def _small_ubatches(request: RunRequest, setups: Sequence[PlacedArms], model: Model) -> list[str]:
    """Cells in which no FFN or expert weight is ever copied, so that arms which go by the ubatch do the same."""
    least = request.policy.op_offload_min_batch
    hosts = [setup.placement_of(arm).host for setup in setups for arm in setup.arms]
    cells = [cell for cell in request.cells if (min(cell.n_ubatch, cell.n_prompt) or 1) < least]
    traits = {arm: arm_traits(arm) for arm in request.arms}
    asks = any("op_offload_min_batch" in one.reads for one in traits.values())
    if not (cells and asks and any("ffn_" in name for host in hosts for name in host)):
        return []
    sizes = _listed(f"-p {cell.n_prompt} -ub {cell.n_ubatch}" for cell in cells)
    others = [arm for arm, one in traits.items() if model.has_experts and (one.has_cache or one.divides)]
    but = f" but {listed(others)}" if others else ""
    return [
        f"{sizes}: no ubatch has the {least} tokens of --op-offload-min-batch, so every arm{but} uses FFN weights in "
        "host memory on the CPU and copies none."
    ]


def _short_prompts(cells: Iterable[GridPoint]) -> list[str]:
    short = _listed(
        f"-p {cell.n_prompt} with -ub {cell.n_ubatch}" for cell in cells if 0 < cell.n_prompt < cell.n_ubatch
    )
    return [f"{short}: the whole prompt is one ubatch, shorter than -ub."] if short else []


def _arms_without_experts(arms: Iterable[str], model: Model) -> list[str]:
    if model.has_experts:
        return []
    same = {arm: arm_traits(arm).same_without_experts for arm in arms}
    told = [f"{arm} does what {other} does" for arm, other in same.items() if other is not None]
    return [f"{model.shape.name} has no experts: {', '.join(told)}."] if told else []


def _listed(items: Iterable[str]) -> str:
    found = list(dict.fromkeys(items))
    more = f" and {len(found) - _CELLS_NAMED} more" if len(found) > _CELLS_NAMED else ""
    return ", ".join(found[:_CELLS_NAMED]) + more
