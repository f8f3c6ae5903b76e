"""What `hprof predict` and `hprof advise` rest on: captures, a probe or rates; what steps cost by them for the engine
that is asked about, and how sure that is.
"""

from __future__ import annotations

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
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, RunRequest
from profiler.predicting.calibrate import Source, calibrate, usual_cells
from profiler.predicting.costs import Costs, RateCosts
from profiler.predicting.expert_use import ExpectedUse
from profiler.predicting.fitted import FittedCosts
from profiler.predicting.llama_cpp import LlamaCppCosts, LlamaCppMachine
from profiler.predicting.llama_rows import (
    disagreeing_files,
    fit_llama_rows,
    gpu_of,
    known_gpu,
    read_llama_rows,
    request_of,
)
from profiler.predicting.probed import ProbedCosts

MOST_CELLS: Final = 20_000
"""Cells that a prediction may have."""
_HOST_CALLS: Final = (
    "--host-call-us does nothing in a prediction, whose host issues in no time: hprof run --device sim counts it."
)
_DENSE_ARMS: Final = "off,on,cpu"
_MOE_ARMS: Final = "off,on,hot,gated,cpu,cache,hot+cache"
_DIVIDING_ARMS: Final = ("both", "both+cache")
_UPSTREAM_ARMS: Final = "off,cpu"
_LLAMA_CPP_ARMS: Final = ("off", "off-whole", "cpu", "full")
_PREFETCH_BUILD_ARMS: Final = "off,on,gated,cpu,cache,on+cache,gated+cache"


@dataclass(frozen=True, slots=True)
class Ground:
    """What steps cost, and how sure that is.

    spread: by figure, how far off the costs are; empty where nothing says it. notes: must be said first. rates: what
    the machine reaches, whatever the engine. fitted_to: what the costs were taken from, by name; empty for rates.
    cells: of the capture, those that were fitted to; None: all.
    """

    request: RunRequest
    costs: Costs
    use: ExpectedUse | None
    spread: dict[str, float | None]
    notes: list[str]
    rates: SimMachine
    fitted_to: list[str]
    cells: frozenset[GridPoint] | None = None


@dataclass(frozen=True, slots=True)
class Basis:
    """What is known of how fast steps are: `captures` by their paths, else a probe, else rates.

    seen: the options that made each capture. kind: the device that is asked about, where anybody said which.
    """

    asked: AskedOptions
    captures: dict[str, Capture]
    seen: dict[str, AskedOptions]
    choice: ProbeChoice
    kind: str | None

    @classmethod
    def of(cls, asked: AskedOptions, *, searches: bool = False) -> Basis:
        """Opens what the options name, but for files of rows. searches: a GPU's name gives the budget.

        Raises HprofError for what cannot be opened, and where options contradict each other.
        """
        rows = rows_of(asked)
        fits = [path for path in asked.fits if path not in rows]
        paths = [*fits, *([asked.against] if asked.against else [])]
        captures = {path: Capture.open(path) for path in paths}
        seen = {path: captured_options(capture.manifest, path) for path, capture in captures.items()}
        if fits and asked.probe is not None:
            raise HprofError("--probe and --fit exclude each other: give one of them.")
        kind = asked.device or (default_kind() if asked.verify else None)
        if captures and asked.probe is None:
            refuse_rates(asked, idle=("gpu", "device_memory") if searches else ("device_memory",))
            return cls(asked, captures, seen, ProbeChoice(None), kind)
        return cls(asked, captures, seen, choose_probe(kind, asked), kind)

    def options(self) -> AskedOptions:
        """What the user gave, over what the capture was made with that is held against, or the first."""
        first = self.asked.against or next(iter(self.seen), None)
        return self.choice.in_its_dtype(overlaid(self.seen[first] if first else None, self.asked))

    def ground(self, request: RunRequest, plan: RunPlan | None = None) -> Ground:
        """The costs of `request`'s steps. plan: of that request, where it is made already."""
        if self.choice.probe is not None:
            probe, notes = self.choice.probe, list(self.choice.notes)
            costs = costs_of(probe, request.device.link_gb_s)
            made = [f"the probe of {probe.created}"]
            return Ground(request, costs, None, dict(probe.spread), notes, probe.rates(), made)
        if self.captures:
            return self._fitted(request)
        rows_tell = bool(rows_of(self.asked)) and not self.asked.names_gpu
        told = None if rows_tell else told_rates(self.kind or "sim", self.asked, self.choice.notes)
        machine = sim_machine(request.device)
        dtype = (plan or plan_run(replace(request, arms=("off",)))).session.dtype
        idle = _HOST_CALLS if "host_call_us" in self.asked.typed and not self.asked.verify else None
        notes = [*filter(None, [told, idle]), *self.choice.notes]
        return Ground(request, RateCosts(machine, dtype), None, {}, notes, machine, [])

    def _fitted(self, request: RunRequest) -> Ground:
        """Fitted to what `--fit` names, or to a few cells of the capture that is held against."""
        fits = [path for path in self.asked.fits if path in self.captures]
        cells = None if fits else usual_cells(self.captures[next(iter(self.captures))])
        sources = {
            path: Source(self.captures[path], plan_run(predicted_request(self.seen[path]), MOST_CELLS), cells)
            for path in fits or self.captures
        }
        found = calibrate(list(sources.values()))
        link = request.device.link_gb_s if self.asked.names_link else None
        costs = found.costs if link is None else found.costs.with_link(link)
        rates = costs.rates.machine if link is None else replace(costs.rates.machine, link_gb_s=link)
        names = [self.captures[path].name for path in sources]
        return Ground(request, costs, found.use, found.spread, list(found.disagreements), rates, names, cells)


