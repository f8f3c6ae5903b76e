"""llama-bench's rows, and the machine that explains them: llama.cpp's rates fitted to what it measured of itself.

Few rows do: each rate has a prior (what a GPU and a link of that name are taken to reach), and leaves it as far as the
rows ask for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from executor.arrays import Floats
from executor.devices.factory import DeviceOptions
from executor.devices.known import KnownGpu, known_gpus
from executor.errors import HprofError
from executor.model import Model
from executor.placement.place import EVERYTHING_RESIDENT
from executor.policies import FULL
from executor.units import format_count
from profiler.capture import Capture
from profiler.importers.llama_bench import usable_rows
from profiler.importers.llama_bench.outputs import parse, read_text
from profiler.importers.llama_bench.rows import BenchRow
from profiler.manifest import is_number
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest
from profiler.predicting.calibrate import disagreement
from profiler.predicting.expert_use import ExpectedUse, use_of_sigma
from profiler.predicting.least_squares import least_misses
from profiler.predicting.llama_cpp import LlamaCppCosts, LlamaCppMachine
from profiler.predicting.measured import MeasuredCell, Miss, told_passes
from profiler.predicting.predictor import ArmPredictor, Prediction

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
_MOST_FLOP_PER_NS: Final = 1e9  # of all experts, of which a token uses few: some hundred times a large machine's
_THRESHOLD: Final = "GGML_OP_OFFLOAD_MIN_BATCH"
_SETTINGS: Final[Mapping[str, str]] = {
    "-ncmoe": "n_cpu_moe",
    "--n-cpu-moe": "n_cpu_moe",
    "-ngl": "n_gpu_layers",
    "--n-gpu-layers": "n_gpu_layers",
    "-ot": "tensor_buft_overrides",
    "--override-tensor": "tensor_buft_overrides",
    "-t": "n_threads",
    "--threads": "n_threads",
    "-lm": "load_mode",
    "--load-mode": "load_mode",
    "-pw": "prefetch_weights",
}
"""llama-bench's flags that decide what a test takes, as its rows name them."""
_PINNED: Final = (None, "none", "dio", 0, "0", False)


@dataclass(frozen=True)
class LlamaRow:
    """What llama-bench measured of a model in one cell: `ns` a test. `router` names the file whose router chose, and
    `label` the arm of the capture that it is of."""

    plan: RunPlan
    ns: float
    n_threads: int | None
    router: str
    label: str = ""
    prefetches: bool = False

    @property
    def cell(self) -> GridPoint:
        return self.plan.request.cells[0]

    @property
    def has_host_weights(self) -> bool:
        return bool(self.plan.setups[0].placement.host)

    @cached_property
    def moe_layers(self) -> list[int]:
        return [layer for layer, shape in enumerate(self.plan.model.shape.layers) if shape.moe is not None]

    def predicted(self, machine: LlamaCppMachine, use: ExpectedUse | None) -> Prediction:
        """The test on such a machine."""
        placement = self.plan.setups[0].placement
        streamed = "on" if self.prefetches else "off"
        arm, where = (streamed, placement) if placement.host else (FULL, EVERYTHING_RESIDENT)
        costs = LlamaCppCosts(machine, self.n_threads)
        (found,) = ArmPredictor(self.plan, arm, where, costs, use).predict(self.label or arm, self.plan.request.cells)
        return found

    def predicted_ns(self, machine: LlamaCppMachine, use: ExpectedUse | None) -> float:
        """What the test takes on such a machine."""
        found = self.predicted(machine, use)
        return (found.prefill_ns or 0.0) + (found.decode_ns or 0.0)

    def is_same_test(self, other: LlamaRow) -> bool:
        """Whether both were run alike."""
        return (self.cell, self.n_threads, self.plan.setups[0].placement.host) == (
            other.cell,
            other.n_threads,
            other.plan.setups[0].placement.host,
        )


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

    def miss(self, row: LlamaRow, fitted: Sequence[LlamaRow]) -> Miss:
        """The row's prediction beside what it measured; `fitted`: the rows that this was fitted to."""
        cell = row.cell
        prefill, decode = (row.ns, None) if not cell.n_gen else (None, row.ns) if not cell.n_prompt else (None, None)
        seen = MeasuredCell(ttft_ns=None, prefill_ns=prefill, decode_ns=decode, bytes_h2d=None, n=1)
        return Miss(row.predicted(self.machine, self.use(row)), seen, any(map(row.is_same_test, fitted)))


