"""What `hprof advise`, and `hprof predict` for llama.cpp, rest on: the request, what steps cost for the engine that is
asked about, and how sure that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from executor.devices.factory import default_kind, sim_machine
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from executor.models.load import load_model
from profiler.capture import Capture
from profiler.cli.asked import AskedOptions
from profiler.cli.captured_request import PLACED_BY, captured_options, overlaid, predicted_request
from profiler.cli.machine_options import refuse_rates, told_rates
from profiler.cli.probe_choice import ProbeChoice, choose_probe, costs_of
from profiler.planning.plan import plan_run
from profiler.planning.request import RunRequest
from profiler.predicting.calibrate import Source, calibrate
from profiler.predicting.costs import Costs, RateCosts
from profiler.predicting.expert_use import ExpectedUse
from profiler.predicting.fitted import FittedCosts
from profiler.predicting.llama_cpp import LlamaCppCosts, LlamaCppMachine
from profiler.predicting.llama_rows import fit_llama_rows, gpu_of, known_gpu, read_llama_rows, request_of
from profiler.predicting.probed import ProbedCosts

_DENSE_ARMS: Final = "off,on,cpu"
_MOE_ARMS: Final = "off,on,hot,gated,cpu,cache,hot+cache"
_DIVIDING_ARMS: Final = ("both", "both+cache")
_UPSTREAM_ARMS: Final = "off,cpu"
_LLAMA_CPP_ARMS: Final = ("off", "off-whole", "cpu", "full")
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


def advice_ground(asked: AskedOptions) -> Ground:
    """What the options say, and the captures, probe or rows that they name. Raises HprofError where they contradict."""
    ground, rows = _of_hprof(asked, searches=True)
    ground = _of_llama_cpp(ground, rows, asked) if asked.engine == "llama.cpp" else ground
    return replace(ground, notes=[*ground.notes, *_model_notes(ground.request)])


def llama_cpp_ground(asked: AskedOptions) -> Ground:
    """The same of what options ask of llama.cpp, placement and all. Raises HprofError for arms that it lacks."""
    ground, rows = _of_hprof(asked, searches=False)
    lacking = [arm for arm in ground.request.arms if arm not in (*_LLAMA_CPP_ARMS, *_PREFETCH_BUILD_ARMS.split(","))]
    if lacking:
        raise HprofError(
            f"llama.cpp has nothing like arm '{lacking[0]}': ask for {', '.join(_LLAMA_CPP_ARMS)}, or of builds with "
            f"-pw and --moe-cache-mib for {_PREFETCH_BUILD_ARMS.replace(',', ', ')}."
        )
    return _of_llama_cpp(ground, rows, asked)


def llama_cpp_rates(asked: AskedOptions, gpu: str) -> tuple[SimMachine, list[str]]:
    """The rates of a machine on which llama.cpp ran, and what must be said of them: as the options say, the GPU's
    otherwise by its name, where the table has it."""
    plain, _ = _of_hprof(asked.but(fits=()), searches=False)
    known = None if asked.names_gpu else known_gpu([gpu])
    if known is None:
        return plain.rates, plain.notes
    rates = replace(plain.rates, gemm_tflop_s=known.gemm_tflop_s, memory_gb_s=known.memory_gb_s)
    told = f"The link is taken to reach {rates.link_gb_s:g} GB/s: --link tells another."
    return rates, [] if asked.names_link else [told]


def _model_notes(request: RunRequest) -> list[str]:
    """What is approximated of the model."""
    model = load_model(request.model, request.quant, request.layers, request.seed, computes=False)
    return [f"{note}." for note in model.shape.notes]


def _of_hprof(asked: AskedOptions, *, searches: bool) -> tuple[Ground, list[Path]]:
    """hprof's own ground, and the files of rows that `--fit` names. `searches`: where weights lie is no option."""
    rows = [Path(path) for path in asked.fits if Path(path).is_file()]
    if rows and asked.engine != "llama.cpp":
        raise HprofError(f"{rows[0]} is a file, and llama-bench's rows tell of llama.cpp: add --for llama.cpp.")
    captures = {path: Capture.open(path) for path in asked.fits if not Path(path).is_file()}
    seen = {path: captured_options(capture.manifest, path) for path, capture in captures.items()}
    if captures and asked.probe is not None:
        raise HprofError("--probe and --fit exclude each other: give one of them.")
    if captures:
        refuse_rates(asked, idle=("gpu", "device_memory") if searches else ("device_memory",))
    kind = asked.device or (default_kind() if asked.verify else None)
    choice = ProbeChoice(None) if captures else choose_probe(kind, asked)
    options = choice.in_its_dtype(overlaid(next(iter(seen.values()), None), asked))
    if searches:
        options = options.but(**PLACED_BY)
    if not asked.names_arms:
        options = options.but(arms=_usual_arms(options, asked), prefetch_weights=None)
    request = predicted_request(options)
    may_divide = not asked.names_arms and asked.engine == "hprof"
    if choice.probe is not None:
        costs, rates = costs_of(choice.probe, request.device.link_gb_s), choice.probe.rates()
        request = _with_dividing(request, costs) if may_divide else request
        return Ground(request, costs, None, dict(choice.probe.spread), list(choice.notes), rates), rows
    if not captures:
        told = None if rows and not asked.names_gpu else told_rates(kind or "sim", asked, choice.notes)
        machine = sim_machine(request.device)
        plan = plan_run(replace(request, arms=("off",)))
        notes = [*filter(None, [told]), *choice.notes]
        return Ground(request, RateCosts(machine, plan.session.dtype), None, {}, notes, machine), rows
    found = calibrate([Source(captures[path], plan_run(predicted_request(seen[path]))) for path in captures])
    link = request.device.link_gb_s if asked.names_link else None
    fitted = found.costs if link is None else found.costs.with_link(link)
    reached = fitted.rates.machine if link is None else replace(fitted.rates.machine, link_gb_s=link)
    request = _with_dividing(request, fitted) if may_divide else request
    return Ground(request, fitted, found.use, found.spread, [], reached), rows


