"""The plan of a run: a request that was checked against its model before anything is written, loaded or reserved.
Holds each placement with its arms (under `--vram-budget` each arm's own), and what a user should know before
believing the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

import torch

from executor.devices.factory import check_present
from executor.errors import HprofError
from executor.fault_names import FAULT_MEANINGS
from executor.memory.budget import DeviceShare, fit_to_budget
from executor.memory.footprint import footprint
from executor.model import Model, MoeFfn
from executor.models.load import load_model
from executor.placement.place import EVERYTHING_RESIDENT, Placement, layers_to_devices, place
from executor.policies import FULL, arm_traits, make_policy
from executor.session import SessionOptions
from profiler.arithmetic.stats import MIN_PAIRS
from profiler.cupti import COST_WARNING, check_cupti
from profiler.planning.memory import check_needs, computes_on_host
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest, distinct_cells

if TYPE_CHECKING:
    from executor.routing.routers import Routing


@dataclass(frozen=True, slots=True)
class PlacedArms:
    """One placement, measured in a session of its own. `suffix` sets its arms' names apart: `on@2`.

    `runs` are the arms in order; one that is named twice runs twice, which shows how much the machine itself varies.
    Under a VRAM budget the arms' placements differ; `placement` is then the first arm's.
    """

    suffix: str
    placement: Placement
    runs: tuple[str, ...]
    budgeted: BudgetPlacements | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """Each arm once."""
        return tuple(dict.fromkeys(self.runs))

    @property
    def labels(self) -> dict[str, str]:
        """The names in the capture, in the order of `runs`, and the arm of each: `off`, `off@copy2`."""
        counts: Counter[str] = Counter()
        labels = {}
        for arm in self.runs:
            counts[arm] += 1
            labels[self.label(arm, counts[arm])] = arm
        return labels

    @property
    def session_placement(self) -> Placement | Mapping[str, Placement]:
        """What the session is given."""
        return self.placement if self.budgeted is None else self.budgeted.by_arm

    def placement_of(self, arm: str) -> Placement:
        return self.placement if self.budgeted is None else self.budgeted.by_arm[arm]

    def label(self, arm: str, copy: int = 1) -> str:
        """The arm's name in the capture."""
        return arm + (f"@copy{copy}" if copy > 1 else "") + self.suffix


@dataclass(frozen=True, slots=True)
class BudgetPlacements:
    """What fits on each device, by arm. `kept_bytes`: what the context, activations and scratch take of it at most."""

    by_arm: Mapping[str, Placement]
    n_bytes: int
    kept_bytes: int


def under_budget(
    request: RunRequest, model: Model, session: SessionOptions, arms: Iterable[str], budget_bytes: int
) -> BudgetPlacements:
    """The most resident layers that fit beside each arm's slots and bank, the states and the activations."""
    policies = {arm: make_policy(arm, request.policy) for arm in arms if not arm_traits(arm).is_resident}
    n_logits = max(cell.n_gen for cell in request.cells) + 1
    counted = footprint(model, EVERYTHING_RESIDENT, (FULL,), session, n_logits, computes_on_host=False)
    device_of = _device_of(request, model)
    shares = [
        DeviceShare([layer for layer, device in enumerate(device_of[:-1]) if device == i], held.total)
        for i, held in enumerate(counted.devices)
    ]
    fitting = fit_to_budget(model, policies, budget_bytes, shares) if policies else {}
    by_arm = {arm: fitting.get(arm, EVERYTHING_RESIDENT) for arm in arms}
    return BudgetPlacements(by_arm, budget_bytes, max(held.total - held.resident for held in counted.devices))


