"""llama-bench's rows, and the machine that explains them: llama.cpp's rates fitted to what it measured of itself.

Few rows do: each rate has a prior (what a GPU and a link of that name are taken to reach), and leaves it as far as the
rows ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import least_squares

from executor.arrays import Floats
from executor.devices.factory import DeviceOptions
from executor.devices.known import KnownGpu, known_gpus
from executor.errors import HprofError
from executor.model import Model
from executor.placement.place import EVERYTHING_RESIDENT
from executor.policies import FULL
from profiler.importers.llama_bench import usable_rows
from profiler.importers.llama_bench.outputs import parse, read_text
from profiler.importers.llama_bench.rows import BenchRow
from profiler.manifest import is_number
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest
from profiler.predicting.expert_use import ExpectedUse, use_of_sigma
from profiler.predicting.llama_cpp import LlamaCppCosts, LlamaCppMachine
from profiler.predicting.predictor import ArmPredictor

_SURE: Final = 0.03  # of a row's time, relative: about what llama-bench's repetitions scatter by
# How far each rate may be from its prior, as the logarithm's standard deviation. Links are known best.
_PRIORS: Final[Mapping[str, float]] = {
    "gemm_tflop_s": 0.5,
    "experts_tflop_s": 0.5,
    "memory_gb_s": 0.4,
    "launch_us": 0.5,
    "link_gb_s": 0.04,
    "split_us": 0.3,
    "host_memory_gb_s": 0.4,
}
_SIGMA: Final = 1.5  # of popularity: about what published routers have
_SIGMA_MAY_VARY: Final = 0.5
_STEP: Final = 1e-2
_SAME_SIZE: Final = 1.25  # llama.cpp counts tied embeddings and extra heads otherwise than a preset does
_PINNED: Final = (None, "none", "dio", 0, "0", False)


@dataclass(frozen=True)
class LlamaRow:
    """What llama-bench measured of a model in one cell: `ns` a test. `router` names the file whose router chose."""

    plan: RunPlan
    ns: float
    n_threads: int | None
    router: str

    @property
    def cell(self) -> GridPoint:
        return self.plan.request.cells[0]

    @property
    def has_host_weights(self) -> bool:
        return bool(self.plan.setups[0].placement.host)

    @cached_property
    def moe_layers(self) -> list[int]:
        return [layer for layer, shape in enumerate(self.plan.model.shape.layers) if shape.moe is not None]

    def predicted_ns(self, machine: LlamaCppMachine, use: ExpectedUse | None) -> float:
        """What the test takes on such a machine."""
        placement = self.plan.setups[0].placement
        arm, where = ("off", placement) if placement.host else (FULL, EVERYTHING_RESIDENT)
        costs = LlamaCppCosts(machine, self.n_threads)
        (found,) = ArmPredictor(self.plan, arm, where, costs, use).predict(arm, self.plan.request.cells)
        return (found.prefill_ns or 0.0) + (found.decode_ns or 0.0)


@dataclass(frozen=True, slots=True)
class LlamaFit:
    """`sigmas`: by router, how unequal experts' popularity is. `spread`: twice the root mean square of the misses."""

    machine: LlamaCppMachine
    sigmas: Mapping[str, float]
    spread: float

    def use(self, row: LlamaRow) -> ExpectedUse | None:
        """Which experts ubatches of a row's model use; None where it has none."""
        return _use(row, self.sigmas.get(row.router, _SIGMA))

    def predicted_ns(self, row: LlamaRow) -> float:
        return row.predicted_ns(self.machine, self.use(row))


def read_llama_rows(path: Path, models: Mapping[str, RunRequest]) -> list[LlamaRow]:
    """The rows of a file that say enough; `models` has a request (model and quant type) by the end of a file's name, or
    by "" for any. Rows that copied from pageable memory are left out: their link is another one.

    Raises HprofError where no row is left, or one is of a model of another size.
    """
    rows, _ = usable_rows(parse(read_text(path), str(path)))
    found = list(_rows_of(rows, models, path.stem))
    if not found:
        raise HprofError(f"{path} holds no llama-bench row of this model with pinned weights to fit to (-lm none).")
    return found


def _rows_of(rows: Sequence[BenchRow], models: Mapping[str, RunRequest], origin: str) -> Iterator[LlamaRow]:
    for row in rows:
        settings = row.settings
        name = Path(str(settings.get("model_filename") or "")).name
        request = models.get(name, models.get(""))
        if request is None or row.n_ubatch is None or not row.samples_ns:
            continue
        cell = GridPoint(row.n_prompt, row.n_gen, row.n_ubatch, row.n_depth)
        plan = plan_run(replace(request, cells=(cell,), arms=("off",), placements=(_placement(settings),)))
        _check_size(settings.get("model_n_params"), plan.model, f"{origin}/{name}")
        one = LlamaRow(plan, float(np.mean(row.samples_ns)), _threads(settings), f"{origin}/{name}")
        is_pinned = settings.get("load_mode", settings.get("use_mmap")) in _PINNED
        if is_pinned or not one.has_host_weights:
            yield one