def rows_of(asked: AskedOptions) -> list[str]:
    """The files among what `--fit` names for llama.cpp: llama-bench's rows."""
    return [path for path in asked.fits if asked.engine == "llama.cpp" and Path(path).is_file()]


def advice_ground(asked: AskedOptions) -> Ground:
    """What the options say, and the captures, probe or rows that they name. Raises HprofError where they contradict."""
    for path in asked.fits:
        if asked.engine != "llama.cpp" and Path(path).is_file():
            raise HprofError(f"{path} is a file, and llama-bench's rows tell of llama.cpp: add --for llama.cpp.")
    ground = _with_usual_arms(asked, searches=True)
    if asked.engine == "llama.cpp":
        ground = _of_llama_cpp(ground, asked)
    elif not asked.names_arms:
        ground = _with_dividing(ground)
    return replace(ground, notes=[*ground.notes, *_model_notes(ground.request)])


def llama_cpp_ground(asked: AskedOptions) -> Ground:
    """The same of what options ask of llama.cpp, placement and all. Raises HprofError for arms that it lacks."""
    ground = _with_usual_arms(asked)
    lacking = [arm for arm in ground.request.arms if arm not in (*_LLAMA_CPP_ARMS, *_PREFETCH_BUILD_ARMS.split(","))]
    if lacking:
        raise HprofError(
            f"llama.cpp has nothing like arm '{lacking[0]}': ask for {', '.join(_LLAMA_CPP_ARMS)}, or of builds with "
            f"-pw and --moe-cache-mib for {_PREFETCH_BUILD_ARMS.replace(',', ', ')}."
        )
    return _of_llama_cpp(ground, asked)


def llama_cpp_rates(asked: AskedOptions, gpu: str) -> tuple[SimMachine, list[str]]:
    """The rates of a machine on which llama.cpp ran, and what must be said of them: as the options say, the GPU's
    otherwise by its name, where the table has it."""
    plain = _with_usual_arms(asked.but(fits=(), against=None))
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


def _with_usual_arms(asked: AskedOptions, *, searches: bool = False) -> Ground:
    """The ground for the arms that the engine has, where the user named none. searches: where weights lie is found."""
    basis = Basis.of(asked, searches=searches)
    options = basis.options().but(**PLACED_BY) if searches else basis.options()
    if not asked.names_arms:
        options = options.but(arms=_usual_arms(options, asked), prefetch_weights=None)
    request = predicted_request(options)
    return basis.ground(replace(request, engine="llama.cpp") if asked.engine == "llama.cpp" else request)


def _with_dividing(ground: Ground) -> Ground:
    """With the arms that share experts between CPU and link, where something says what both reach at once."""
    if not (isinstance(ground.costs, FittedCosts | ProbedCosts) and ground.costs.knows_sharing):
        return ground
    return replace(ground, request=replace(ground.request, arms=(*ground.request.arms, *_DIVIDING_ARMS)))


def _usual_arms(options: AskedOptions, asked: AskedOptions) -> str:
    """The arms for the model of `options`, which may be a capture's, where `asked` names none."""
    of_llama_cpp = asked.engine == "llama.cpp"
    if of_llama_cpp and not asked.prefetch_build:
        return _UPSTREAM_ARMS
    if not load_model(options.model, options.quant, options.layers, options.seed, computes=False).has_experts:
        return _DENSE_ARMS
    return _PREFETCH_BUILD_ARMS if of_llama_cpp else _MOE_ARMS


def _of_llama_cpp(ground: Ground, asked: AskedOptions) -> Ground:
    """The same request, by llama.cpp's scheduler and kernels."""
    request, rates, files = ground.request, ground.rates, [Path(path) for path in rows_of(asked)]
    known = gpu_of(files[0]) if files and not asked.names_gpu else None
    if known is not None:
        rates = replace(rates, gemm_tflop_s=known.gemm_tflop_s, memory_gb_s=known.memory_gb_s)
    prior, n_threads = LlamaCppMachine.of(rates), request.device.n_threads
    if not files:
        whose = "the rates that the capture shows" if isinstance(ground.costs, FittedCosts) else "these rates"
        note = f"llama.cpp's kernels are taken to reach a usual share of {whose}, which is rough"
        notes = [*ground.notes, f"{note}: --fit ROWS, a file of llama-bench's, would say more."]
        return replace(ground, costs=LlamaCppCosts(prior, n_threads), spread={}, notes=notes, fitted_to=[])
    of_model = request_of(request.model, request.quant, request.layers)
    rows_of_files = [read_llama_rows(file, {"": of_model}) for file in files]
    rows = [row for of_file in rows_of_files for row in of_file]
    fit = fit_llama_rows(rows, prior)
    spread: dict[str, float | None] = {"ttft": fit.spread, "decode": fit.spread}
    costs = LlamaCppCosts(fit.machine, n_threads)
    known_by_name = len({file.name for file in files}) == len(files)
    names = [file.name if known_by_name else str(file) for file in files]
    notes = [*ground.notes, *disagreeing_files(names, rows_of_files, fit, prior)]
    if len(fit.sigmas) > 1:
        notes.append(f"Each file's router is fitted apart; which experts are in use here is {names[0]}'s, the first.")
    return replace(ground, costs=costs, use=fit.use(rows[0]), spread=spread, notes=notes, fitted_to=names)
