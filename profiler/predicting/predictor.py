"""Predicts every cell of a plan for every arm: times, bytes and device memory, without running anything."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from executor.arrays import Flags, Floats
from executor.errors import HprofError
from executor.passes import Phase, Ubatch
from executor.placement.place import EVERYTHING_RESIDENT, Placement
from executor.policies import arm_traits
from executor.policies.cache import MAX_BATCH
from profiler.planning.llama_memory import embedding_bytes
from profiler.planning.placed_arms import device_of_layers
from profiler.planning.plan import RunPlan
from profiler.planning.request import GridPoint
from profiler.predicting.costs import Costs, Points, Setting
from profiler.predicting.expert_use import ExpectedUse, expert_use
from profiler.predicting.layout import Layout, build_layout, placed_layout
from profiler.predicting.plans import KnownCopies, StepCopies, decide
from profiler.predicting.pricing import PricedUbatches, price
from profiler.predicting.timeline import CellTimes, run_prompts, token_times


@dataclass(frozen=True, slots=True)
class Prediction:
    """One arm in one cell. Times in ns; None: the cell has no such part. `busy_*` is time by kind of step, in ns."""

    label: str
    arm: str
    cell: GridPoint
    ttft_ns: float | None
    prefill_ns: float | None
    decode_ns: float | None
    bytes_h2d: float
    vram: Mapping[str, int]
    in_range: bool
    """Whether all of it lies where the costs were measured."""
    busy_prefill: Mapping[str, float] = field(default_factory=dict, repr=False)
    busy_decode: Mapping[str, float] = field(default_factory=dict, repr=False)


def predict(plan: RunPlan, costs: Costs, use: ExpectedUse | None = None) -> list[Prediction]:
    """Every arm under every placement in every cell of the plan.

    `use`: which experts ubatches use; None: what the plan's routing leads to. Raises HprofError for arms that are not
    predicted.
    """
    found, known = [], KnownOfPlan()
    for setup in plan.setups:
        for label, arm in setup.labels.items():
            resident = arm_traits(arm).is_resident
            placement = EVERYTHING_RESIDENT if resident else setup.placement_of(arm)
            found += ArmPredictor(plan, arm, placement, costs, use, known).predict(label, plan.request.cells)
    return found


def _link_gb_s(arm: str, costs: Costs) -> float:
    """How fast the link is for large copies. Raises HprofError where an arm copies weights and no copy was seen."""
    ns = float(costs.copy_ns(np.array([1e9]), np.array([1.0]), "ahead")[0])
    if ns > 0:
        return 1e9 / ns
    traits = arm_traits(arm)
    if traits.is_resident or traits.computes_on_host:
        return math.inf
    raise HprofError(
        f"the captures to fit to show no copies of weights, by which '{arm}' would be predicted; fit to a run of off "
        "or on, or give --link-gb-s."
    )


@dataclass(slots=True)
class KnownOfPlan:
    """What depends on neither placement nor ubatch: the layout but for its units, the experts in use, and what arms
    decide."""

    layout: Layout | None = None
    use: ExpectedUse | None = None
    copies: KnownCopies = field(default_factory=dict)


class ArmPredictor:
    """One arm under one placement. `known`: what predictors of the same plan share, so that it is worked out once."""

    def __init__(
        self,
        plan: RunPlan,
        arm: str,
        placement: Placement,
        costs: Costs,
        use: ExpectedUse | None = None,
        known: KnownOfPlan | None = None,
    ) -> None:
        known = KnownOfPlan() if known is None else known
        if known.layout is None:
            device_of = device_of_layers(plan.request, plan.model)
            known.layout = build_layout(plan.model, placement, device_of, plan.session.dtype)
            known.use = use or expert_use(plan, known.layout.moe_layers)
        self.layout, use = placed_layout(known.layout, placement, by_tensor=costs.runs_by_tensor), known.use
        self._costs, self._arm, self._all_logits = costs, arm, plan.request.all_logits
        self._is_llama_cpp = plan.request.engine == "llama.cpp"
        self._settings: dict[Phase, Setting] = {}
        self._setting_by_ubatch: dict[tuple[int, int], Setting] = {}
        self._compute = _LayerCompute(self.layout, costs, use)
        self._decider = decide(
            arm,
            plan.session.policy,
            self.layout,
            use,
            self._compute,
            _link_gb_s(arm, costs),
            fills_bank=any(map(_has_small_batches, plan.request.cells)),
            known=known.copies,
        )

    def predict(self, label: str, cells: Sequence[GridPoint]) -> list[Prediction]:
        """Each of the cells, in their order."""
        self._teach(cells)
        prompts: dict[GridPoint, _Part] = {}
        for setting, of_setting in self._by_setting([cell for cell in cells if cell.n_prompt]).items():
            prompts |= self._run_prompts(of_setting, setting).parts()
        tokens = self._tokens([cell for cell in cells if cell.n_decoded])
        vram = self._vram()
        return [self._prediction(label, cell, prompts.get(cell), tokens.get(cell), vram) for cell in cells]

    def _prediction(
        self, label: str, cell: GridPoint, prompt: _Part | None, token: _Part | None, vram: Mapping[str, int]
    ) -> Prediction:
        n = cell.n_decoded
        return Prediction(
            label=label,
            arm=self._arm,
            cell=cell,
            ttft_ns=None if prompt is None else prompt.total_ns,
            prefill_ns=None if prompt is None else prompt.known_ns,
            decode_ns=None if token is None else n * token.total_ns,
            bytes_h2d=(0.0 if prompt is None else prompt.n_bytes) + (0.0 if token is None else n * token.n_bytes),
            vram=vram,
            in_range=(prompt is None or prompt.in_range) and (token is None or token.in_range),
            busy_prefill={} if prompt is None else prompt.busy,
            busy_decode={} if token is None else {name: n * ns for name, ns in token.busy.items()},
        )

    def _teach(self, cells: Sequence[GridPoint]) -> None:
        """Tell `auto` how long the cells' ubatches take under each arm that it chooses from, as warm-ups would."""
        auto = self._decider.auto
        if auto is None:
            return
        for number, name in enumerate(auto.candidates):
            warmup = copy(self)
            warmup._decider = replace(self._decider, warmup=number, known={})
            warmup._settings, warmup._setting_by_ubatch = {}, {}
            for ubatch, ns in warmup._ubatch_times(cells):
                auto.took(name, ubatch, round(ns))

    def _ubatch_times(self, cells: Sequence[GridPoint]) -> Iterator[tuple[Ubatch, float]]:
        """The different ubatches of the cells, each with its mean time in ns."""
        for setting, of_setting in self._by_setting([cell for cell in cells if cell.n_prompt]).items():
            yield from self._run_prompts(of_setting, setting).ubatch_times()
        tokens = self._tokens([cell for cell in cells if cell.n_decoded])
        for cell, part in tokens.items():
            past = cell.n_depth + cell.n_prompt + max(0, cell.n_decoded - 1) // 2
            yield Ubatch(0, "decode", 1, past, 1), part.total_ns

    def _by_setting(self, prompts: Sequence[GridPoint]) -> dict[Setting, list[GridPoint]]:
        """Prompts by what goes on beside their steps, which for some arms is up to the ubatch."""
        is_up_to_ubatch = self._decider.policy.traits.divides or self._decider.auto is not None
        if not is_up_to_ubatch:
            return {self._setting("prefill"): list(prompts)} if prompts else {}
        found: dict[Setting, list[GridPoint]] = {}
        for cell in prompts:
            found.setdefault(self._setting_of(cell), []).append(cell)
        return found

    def _setting_of(self, cell: GridPoint) -> Setting:
        """What goes on beside the steps of a prompt's first ubatch."""
        n_tokens, n_past = min(cell.n_ubatch, cell.n_prompt), cell.n_depth
        if (n_tokens, n_past) not in self._setting_by_ubatch:
            found = self._asked(n_tokens, n_past)
            usual = self._setting("prefill")
            if any(bool(one.divided.any()) for one in found):
                usual = "divided"
            elif self._decider.auto is not None and not any(bool(one.late_ahead.any()) for one in found):
                usual = "alone"
            self._setting_by_ubatch[n_tokens, n_past] = usual
        return self._setting_by_ubatch[n_tokens, n_past]

    def _asked(self, n_tokens: int, n_past: int) -> list[StepCopies]:
        """What the arm does for each step whose weights are streamed, in one ubatch."""
        decider, by_step = self._decider, defaultdict(list)
        asked, _ = decider.ask(np.full(1, float(n_tokens)), np.full(1, float(n_past)))
        for layer, step in self.layout.units:
            if decider.streams(layer, step):
                by_step[step].append(layer)
        groups = [(layers, step) for step, all_layers in by_step.items() for layers in decider.alike(all_layers, step)]
        return [StepCopies.of(decider.copies(layers, step, asked)) for layers, step in groups]

    def _run_prompts(self, cells: Sequence[GridPoint], setting: Setting) -> _PromptRuns:
        ordered = sorted(dict.fromkeys(cells), key=lambda cell: -(-cell.n_prompt // cell.n_ubatch), reverse=True)
        number, *sizes = _ubatches(ordered, all_logits=self._all_logits)
        asked, point_of = np.unique(np.stack(sizes), axis=1, return_inverse=True)
        points = Points(asked[0], asked[1], "prefill", setting, asked[2])
        priced = price(self.layout, self._decider, self._costs, points)
        each = [np.asarray(point_of.ravel()[number == u]) for u in range(int(number.max()) + 1)]
        times = run_prompts(priced, each, len(ordered), self._ends("prefill", setting))
        return _PromptRuns(ordered, points, priced, each, times, self._in_range(points))

    def _tokens(self, cells: Sequence[GridPoint]) -> dict[GridPoint, _Part]:
        """A token in the middle of what each cell decodes: times grow linearly with the positions before it."""
        if not cells:
            return {}
        past = np.array([cell.n_depth + cell.n_prompt + max(0, cell.n_decoded - 1) / 2 for cell in cells])
        asked, back = np.unique(past, return_inverse=True)
        setting = self._setting("decode", int(asked[0]))
        points = Points(np.ones(len(asked)), asked, "decode", setting)
        priced = price(self.layout, self._decider, self._costs, points)
        ends = self._ends("decode", setting)
        times = token_times(priced, len(asked), ends)
        totals = _Totals(priced, self._in_range(points), [np.arange(len(asked))], len(asked))
        parts = [totals.part(i, float(times[i]), float(times[i])) for i in range(len(asked))]
        return {cell: parts[i] for cell, i in zip(cells, back, strict=True)}

    def _setting(self, phase: Phase, n_past: int = 1) -> Setting:
        """What goes on beside the arm's steps; of tokens after `n_past` positions."""
        if phase not in self._settings:
            self._settings[phase] = self._find_setting(phase, n_past)
        return self._settings[phase]

    def _find_setting(self, phase: Phase, n_past: int) -> Setting:
        traits = self._decider.policy.traits
        if phase == "prefill" and (traits.divides or not traits.computes_on_host):
            return "copies" if self._decider.streams_ahead and self.layout.units else "alone"
        found = self._asked(1, n_past)
        if any(copies.divided.any() for copies in found):
            return "divided"
        if any(copies.on_host.any() for copies in found):
            return "host"
        if any(copies.late_ahead.any() for copies in found):
            return "copies"
        return "inline" if any(copies.late_bytes.any() for copies in found) else "alone"

    def _ends(self, phase: Phase, setting: Setting) -> dict[str, float]:
        at = Points(np.ones(1), np.zeros(1), phase, setting)
        sample = float(self._costs.step_ns(self.layout.sample, at, np.zeros(1))[0])
        return {"sample": sample, "begin": self._costs.begin_ns, "token": self._costs.token_ns}

    def _in_range(self, points: Points) -> Flags:
        """(points,): whether all steps that are taken lie where the costs were measured, on the device and the CPU."""
        asked, back = self._decider.ask(points.n_tokens, points.n_past)
        inside, known = np.ones(len(back), np.bool_), set()
        for layer, number in enumerate(self.layout.kind_of):
            kind = self.layout.kinds[number]
            for step in kind.steps:
                place = (number, step.name, (layer, step.name) in self.layout.units)
                if place in known:
                    continue
                known.add(place)
                on_host = uses_host = np.zeros_like(inside)
                if self._decider.streams(layer, step.name):
                    copies = StepCopies.of(self._decider.copies([layer], step.name, asked)[..., back])
                    on_host, uses_host = copies.on_host[0], (copies.on_host | copies.divided)[0]
                inside &= on_host | self._costs.in_range(step, points)
                for there in (one for one in kind.on_host.get(step.name, ()) if one.where == "host"):
                    inside &= ~uses_host | self._costs.in_range(there, points)
        return inside

    def _vram(self) -> dict[str, int]:
        units, model = self.layout.units.values(), self.layout.model
        on_host = 0 if self._decider.policy.traits.is_resident else sum(unit.n_bytes for unit in units)
        largest: dict[tuple[int, str], int] = {}
        for unit in units:
            key = (self.layout.device_of[unit.layer], unit.what)
            held = max(part.info.n_bytes for part in unit.parts) if self._is_llama_cpp else unit.n_bytes
            largest[key] = max(largest.get(key, 0), held)
        slots = self._decider.policy.n_slots * sum(largest.values())
        return {
            "vram_resident": model.n_bytes - on_host - (embedding_bytes(model) if self._is_llama_cpp else 0),
            "vram_slots": slots,
            "vram_bank": self._decider.bank_bytes,
        }


def _has_small_batches(cell: GridPoint) -> bool:
    return cell.n_decoded > 0 or 0 < min(cell.n_prompt, cell.n_ubatch) <= MAX_BATCH


@dataclass(frozen=True, slots=True)
class _Part:
    """A cell's prompt, or one of its tokens."""

    total_ns: float
    known_ns: float
    n_bytes: float
    in_range: bool
    busy: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _PromptRuns:
    """The prompts of some cells, those with more ubatches first. `each[u]`: the points of ubatch u of those that have
    one."""

    cells: Sequence[GridPoint]
    points: Points
    priced: PricedUbatches
    each: Sequence[NDArray[np.intp]]
    times: CellTimes
    in_range: Flags

    def parts(self) -> dict[GridPoint, _Part]:
        """What each prompt takes."""
        totals, times = _Totals(self.priced, self.in_range, self.each, len(self.cells)), self.times
        return {
            cell: totals.part(place, float(times.ttft[place]), float(times.prefill[place]))
            for place, cell in enumerate(self.cells)
        }

    def ubatch_times(self) -> Iterator[tuple[Ubatch, float]]:
        """Each different ubatch, with the mean of what it takes where it occurs, in ns."""
        at, ns = np.concatenate(self.each), np.concatenate(self.times.ubatches)
        means = np.bincount(at, ns) / np.bincount(at)
        for number, mean in enumerate(means.tolist()):
            n_tokens, n_past = int(self.points.n_tokens[number]), int(self.points.n_past[number])
            yield Ubatch(number, "prefill", n_tokens, n_past, n_outputs=0), mean


class _Totals:
    """Sums over each cell's ubatches of what was priced point by point."""

    def __init__(
        self, priced: PricedUbatches, in_range: Flags, points_of: Sequence[NDArray[np.intp]], n_cells: int
    ) -> None:
        self._sums: dict[str, Floats] = {}
        self._outside = np.zeros(n_cells)
        for name, values in [*priced.busy.items(), ("", priced.n_bytes)]:
            total = np.zeros(n_cells)
            for at in points_of:
                total[: len(at)] += values[at]
            self._sums[name] = total
        for at in points_of:
            self._outside[: len(at)] += ~in_range[at]

    def part(self, cell: int, total_ns: float, known_ns: float) -> _Part:
        busy = {name: float(total[cell]) for name, total in self._sums.items() if name}
        return _Part(total_ns, known_ns, float(self._sums[""][cell]), not self._outside[cell], busy)


def _ubatches(cells: Sequence[GridPoint], *, all_logits: bool) -> tuple[NDArray[np.intp], Floats, Floats, Floats]:
    """Each prompt's ubatches by number, then cell: their number in the prompt, tokens, positions before, and outputs.

    As `PassJob.ubatches` cuts it, for many prompts at once.
    """
    n_prompt, n_ubatch, n_depth = (np.array([getattr(cell, axis) for cell in cells]) for axis in _AXES)
    counts = -(-n_prompt // n_ubatch)
    cell = np.repeat(np.arange(len(cells)), counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort((cell, number))
    cell, number = cell[order], number[order]
    start = number * n_ubatch[cell]
    n_tokens = np.minimum(n_ubatch[cell], n_prompt[cell] - start)
    n_outputs = n_tokens if all_logits else (start + n_tokens == n_prompt[cell]).astype(np.intp)
    sizes = (n_tokens, n_depth[cell] + start, n_outputs)
    return number, *(size.astype(np.float64) for size in sizes)


_AXES = ("n_prompt", "n_ubatch", "n_depth")


class _LayerCompute:
    """How long a layer computes for a ubatch, all layers' mean: what `hot` learns from earlier passes."""

    def __init__(self, layout: Layout, costs: Costs, use: ExpectedUse | None) -> None:
        self._layout, self._costs, self._use = layout, costs, use
        self._known: dict[tuple[int, int], float] = {}

    def __call__(self, n_tokens: int, n_past: int) -> float:
        if (n_tokens, n_past) not in self._known:
            self._known[n_tokens, n_past] = sum(self._kinds(n_tokens, n_past)) / len(self._layout.kind_of)
        return self._known[n_tokens, n_past]

    def _kinds(self, n_tokens: int, n_past: int) -> Iterator[float]:
        at = Points(np.array([float(n_tokens)]), np.array([float(n_past)]), "prefill", "copies")
        distinct = np.zeros(1) if self._use is None else self._use.distinct(n_tokens).mean(keepdims=True)
        for number, kind in enumerate(self._layout.kinds):
            n_layers = self._layout.kind_of.count(number)
            yield n_layers * sum(float(self._costs.step_ns(step, at, distinct)[0]) for step in kind.steps)
