"""`hprof probe`: runs the executor's own passes of small synthetic models, fits costs to most of them, and holds the
fit against the rest, so that what it tells is known to carry over to models that it has not seen.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson
import torch

from executor.devices.factory import DeviceOptions, make_devices
from executor.policies.base import PolicyOptions
from profiler.capture import Capture
from profiler.facts import describe_machine
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest
from profiler.predicting.calibrate import Source, samples_of, source_layout, spread_of_misses
from profiler.predicting.probe import Measure, Probe, this_machine
from profiler.predicting.probed import ProbedCosts, fit_probed
from profiler.probing.link import link_measures
from profiler.probing.products import SIZES, device_measures, host_measures
from profiler.probing.shapes import USUAL, ProbeModels, ProbeShape
from profiler.probing.timed import OthersWork
from profiler.running.progress import NoProgress, RunProgress
from profiler.running.run_manifest import initial_fields
from profiler.running.runner import run_capture
from profiler.storage.writer import new_capture

QUANTS: Final = ("Q4_K", "Q8_0")
_ARMS: Final = ("off", "on", "full")
_DIVIDING: Final = "both"  # on a GPU: what CPU and link reach beside each other
_REPETITIONS: Final = 2
_ON_HOST: Final = "ffn_(gate|up|down).*=CPU"  # dense FFNs too, which are resident beside experts unless named
_MEMORY: Final = Path("/dev/shm")


def probe(
    device: DeviceOptions,
    quants: Sequence[str] = QUANTS,
    progress: RunProgress | None = None,
    models: ProbeModels | None = None,
) -> Probe:
    """Measure the devices with weights in each of `quants`, of which all models have layers.

    Raises HprofError where there is no such device or type.
    Where time runs out, models are left out: `stages` tell what ran, and for how long.
    """
    chosen = models or USUAL[device.kind]
    load, others = describe_machine()["load_1min"], OthersWork()
    stages = _Stages(progress or NoProgress(), chosen)
    fewer = len(chosen.checked_cells) / len(chosen.cells)
    with tempfile.TemporaryDirectory(prefix="hprof-probe-", dir=_in_memory()) as folder:
        run = _Runs(Path(folder), device, tuple(quants), stages, chosen.op_offload_min_batch)
        fitted = [run.of(shape, chosen.cells, turn) for turn, shape in enumerate(chosen.fitted)]
        checked = [run.of(shape, chosen.checked_cells) for shape in chosen.checked if stages.has_time(fewer)]
        measured = _measured(device, quants, fitted[0].plan.session.dtype, stages)
        fitted += [run.of(shape, chosen.cells, turn) for turn, shape in enumerate(chosen.more) if stages.has_time()]
        costs = _fit(fitted)
        spread = spread_of_misses(checked, costs) if checked else _by_each_other(fitted)
    stages.stop()
    return Probe(
        costs=costs,
        spread=spread,
        machine=this_machine(device.kind, device.n_threads),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=stages.elapsed(),
        load=load,
        others=others.share(),
        fitted_to=tuple(map(_told, fitted)),
        checked_on=tuple(map(_told, checked)),
        measured=measured,
        stages=stages.seconds,
    )


def _in_memory() -> str | None:
    """A folder in memory, where there is one: captures sync each file to its disk, and nobody keeps these."""
    return str(_MEMORY) if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None


class _Stages:
    """A bar over all that a probe does, a step a model, whatever the passes that it runs; and what each step took."""

    def __init__(self, shown: RunProgress, models: ProbeModels) -> None:
        n_models = len(models.fitted) + len(models.more) + len(models.checked)
        self.seconds: dict[str, float] = {}
        self._begun, self._most = time.perf_counter(), models.seconds
        self._shown = shown
        shown.start(n_models + 1)

    def elapsed(self) -> float:
        """Seconds since the probe began."""
        return time.perf_counter() - self._begun

    def has_time(self, share: float = 1.0) -> bool:
        """Whether one more stage would end in time, if it took `share` of what the last one did."""
        return self.elapsed() + share * list(self.seconds.values())[-1] < self._most

    @contextmanager
    def stage(self, name: str) -> Iterator[RunProgress]:
        """One part: what its passes are called goes behind its name."""
        self._shown.before_pass(name)
        begun = time.perf_counter()
        yield _OfOneStage(self._shown, name)
        self.seconds[name] = round(time.perf_counter() - begun, 2)
        self._shown.after_pass(counts=True)

    def stop(self) -> None:
        """Take the bar away."""
        self._shown.stop()


class _OfOneStage:
    """Shows the passes of one stage by name alone."""

    def __init__(self, shown: RunProgress, stage: str) -> None:
        self._shown, self._stage = shown, stage

    def start(self, n_passes: int) -> None: ...
    def before_pass(self, description: str) -> None:
        self._shown.before_pass(f"{self._stage}: {description}")

    def after_pass(self, *, counts: bool) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Runs:
    folder: Path
    device: DeviceOptions
    quants: tuple[str, ...]
    stages: _Stages
    op_offload_min_batch: int

    def of(self, shape: ProbeShape, cells: tuple[GridPoint, ...], turn: int = 0) -> Source:
        """The capture of a model's passes. The output matrix has the `turn`-th type, as each model has but one."""
        path = self.folder / f"{shape.name}.json"
        path.write_bytes(orjson.dumps(shape.in_types(len(self.quants))))
        first = turn % len(self.quants)
        quants = self.quants[first:] + self.quants[:first]
        request = RunRequest(
            cells=cells,
            device=self.device,
            model=str(path),
            quant=",".join(quants),
            arms=(*_ARMS, _DIVIDING) if shape.has_experts and self.device.kind == "cuda" else _ARMS,
            placements=(PlacementOptions(overrides=_ON_HOST),),
            keeps_rows=True,  # few layers: each is to be measured in every ubatch
            repetitions=_REPETITIONS,
            policy=PolicyOptions(op_offload_min_batch=self.op_offload_min_batch),
        )
        plan = plan_run(request)
        at = str(self.folder / shape.name)
        writer = new_capture(at, force=False, source="hprof", **initial_fields(plan, ["hprof", "probe"]))
        with self.stages.stage(f"{shape.name} in {' and '.join(quants)}") as shown:
            run_capture(plan, writer, shown)
        writer.finish()
        return Source(Capture.open(at), plan)