def _with_dividing(request: RunRequest, costs: FittedCosts | ProbedCosts) -> RunRequest:
    """With the arms that share experts between CPU and link, where something says what both reach at once."""
    return replace(request, arms=(*request.arms, *_DIVIDING_ARMS)) if costs.knows_sharing else request


def _usual_arms(options: AskedOptions, asked: AskedOptions) -> str:
    """The arms for the model of `options`, which may be a capture's, where `asked` names none."""
    of_llama_cpp = asked.engine == "llama.cpp"
    if of_llama_cpp and not asked.prefetch_build:
        return _UPSTREAM_ARMS
    if not load_model(options.model, options.quant, options.layers, options.seed, computes=False).has_experts:
        return _DENSE_ARMS
    return _PREFETCH_BUILD_ARMS if of_llama_cpp else _MOE_ARMS


def _of_llama_cpp(ground: Ground, files: Sequence[Path], asked: AskedOptions) -> Ground:
    """The same request, by llama.cpp's scheduler and kernels."""
    request, rates = ground.request, ground.rates
    known = gpu_of(files[0]) if files and not asked.names_gpu else None
    if known is not None:
        rates = replace(rates, gemm_tflop_s=known.gemm_tflop_s, memory_gb_s=known.memory_gb_s)
    prior, n_threads = LlamaCppMachine.of(rates), request.device.n_threads
    if not files:
        whose = "the rates that the capture shows" if isinstance(ground.costs, FittedCosts) else "these rates"
        note = f"llama.cpp's kernels are taken to reach a usual share of {whose}, which is rough"
        notes = [*ground.notes, f"{note}: --fit ROWS, a file of llama-bench's, would say more."]
        return replace(ground, costs=LlamaCppCosts(prior, n_threads), spread={}, notes=notes)
    of_model = request_of(request.model, request.quant, request.layers)
    rows = [row for file in files for row in read_llama_rows(file, {"": of_model})]
    fit = fit_llama_rows(rows, prior)
    spread: dict[str, float | None] = {"ttft": fit.spread, "decode": fit.spread}
    costs = LlamaCppCosts(fit.machine, n_threads)
    return replace(ground, costs=costs, use=fit.use(rows[0]), spread=spread)