def read_llama_rows(path: Path, models: Mapping[str, RunRequest]) -> list[LlamaRow]:
    """The rows of a file that say enough; `models` has a request (model and quant type) by the end of a file's name, or
    by "" for any. Rows that copied from pageable memory are left out: their link is another one.

    Raises HprofError where no row is left, or one is of a model of another size.
    """
    rows, _ = usable_rows(parse(read_text(path), str(path)))
    found = list(_rows_of(rows, models, str(path)))
    if not found:
        raise HprofError(f"{path} holds no llama-bench row of this model with pinned weights to fit to (-lm none).")
    return found


def captured_rows(capture: Capture, request: RunRequest, router: str | None = None) -> list[LlamaRow]:
    """The same of a capture of llama-bench, imported or run by hprof, an arm and cell each: their means.

    `router`: what its rows' is called; None: by the capture. Raises HprofError where a capture is of something else.
    """
    manifest = capture.manifest
    if manifest.source != "llama-bench":
        raise HprofError(
            f"{capture.path} is of {manifest.source}, and --for llama.cpp is held against llama-bench's figures: "
            "import its rows (hprof import rows.jsonl), or leave --for out."
        )
    shared, found = manifest.extra.get("llama_bench"), []
    for arm in manifest.arms:
        settings = {**(shared if isinstance(shared, dict) else {}), **manifest.placement, **_told_by(arm.options)}
        rows = list(_bench_rows(capture, arm.name, settings))
        least, ahead = settings.get(_THRESHOLD), str(settings.get("prefetch_weights")) in ("1", "True")
        asked = request
        if str(least).isdigit():
            asked = replace(request, policy=replace(request.policy, op_offload_min_batch=int(str(least))))
        of_arm = _rows_of(rows, {"": asked}, router or capture.name)
        found += [replace(row, label=arm.name, prefetches=ahead) for row in of_arm]
    if not found:
        raise HprofError(
            f"{capture.path} holds no llama-bench figure of this model with pinned weights to be held against: run it "
            "with -lm none."
        )
    return found if router is None else [replace(row, router=router) for row in found]


def _told_by(options: Mapping[str, Any]) -> dict[str, Any]:
    """An arm's own settings: those that its rows named, or the words and variables that it was run with."""
    found = {name: value for name, value in options.items() if name not in ("flags", "environment", "build")}
    words, variables = options.get("flags"), options.get("environment")
    if isinstance(words, list):
        found |= {_SETTINGS[flag]: value for flag, value in pairwise(words) if flag in _SETTINGS}
    return found | (variables if isinstance(variables, dict) else {})


def _bench_rows(capture: Capture, arm: str, settings: dict[str, Any]) -> Iterator[BenchRow]:
    passes = told_passes(capture)
    of_arm = passes[passes["arm"] == arm]
    for key, rows in of_arm.groupby(["n_prompt", "n_gen", "n_depth", "n_ubatch"]):
        n_prompt, n_gen, n_depth, n_ubatch = (int(number) for number in cast("tuple[float, ...]", key))
        ns = rows["prefill_ns" if n_prompt else "decode_ns"].dropna()
        if len(ns) and not (n_prompt and n_gen):  # of both together no row says which part took what
            yield BenchRow(n_prompt, n_gen, n_depth, n_ubatch, tuple(map(int, ns)), None, None, None, settings)


def _rows_of(rows: Sequence[BenchRow], models: Mapping[str, RunRequest], origin: str) -> Iterator[LlamaRow]:
    for row in rows:
        settings = row.settings
        name = Path(str(settings.get("model_filename") or "")).name
        request = models.get(name, models.get(""))
        if request is None or row.n_ubatch is None or not row.samples_ns:
            continue
        cell = GridPoint(row.n_prompt, row.n_gen, row.n_ubatch, row.n_depth)
        plan = plan_run(replace(request, cells=(cell,), arms=("off",), placements=(_placement(settings),)))
        _check_size(settings.get("model_n_params"), plan.model, request.layers, f"{origin}/{name}")
        _check_speed(min(row.samples_ns), cell, plan.model, f"{origin}/{name}")
        one = LlamaRow(plan, float(np.mean(row.samples_ns)), _threads(settings), f"{origin}/{name}")
        is_pinned = settings.get("load_mode", settings.get("use_mmap")) in _PINNED
        if is_pinned or not one.has_host_weights:
            yield one


