"""The plan of a run: a request that was checked against its model before anything is written, loaded or reserved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from executor.devices.factory import check_present
from executor.errors import HprofError
from executor.model import Model, MoeFfn
from executor.models.load import load_model
from executor.policies import make_policy
from executor.session import SessionOptions
from profiler.pass_kernels import check_cupti
from profiler.planning.memory import BudgetedPlacement, check_needs, layers_on_host
from profiler.planning.placed_arms import PlacedArms, device_of_layers, placed_arms, under_budget
from profiler.planning.request import RunRequest, distinct_cells
from profiler.planning.warnings import left_out, plan_warnings, told_how_to_join

if TYPE_CHECKING:
    from executor.routing.routers import Routing

MAX_CELLS: Final = 512
MAX_UBATCHES: Final = 1_000_000  # of one pass, decode steps included
DTYPES: Final = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A request that can be run; its cells are distinct ones."""

    request: RunRequest
    model: Model
    setups: tuple[PlacedArms, ...]
    session: SessionOptions
    routing_label: str | None
    warnings: tuple[str, ...]


def plan_run(request: RunRequest, most_cells: int = MAX_CELLS) -> RunPlan:
    """Open the model's header, decide placements, and check that all of it fits.

    Raises HprofError, one sentence, for what cannot work.
    """
    _check_grid(request, most_cells)
    asked, request = request.cells, replace(request, cells=tuple(distinct_cells(request.cells)))
    for arm in request.arms:
        make_policy(arm, request.policy)
    computes = request.device.kind != "sim"
    model = load_model(request.model, request.quant, request.layers, request.seed, computes=computes)
    model = replace(model, shape=replace(model.shape, keeps_rows=model.shape.keeps_rows or request.keeps_rows))
    _check_devices(request, model)
    routing = _routing(request, model)
    session = _session_options(request, model, routing)
    setups = placed_arms(request, model, session)
    with told_how_to_join(request):
        for setup in setups:
            check_needs(
                model,
                setup.session_placement,
                setup.arms,
                session,
                request.cells,
                all_logits=request.all_logits,
                budgeted=_budgeted(request, model, session, setup),
            )
    label = None if routing is None else routing.label
    warnings = [*left_out(asked, request.cells), *plan_warnings(request, model, setups)]
    return RunPlan(request, model, setups, session, label, tuple(warnings))


def _budgeted(
    request: RunRequest, model: Model, session: SessionOptions, setup: PlacedArms
) -> BudgetedPlacement | None:
    """How the arms would lie under another budget; None where no budget placed them."""
    if setup.budgeted is None:
        return None
    return BudgetedPlacement(
        setup.budgeted.budget, lambda other: under_budget(request, model, session, setup.arms, other).by_arm
    )


def _check_grid(request: RunRequest, most_cells: int) -> None:
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
    if n_cells > most_cells:
        raise HprofError(
            f"the grid has {n_cells:,} cells and hprof runs up to {most_cells:,}: give fewer -p -n -ub -d -ot."
        )


def _check_devices(request: RunRequest, model: Model) -> None:
    check_present(request.device)
    if request.recorder == "cupti":
        check_cupti(request.device.kind)
    device_of_layers(request, model)


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
    from executor.routing.spec import default_routing, routing_from_spec

    sizes = {(moe.n_experts, moe.n_used) for moe in layers.values()}
    if len(sizes) > 1:
        asked = f"--routing {request.routing[:80]}" if request.routing else "routing"
        raise HprofError(f"{asked}: {model.shape.name} has layers of different expert counts.")
    [(n_experts, n_used)] = sizes
    spec = request.routing or default_routing(n_experts)
    return routing_from_spec(spec, layers=layers, n_experts=n_experts, n_used=n_used, seed=request.seed)


def _session_options(request: RunRequest, model: Model, routing: Routing | None) -> SessionOptions:
    cells, least = request.cells, request.policy.op_offload_min_batch
    default = torch.float32 if request.device.kind == "cpu" else torch.bfloat16
    return SessionOptions(
        device=request.device,
        max_positions=max(cell.n_positions for cell in cells),
        max_ubatch=max(1, *(min(cell.n_ubatch, cell.n_prompt) for cell in cells)),
        max_ubatches=max(cell.n_ubatches for cell in cells),
        dtype=DTYPES.get(request.dtype, default),
        load_mode=request.load_mode,
        madvise=request.madvise,
        tensor_split=request.tensor_split,
        policy=request.policy,
        seed=request.seed,
        routing=routing,
        record_ordering=request.record_ordering,
        inject=request.inject,
        layers_on_host=layers_on_host(model.shape, request.arms, cells, least, all_logits=request.all_logits),
    )
