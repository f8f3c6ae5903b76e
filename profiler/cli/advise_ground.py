"""What `hprof advise` rests on: the request, what steps cost for the engine that is asked about, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from executor.devices.factory import default_kind, sim_machine
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from executor.models.load import load_model
from profiler.capture import Capture
from profiler.cli.captured_request import captured_values, fitted_request, overlaid, predicted_request
from profiler.cli.machine_options import told_rates
from profiler.cli.probe_choice import ProbeChoice, choose_probe, costs_of
from profiler.planning.plan import plan_run
from profiler.planning.request import RunRequest
from profiler.predicting.calibrate import Source, calibrate
from profiler.predicting.costs import Costs, RateCosts
from profiler.predicting.expert_use import ExpectedUse
from profiler.predicting.fitted import FittedCosts
from profiler.predicting.llama_cpp import LlamaCppCosts, LlamaCppMachine
from profiler.predicting.llama_rows import fit_llama_rows, gpu_of, read_llama_rows, request_of
from profiler.predicting.probed import ProbedCosts

_DENSE_ARMS: Final = "off,on,cpu"
_MOE_ARMS: Final = "off,on,hot,gated,cpu,cache,hot+cache"
_DIVIDING_ARMS: Final = ("both", "both+cache")
_UPSTREAM_ARMS: Final = "off,cpu"
_PREFETCH_BUILD_ARMS: Final = "off,on,gated,cpu,cache,on+cache,gated+cache"


@dataclass(frozen=True, slots=True)
class Ground:
    """`spread`: by figure, how far off the costs are; empty where nothing says it. `notes` must be said first.

    `rates`: what the machine reaches, whatever the engine.
    """

    request: RunRequest
    costs: Costs
    use: ExpectedUse | None
    spread: dict[str, float | None]
    notes: list[str]
    rates: SimMachine


def advice_ground(values: Mapping[str, Any], given: Mapping[str, Any]) -> Ground:
    """What the options say, and the captures, probe or rows that they name. Raises HprofError where they contradict."""
    rows = [Path(path) for path in values["fits"] if Path(path).is_file()]
    captures = [path for path in values["fits"] if not Path(path).is_file()]
    of_upstream = values["engine"] == "llama.cpp"
    if rows and not of_upstream:
        raise HprofError(f"{rows[0]} is a file, and llama-bench's rows tell of llama.cpp: add --for llama.cpp.")
    ground = _of_hprof(values, given, captures, is_usual=bool(rows) and "gpu" not in given)
    ground = _of_llama_cpp(ground, rows, given) if of_upstream else ground
    return replace(ground, notes=[*ground.notes, *_model_notes(ground.request)])


def _model_notes(request: RunRequest) -> list[str]:
    """What is approximated of the model."""
    model = load_model(request.model, request.quant, request.layers, request.seed, computes=False)
    return [f"{note}." for note in model.shape.notes]


def _of_hprof(
    values: Mapping[str, Any], given: Mapping[str, Any], fits: Sequence[str], *, is_usual: bool = False
) -> Ground:
    """`is_usual`: the machine's rates need not be known, since others say more."""
    captures = {path: Capture.open(path) for path in fits}
    seen = {path: captured_values(capture.manifest, path) for path, capture in captures.items()}
    if captures and values["probe"] is not None:
        raise HprofError("--probe and --fit exclude each other: give one of them.")
    kind = values["device"] or (default_kind() if values["verify"] else None)
    choice = ProbeChoice(None) if captures else choose_probe(kind, values, given)
    asked = choice.asked(overlaid(next(iter(seen.values()), None), values, given), given)
    asked = {**asked, "override_tensor": (), "n_cpu_moe": (), "n_gpu_layers": (), "vram_budget": None}
    is_free = not {"arms", "prefetch_weights"} & given.keys()
    if is_free:
        asked |= {"arms": _usual_arms(asked, values), "prefetch_weights": None}
    request = predicted_request(asked)
    if choice.probe is not None:
        costs, rates = costs_of(choice.probe, request.device.link_gb_s), choice.probe.rates()
        request = _with_dividing(request, costs) if is_free else request
        return Ground(request, costs, None, dict(choice.probe.spread), list(choice.notes), rates)
    if not captures:
        told = None if is_usual else told_rates(kind or "sim", given, choice.notes)
        machine = sim_machine(request.device)
        plan = plan_run(replace(request, arms=("off",)))
        notes = [*filter(None, [told]), *choice.notes]
        return Ground(request, RateCosts(machine, plan.session.dtype), None, {}, notes, machine)
    found = calibrate([Source(captures[path], plan_run(fitted_request(seen[path]))) for path in captures])
    link = request.device.link_gb_s if {"link", "link_gb_s"} & given.keys() else None
    fitted = found.costs if link is None else found.costs.with_link(link)
    request = _with_dividing(request, fitted) if is_free else request
    return Ground(request, fitted, found.use, found.spread, [], fitted.rates.machine)


def _with_dividing(request: RunRequest, costs: FittedCosts | ProbedCosts) -> RunRequest:
    """With the arms that share experts between CPU and link, where something says what both reach at once."""
    return replace(request, arms=(*request.arms, *_DIVIDING_ARMS)) if costs.knows_sharing else request


def _usual_arms(asked: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    of_llama_cpp, has_prefetch = values["engine"] == "llama.cpp", values["prefetch_build"]
    if of_llama_cpp and not has_prefetch:
        return _UPSTREAM_ARMS
    named = (asked[name] for name in ("model", "quant", "layers", "seed"))
    if not load_model(*named, computes=False).has_experts:
        return _DENSE_ARMS
    return _PREFETCH_BUILD_ARMS if of_llama_cpp else _MOE_ARMS


def _of_llama_cpp(ground: Ground, files: Sequence[Path], given: Mapping[str, Any]) -> Ground:
    """The same request, by llama.cpp's scheduler and kernels."""
    request, rates = ground.request, ground.rates
    known = gpu_of(files[0]) if files and "gpu" not in given else None
    if known is not None:
        rates = replace(rates, gemm_tflop_s=known.gemm_tflop_s, memory_gb_s=known.memory_gb_s)
    prior, n_threads = LlamaCppMachine.of(rates), request.device.n_threads
    if not files:
        note = "llama.cpp's kernels are taken to reach a usual share of these rates, which is rough"
        notes = [*ground.notes, f"{note}: --fit ROWS, a file of llama-bench's, would say more."]
        return replace(ground, costs=LlamaCppCosts(prior, n_threads), spread={}, notes=notes)
    of_model = request_of(request.model, request.quant, request.layers)
    rows = [row for file in files for row in read_llama_rows(file, {"": of_model})]
    fit = fit_llama_rows(rows, prior)
    spread: dict[str, float | None] = {"ttft": fit.spread, "decode": fit.spread}
    costs = LlamaCppCosts(fit.machine, n_threads)
    return replace(ground, costs=costs, use=fit.use(rows[0]), spread=spread)