def _check_size(n_told: object, model: Model, cut_to: int | None, origin: str) -> None:
    """Raises HprofError where a row's model is of another size than `model`: its times say nothing of this one's.

    cut_to: `--layers`, where `model` was cut by it.
    """
    if not is_number(n_told) or _is_as_large(n_told, model.n_parameters):
        return
    ours, fix = model.shape.name, "give rows of the model that -m names"
    if cut_to is not None:
        ours = f"{ours} cut to {format_count(cut_to, 'layer')}"
        fix = f"leave --layers {cut_to} out, or {fix}"
    elif (n_layers := _layers_of_size(n_told, model)) is not None:
        fix = f"{fix}, or --layers {n_layers} where theirs was cut to so many"
    raise HprofError(
        f"{origin} was measured with a model of {n_told / 1e6:,.0f} million parameters, and {ours} has "
        f"{model.n_parameters / 1e6:,.0f}: {fix}."
    )


def _is_as_large(n_told: float, n_parameters: float) -> bool:
    return 1 / _SAME_SIZE <= n_told / n_parameters <= _SAME_SIZE


def _layers_of_size(n_told: float, model: Model) -> int | None:
    """To how many of its layers the model would have to be cut to be so large; None where no number is near."""
    sizes = Counter[int | None]()
    for tensor in model.tensors.values():
        sizes[tensor.layer] += math.prod(tensor.shape)
    totals = [sizes[None] + sum(sizes[layer] for layer in range(n)) for n in range(1, len(model.shape.layers))]
    nearest = min(range(len(totals)), key=lambda at: abs(totals[at] - n_told), default=None)
    return nearest + 1 if nearest is not None and _is_as_large(n_told, totals[nearest]) else None


def _check_speed(ns: float, cell: GridPoint, model: Model, origin: str) -> None:
    """Raises HprofError where a repetition was faster than any machine is: a fit would follow it."""
    n_tokens = cell.n_prompt + cell.n_gen
    if not ns * _MOST_FLOP_PER_NS >= 2 * model.n_parameters * n_tokens:
        raise HprofError(
            f"{origin} says that {format_count(n_tokens, 'token')} took {ns:g} ns, which no machine does: leave that "
            "row of llama-bench's out."
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

    moves, left = least_misses(misses, np.zeros(len(widths)), diff_step=_STEP)
    machine, sigmas = fit_of(moves)
    missed = np.expm1(left[: len(rows)] * _SURE)
    return LlamaFit(machine, sigmas, 2 * float(np.sqrt(np.mean(missed**2))))


def disagreeing_files(
    names: Sequence[str], files: Sequence[Sequence[LlamaRow]], together: LlamaFit, prior: LlamaCppMachine
) -> list[str]:
    """A sentence for the prompts and one for the tokens of each file that the others pull away from its own rows.

    files: the rows of each. together: the fit to the rows of all.
    """
    found = []
    for name, rows in zip(names, files, strict=True) if len(files) > 1 else ():
        alone = fit_llama_rows(rows, prior)
        prompts, tokens = ([row for row in rows if not getattr(row.cell, other)] for other in ("n_gen", "n_prompt"))
        for what, of_kind in (("prompts are", prompts), ("tokens are", tokens)):
            if of_kind:
                by_all, own = ([fit.predicted_ns(row) / row.ns - 1 for row in of_kind] for fit in (together, alone))
                found.append(disagreement(name, what, by_all, own))
    return [*filter(None, found)]


def gpu_of(path: Path) -> KnownGpu | None:
    """The GPU that a file's rows name, where the table of known ones has it."""
    rows, _ = usable_rows(parse(read_text(path), str(path)))
    return known_gpu({str(row.settings.get("gpu_info") or "") for row in rows})


def known_gpu(names: Collection[str]) -> KnownGpu | None:
    """The first that the table of known ones has, of what a program calls GPUs."""
    for word in sorted(name.lower() for name in names):
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