MAX_CELLS: Final = 512
MAX_UBATCHES: Final = 1_000_000  # of one pass, decode steps included
_DTYPES: Final = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A request that can be run; its cells are distinct ones."""

    request: RunRequest
    model: Model
    setups: tuple[PlacedArms, ...]
    session: SessionOptions
    routing_label: str | None
    warnings: tuple[str, ...]


def plan_run(request: RunRequest) -> RunPlan:
    """Open the model's header, decide placements, and check that all of it fits.

    Raises HprofError, one sentence, for what cannot work.
    """
    _check_grid(request)
    asked, request = request.cells, replace(request, cells=tuple(distinct_cells(request.cells)))
    for arm in request.arms:
        make_policy(arm, request.policy)
    model = load_model(request.model, request.quant, request.layers, request.seed)
    _check_devices(request, model)
    routing = _routing(request, model)
    session = _session_options(request, routing)
    setups = _setups(request, model, session)
    with _told_how_to_join(request):
        for setup in setups:
            check_needs(model, setup.session_placement, setup.arms, session, request.cells)
    label = None if routing is None else routing.label
    warnings = [*left_out(asked, request.cells), *plan_warnings(request, model, setups)]
    return RunPlan(request, model, setups, session, label, tuple(warnings))


@contextmanager
def _told_how_to_join(request: RunRequest) -> Iterator[None]:
    """Adds to a refusal what one cannot guess where -ot was meant to add up, as it does for llama-server."""
    try:
        yield
    except HprofError as refused:
        if _n_overrides(request) < 2:
            raise
        raise HprofError(f"{str(refused).removesuffix('.')}; {_JOINING}.") from None


def _n_overrides(request: RunRequest) -> int:
    return len({options.overrides for options in request.placements if options.overrides})


def _check_grid(request: RunRequest) -> None:
    if not request.arms:
        raise HprofError("--arms names no arm: give at least one, for example --arms off,on.")
    if request.repetitions < 1:
        raise HprofError(f"-r {request.repetitions} measures nothing: give 1 or more, and 6 or more for a verdict.")
    if any(cell.n_ubatch < 1 for cell in request.cells):
        raise HprofError("-ub 0: a ubatch holds at least one token; give 1 or more.")
    if any(cell.n_prompt + cell.n_gen == 0 for cell in request.cells):
        raise HprofError("-p 0 with -n 0 has nothing to run: give a prompt (-p), tokens to generate (-n), or both.")
    longest = max(cell.n_ubatches for cell in request.cells)
    if longest > MAX_UBATCHES:
        raise HprofError(
            f"a pass would have {longest:,} ubatches and hprof runs up to {MAX_UBATCHES:,}: "
            "lower -n or -p, or raise -ub."
        )
    n_cells = len(request.cells) * len(request.placements)
    if n_cells > MAX_CELLS:
        raise HprofError(f"the grid has {n_cells} cells and hprof runs up to {MAX_CELLS}: give fewer -p -n -ub -d -ot.")


def _check_devices(request: RunRequest, model: Model) -> None:
    check_present(request.device)
    if request.recorder == "cupti":
        check_cupti(request.device.kind)
    _device_of(request, model)


def _setups(request: RunRequest, model: Model, session: SessionOptions) -> tuple[PlacedArms, ...]:
    """An arm that is resident by design streams nothing, so one placement measures it for all."""
    setups = []
    for number, options in enumerate(request.placements, start=1):
        runs = tuple(arm for arm in request.arms if number == 1 or not arm_traits(arm).is_resident)
        suffix = "" if number == 1 else f"@{number}"
        if runs and options.vram_budget_bytes is not None:
            budgeted = under_budget(request, model, session, runs, options.vram_budget_bytes)
            setups.append(PlacedArms(suffix, budgeted.by_arm[runs[0]], runs, budgeted))
        elif runs:
            setups.append(PlacedArms(suffix, _place(request, model, options), runs))
    return tuple(setups)


def _place(request: RunRequest, model: Model, options: PlacementOptions) -> Placement:
    if options.n_cpu_moe and not any("_exps" in name for name in model.tensors):
        raise HprofError(
            f"-ncmoe {options.n_cpu_moe}: {model.shape.name} has no experts; choose its host weights with -ot."
        )
    return place(
        model.tensors,
        overrides=options.overrides,
        n_cpu_moe=options.n_cpu_moe,
        n_gpu_layers=options.n_gpu_layers,
        device_of=_device_of(request, model),
    )


def _device_of(request: RunRequest, model: Model) -> list[int]:
    """The device of each layer and, last, the output's."""
    return layers_to_devices(len(model.shape.layers), request.tensor_split or (1.0,) * request.device.n_devices)


def _routing(request: RunRequest, model: Model) -> Routing | None:
    layers = {i: layer.ffn for i, layer in enumerate(model.shape.layers) if isinstance(layer.ffn, MoeFfn)}
    is_simulated = request.device.kind == "sim"
    if request.routing == "model" and layers and is_simulated:
        raise HprofError(
            "--routing model: device sim computes nothing, so no router chooses; give another, as lognormal."
        )
    own_router = request.routing == "model" or (request.routing is None and not model.is_synthetic and not is_simulated)
    if not layers or own_router:
        return None
    from executor.routing.spec import DEFAULT_ROUTING, routing_from_spec

    spec = request.routing or DEFAULT_ROUTING
    sizes = {(moe.n_experts, moe.n_used) for moe in layers.values()}
    if len(sizes) > 1:
        raise HprofError(f"--routing {spec[:80]}: {model.shape.name} has layers of different expert counts.")
    [(n_experts, n_used)] = sizes
    return routing_from_spec(spec, layers=layers, n_experts=n_experts, n_used=n_used, seed=request.seed)


def _session_options(request: RunRequest, routing: Routing | None) -> SessionOptions:
    cells = request.cells
    default = torch.float32 if request.device.kind == "cpu" else torch.bfloat16
    return SessionOptions(
        device=request.device,
        max_positions=max(cell.n_positions for cell in cells),
        max_ubatch=max(1, *(min(cell.n_ubatch, cell.n_prompt) for cell in cells)),
        max_ubatches=max(cell.n_ubatches for cell in cells),
        dtype=_DTYPES.get(request.dtype, default),
        load_mode=request.load_mode,
        madvise=request.madvise,
        tensor_split=request.tensor_split,
        policy=request.policy,
        seed=request.seed,
        routing=routing,
        record_ordering=request.record_ordering,
        inject=request.inject,
        computes_on_host=computes_on_host(request.arms, cells, request.policy.op_offload_min_batch),
    )


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
    found += _small_ubatches(request, setups)
    found += _short_prompts(request.cells)
    found += _arms_without_experts(request.arms, model)
    if request.device.kind == "sim" and request.routing is None and model.has_experts and not model.is_synthetic:
        found.append("Device sim computes nothing: a routing model chooses the experts, not the file's own router.")
    return found + _few_pairs(request)


def left_out(asked: Sequence[GridPoint], kept: Sequence[GridPoint]) -> list[str]:
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


def _small_ubatches(request: RunRequest, setups: Sequence[PlacedArms]) -> list[str]:
    """Cells in which no FFN or expert weight is ever copied, so that all arms without a cache do the same."""
    least = request.policy.op_offload_min_batch
    hosts = [setup.placement_of(arm).host for setup in setups for arm in setup.arms]
    cells = [cell for cell in request.cells if (min(cell.n_ubatch, cell.n_prompt) or 1) < least]
    traits = [arm_traits(arm) for arm in request.arms]
    asks = any("op_offload_min_batch" in one.reads for one in traits)
    if not (cells and asks and any("ffn_" in name for host in hosts for name in host)):
        return []
    sizes = _listed(f"-p {cell.n_prompt} -ub {cell.n_ubatch}" for cell in cells)
    but = " but those with a cache" if any(one.has_cache for one in traits) else ""
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