def _measured(
    options: DeviceOptions, quants: Sequence[str], dtype: torch.dtype, stages: _Stages
) -> tuple[Measure, ...]:
    """The rates that are measured by themselves; none of a device that has no clock of its own."""
    if options.kind == "sim":
        return ()
    sizes, found = SIZES[options.kind], list[Measure]()
    n_devices = torch.cuda.device_count() if options.kind == "cuda" else 1
    with stages.stage("rates") as shown:
        devices = make_devices(replace(options, n_devices=n_devices))
        try:
            for what, measures in (
                ("link", link_measures(devices)),
                ("device", device_measures(devices[0], quants, dtype, sizes)),
                ("CPU", host_measures(devices[0], quants, dtype, sizes)),
            ):
                shown.before_pass(what)
                found += measures
        finally:
            for device in devices:
                device.close()
    return tuple(found)


def _told(source: Source) -> str:
    request = source.plan.request
    return f"{Path(request.model).stem} in {(request.quant or '').replace(',', ' and ')}"


def _by_each_other(sources: Sequence[Source]) -> dict[str, float | None]:
    """What the fit is off by where no model was left to hold against it: each model, told by the others alone, if they
    have all its kinds of step.

    The worst of them counts, as a fit to fewer models still tells less than the one that is kept. None: nothing says
    it, as of one model alone, or of one with experts beside one without.
    """
    found = [spread_of_misses((), _fit(sources))]
    for one in sources if len(sources) > 1 else ():
        costs = _fit([other for other in sources if other is not one])
        if _kinds_of_step(_fit([one])) <= _kinds_of_step(costs):
            found.append(spread_of_misses([one], costs))
    return {name: max((s for one in found if (s := one[name]) is not None), default=None) for name in found[0]}


def _kinds_of_step(costs: ProbedCosts) -> set[tuple[str, str, str]]:
    return {(group.name, group.where, group.phase) for group in costs.groups}


def _fit(sources: Sequence[Source]) -> ProbedCosts:
    layouts = [source_layout(one) for one in sources]
    return fit_probed([samples_of(one) for one in sources], layouts, sources[0].plan.session.dtype)