def _check_size(n_told: object, model: Model, origin: str) -> None:
    """Raises HprofError where a row's model is of another size than `model`: its times say nothing of this one's."""
    if is_number(n_told) and not 1 / _SAME_SIZE <= n_told / model.n_parameters <= _SAME_SIZE:
        raise HprofError(
            f"{origin} was measured with a model of {n_told / 1e6:,.0f} million parameters, and {model.shape.name} has "
            f"{model.n_parameters / 1e6:,.0f}: give rows of the model that -m names."
        )


def _placement(settings: Mapping[str, Any]) -> PlacementOptions:
    overrides = str(settings.get("tensor_buft_overrides") or settings.get("override_tensor") or "none")
    n_cpu_moe, n_gpu_layers = (int(settings.get(name) or 0) for name in ("n_cpu_moe", "n_gpu_layers"))
    return PlacementOptions(
        overrides=None if overrides == "none" else overrides,
        n_cpu_moe=n_cpu_moe,
        n_gpu_layers=n_gpu_layers if n_gpu_layers >= 0 else None,
    )


def _threads(settings: Mapping[str, object]) -> int | None:
    value = settings.get("n_threads")
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else None


def fit_llama_rows(rows: Sequence[LlamaRow], prior: LlamaCppMachine) -> LlamaFit:
    """The machine and the routers nearest to the prior that explain the rows. Raises HprofError without rows."""
    if not rows:
        raise HprofError("there is no llama-bench row to fit to.")
    threads = [row.n_threads for row in rows if row.n_threads is not None]
    prior = replace(prior, host_threads=max(threads) if threads else None)
    routers = sorted({row.router for row in rows if row.moe_layers})
    widths = np.array([*_PRIORS.values(), *[_SIGMA_MAY_VARY] * len(routers)])

    def fit_of(moves: Floats) -> tuple[LlamaCppMachine, dict[str, float]]:
        factors = np.exp(moves * widths)
        rates = {name: getattr(prior, name) * float(f) for name, f in zip(_PRIORS, factors, strict=False)}
        sigmas = {name: _SIGMA * float(f) for name, f in zip(routers, factors[len(_PRIORS) :], strict=True)}
        return replace(prior, **rates), sigmas

    def misses(moves: Floats) -> Floats:
        machine, sigmas = fit_of(moves)
        uses = {name: _use(next(row for row in rows if row.router == name), sigma) for name, sigma in sigmas.items()}
        logs = [np.log(row.predicted_ns(machine, uses.get(row.router)) / row.ns) for row in rows]
        return np.concatenate([np.array(logs) / _SURE, moves])

    found = least_squares(misses, np.zeros(len(widths)), diff_step=_STEP)
    machine, sigmas = fit_of(found.x)
    missed = np.expm1(found.fun[: len(rows)] * _SURE)
    return LlamaFit(machine, sigmas, 2 * float(np.sqrt(np.mean(missed**2))))


def gpu_of(path: Path) -> KnownGpu | None:
    """The GPU that a file's rows name, where the table of known ones has it."""
    rows, _ = usable_rows(parse(read_text(path), str(path)))
    words = {str(row.settings.get("gpu_info") or "").lower() for row in rows}
    for word in words:
        name = "".join(c for c in word if c.isalnum())
        for vendor in ("nvidia", "geforce", "amd", "radeon"):
            name = name.replace(vendor, "")
        if name in known_gpus():
            return known_gpus()[name]
    return None


def two_rows(rows: Sequence[LlamaRow]) -> list[LlamaRow]:
    """Two rows to fit a model by: its longest prompt at the smallest ubatch from 512 on, all resident, and the same
    with experts on the host; for a dense model a token with its weights on the host, which no prompt tells of."""
    host = [row for row in rows if row.has_host_weights]
    resident = [row for row in rows if not row.has_host_weights]
    of_experts = any(row.moe_layers for row in rows)
    chosen = [_longest_prompt(resident), _longest_prompt(host) if of_experts else _most_tokens(host)]
    return [row for row in chosen if row is not None]


def _longest_prompt(rows: Sequence[LlamaRow]) -> LlamaRow | None:
    prompts = [row for row in rows if row.cell.n_prompt and row.cell.n_ubatch >= 512]
    return min(prompts, key=lambda row: (-row.cell.n_prompt, row.cell.n_ubatch), default=None)


def _most_tokens(rows: Sequence[LlamaRow]) -> LlamaRow | None:
    tokens = [row for row in rows if row.cell.n_gen]
    return max(tokens, key=lambda row: (row.n_threads or 0, row.cell.n_gen), default=None)


def _use(row: LlamaRow, sigma: float) -> ExpectedUse | None:
    if not row.moe_layers:
        return None
    moe = row.plan.model.shape.layers[row.moe_layers[0]].moe
    assert moe is not None
    return use_of_sigma(sigma, len(row.moe_layers), moe.n_experts, moe.n_used)


def request_of(model: str, quant: str | None = None, layers: int | None = None) -> RunRequest:
    """A request of any cell of a model, to be filled from rows."""
    return RunRequest((GridPoint(1, 1, 1, 0),), DeviceOptions("sim"), model=model, quant=quant, layers=layers)
