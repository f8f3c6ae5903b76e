"""How good advice is, where it can be tried: `python -m benchmarks.gpu.advice grid|llama-cpp`.

`grid`: the first choice of `hprof advise`, by a probe, against the best of a fixed grid that is run for real, under
budgets of device memory. `llama-cpp`: the command of `hprof advise --for llama.cpp` against llama.cpp's own fit
(`llama-bench -fitt`) at the same free memory. Each line is printed once it is known; after `--seconds` nothing more
begins, and the last line names what is left.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

import click

from benchmarks.gpu.llama_bench import EXPERTS_ON_HOST, FFN_ON_HOST
from executor.devices.base import DeviceKind
from executor.devices.factory import DeviceOptions
from executor.errors import HprofError
from executor.memory.budget import Budget
from executor.models.load import load_model
from executor.units import parse_bytes
from profiler.capture import Capture
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest
from profiler.predicting.advise import Advice, advise, verified_request
from profiler.predicting.candidates import Objective
from profiler.predicting.measured import ArmCell, MeasuredCell, measured_cells
from profiler.predicting.probe import Probe, read_probe
from profiler.running.progress import NoProgress
from profiler.running.run_manifest import initial_fields
from profiler.running.runner import run_capture
from profiler.storage.writer import new_capture

OBJECTIVES: Final[tuple[Objective, ...]] = ("ttft", "prefill", "decode")
GRID_ARMS: Final[Mapping[bool, tuple[str, ...]]] = {True: ("off", "on", "hot", "gated"), False: ("off", "on")}
"""By whether a model has experts."""
GRID_UBATCHES: Final = (256, 1024, 4096)
_LLAMA_TESTS: Final = ((512, 0), (4096, 0), (0, 64))
"""Tokens of prompt and to generate."""
_TIMEOUT_S: Final = 300
_LOOK_AGAIN: Final = 1.03
_TURNS: Final = 3
_SECONDS: Final = 280.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What one setting took for real: the prompt until its first token, its prefill, and its tokens, in ns."""

    what: str
    ttft_ns: float
    prefill_ns: float
    decode_ns: float

    def cost(self, objective: Objective) -> float:
        """What is to be small."""
        return {"ttft": self.ttft_ns, "prefill": self.prefill_ns, "decode": self.decode_ns}[objective]


def run(request: RunRequest, folder: Path) -> dict[ArmCell, MeasuredCell]:
    """The request's measured cells."""
    plan = plan_run(request)
    writer = new_capture(folder, force=True, source="hprof", **initial_fields(plan, ["hprof", "advise"]))
    run_capture(plan, writer, NoProgress())
    writer.finish()
    return measured_cells(Capture.open(str(folder)))


def tried(cells: Mapping[ArmCell, MeasuredCell]) -> Iterator[Tried]:
    """Each arm in each cell."""
    for (arm, cell), one in cells.items():
        yield Tried(f"{arm} -ub {cell.n_ubatch}", one.ttft_ns or 0.0, one.prefill_ns or 0.0, one.decode_ns or 0.0)


class Deadline:
    """How long a command may still begin something."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    def has_time(self) -> bool:
        return time.perf_counter() < self._end


def advised(request: RunRequest, budget: Budget, objective: Objective, probe: Probe) -> Advice:
    """What advice there is, on the machine of the probe."""
    asked = replace(request, device=replace(request.device, kind="sim"), dtype=cast("Any", probe.dtype))
    return advise(asked, budget, objective, probe.costs)


def against_grid(
    model: str, layers: int | None, budget: str, probe: Probe, n_prompt: int, n_gen: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """For each objective, what the first choice took beside the best of the grid."""
    device = DeviceOptions(cast("DeviceKind", probe.machine["device"]))
    vram_budget = Budget((parse_bytes(budget, "--budgets"),))
    ubatches = [ub for ub in GRID_UBATCHES if ub <= n_prompt] or [n_prompt]
    request = RunRequest(
        cells=tuple(GridPoint(n_prompt, n_gen, ub, 0) for ub in ubatches),
        device=device,
        model=model,
        layers=layers,
        arms=GRID_ARMS[load_model(model, layers=layers).has_experts],
        placements=(PlacementOptions(vram_budget=vram_budget),),
        repetitions=2,
    )
    name = f"{Path(model).stem}-{budget}"
    grid = {one.what: one for one in tried(run(request, folder / name))}
    yield {"model": model, "budget": budget, "grid": [asdict(one) for one in grid.values()]}
    known: dict[RunRequest, Tried] = {}
    for objective in OBJECTIVES:
        advice = advised(replace(request, placements=(PlacementOptions(),)), vram_budget, objective, probe)
        asked = replace(verified_request(request, advice.best, repetitions=2), device=device, dtype="auto")
        if asked not in known:
            (known[asked],) = tried(run(asked, folder / f"{name}-{objective}"))
        own = known[asked]
        best = min(grid.values(), key=lambda one: one.cost(objective))
        row = {
            "model": model, "budget": budget, "objective": objective, "advice": own.what, "best": best.what,
            "ratio": own.cost(objective) / best.cost(objective),
            "predicted_ns": sum(getattr(one, f"{objective}_ns") or 0.0 for one in advice.best.predictions),
            "measured_ns": own.cost(objective),
        }  # fmt: skip
        if own.cost(objective) > _LOOK_AGAIN * best.cost(objective):
            row["again"] = again(asked, of_grid(request, best), objective, folder / f"{name}-again")
        yield row


def of_grid(request: RunRequest, one: Tried) -> RunRequest:
    """One setting of the grid by itself."""
    arm, _, n_ubatch = one.what.partition(" -ub ")
    (cell,) = (cell for cell in request.cells if cell.n_ubatch == int(n_ubatch))
    return replace(request, cells=(cell,), arms=(arm,))


def again(advice: RunRequest, best: RunRequest, objective: Objective, folder: Path) -> float:
    """What advice takes beside the grid's best, both run in turn: the median of the ratios of neighbours.

    The best of many settings that were measured once each is one that was lucky, too.
    """
    ratios = []
    for _ in range(_TURNS):
        (own,), (other,) = (list(tried(run(request, folder))) for request in (advice, best))
        ratios.append(own.cost(objective) / other.cost(objective))
    return statistics.median(ratios)


def free_bytes() -> int:
    """What a process finds free on the GPU, beside its own context: a margin is left of that.

    The GPU's nominal size is more: taken from it, a margin is too large and the peer gets less than the budget.
    RuntimeError where there is no GPU.
    """
    asked = "import torch; print(torch.cuda.mem_get_info()[0])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"no GPU says how much memory it has free: {done.stderr[-300:]}")
    return int(done.stdout)


def bench(program: Path, model: Path, flags: Sequence[str], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """llama-bench's rows. RuntimeError where it fails."""
    command = [str(program.resolve()), "-m", str(model), *flags]
    env = os.environ | dict(environment)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=env)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} exited with {done.returncode}: {done.stderr[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Tokens a second by test, as `pp512` and `tg64`."""
    return {f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}": float(row["avg_ts"]) for row in rows}


def typed(line: str) -> tuple[dict[str, str], list[str]]:
    """The environment and the flags of a command that advice printed, without its model, prompt and tokens."""
    words = shlex.split(line)
    at = words.index("llama-bench")
    environment = dict(word.split("=", 1) for word in words[:at])
    flags, kept = iter(words[at + 1 :]), list[str]()
    for flag in flags:
        value = next(flags)
        kept += [] if flag in ("-m", "-p", "-n") else [flag, value]
    return environment, kept


def measured_rows(program: Path, model: Path) -> list[dict[str, Any]]:
    """What advice for llama.cpp is fitted to: a long prompt with everything resident, and that and tokens with the
    experts, or a dense model's FFN, on the host."""
    common = ["-ngl", "99", "-fa", "1", "-lm", "none", "-o", "jsonl", "-r", "2"]
    on_host = EXPERTS_ON_HOST if load_model(str(model), computes=False).has_experts else FFN_ON_HOST
    resident = bench(program, model, [*common, "-p", "4096", "-n", "0"], {})
    return [*resident, *bench(program, model, [*common, *on_host, "-p", "4096", "-n", "64"], {})]


def against_fit(
    program: Path, model: Path, budget: str, total_bytes: int, measured: Sequence[Mapping[str, Any]], folder: Path
) -> dict[str, Any]:
    """llama.cpp by advice beside llama.cpp by its own fit, which leaves free what the budget does not allow.

    llama-bench fits each test by itself, to that test's context: advice is asked for each by itself too.
    """
    margin_mib = (total_bytes - parse_bytes(budget, "--budgets")) >> 20
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(row) for row in measured))
    told: dict[str, Any] = {"model": str(model), "budget": budget, "flags": {}, "own": {}, "ratios": {}}
    for n_prompt, n_gen in _LLAMA_TESTS:
        test = ["-p", str(n_prompt), "-n", str(n_gen)]
        words = ["-m", str(model), *test, "--vram-budget", budget, "--fit", str(rows), "--json"]
        command = [sys.executable, "-m", "hprof", "advise", "--for", "llama.cpp", "--link", "gen5x16", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        environment, flags = typed(json.loads(done.stdout)["llama_cpp"])
        test += ["-r", "3", "-o", "jsonl"]
        own = rates(bench(program, model, ["-fitt", str(margin_mib), "-fa", "1", *test], {}))
        by_advice = rates(bench(program, model, [*flags, *test], environment))
        told["own"] |= own
        told["flags"] |= dict.fromkeys(own, shlex.join([*(f"{k}={v}" for k, v in environment.items()), *flags]))
        told["ratios"] |= {name: by_advice[name] / own[name] for name in own}
    return told


@click.group()
def main() -> None:
    """Advice against what can be tried."""


@main.command("grid")
@click.option("--probe", "probe_file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--models", default="llama-3.1-8b,qwen3-30b-a3b", help="Presets or files.")
@click.option("--layers", type=int, help="Only the first so many layers.")
@click.option("--budgets", default="4GiB,8GiB,12GiB")
@click.option("-p", "n_prompt", default=4096)
@click.option("-n", "n_gen", default=32)
@click.option("--seconds", default=_SECONDS, help="After so many nothing more begins.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="A folder to leave the captures in.")
def grid_command(
    probe_file: Path,
    models: str,
    layers: int | None,
    budgets: str,
    n_prompt: int,
    n_gen: int,
    seconds: float,
    keep: Path | None,
) -> None:
    """The first choice against the best of a grid; a line of JSON each, as they come."""
    probe, deadline, left = read_probe(probe_file), Deadline(seconds), []
    with nullcontext(str(keep)) if keep else tempfile.TemporaryDirectory() as folder:
        for model, budget in product(models.split(","), budgets.split(",")):
            if not deadline.has_time():
                left.append(f"{model} {budget}")
                continue
            try:
                for row in against_grid(model, layers, budget, probe, n_prompt, n_gen, Path(folder)):
                    click.echo(json.dumps(row))
            except HprofError as error:
                click.echo(json.dumps({"model": model, "budget": budget, "error": str(error)}))
    if left:
        click.echo(json.dumps({"left": left}))


@main.command("llama-cpp")
@click.option("--llama-bench", "program", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--memory", help="That the GPU has free.  [default: as a process sees it that has just begun]")
@click.option("--budgets", default="4GiB,8GiB,12GiB")
@click.option("--seconds", default=_SECONDS, help="After so many nothing more begins.")
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def llama_command(program: Path, memory: str | None, budgets: str, seconds: float, models: tuple[Path, ...]) -> None:
    """Advice for llama.cpp against its own fit; a line of JSON each, then the geometric mean."""
    logs: list[float] = []
    rows: dict[Path, list[dict[str, Any]]] = {}
    deadline, left = Deadline(seconds), []
    n_free = None if memory is None else parse_bytes(memory, "--memory")
    with tempfile.TemporaryDirectory() as folder:
        for model, budget in product(models, budgets.split(",")):
            if not deadline.has_time():
                left.append(f"{model} {budget}")
                continue
            try:
                n_free = n_free or free_bytes()
                if model not in rows:
                    rows[model] = measured_rows(program, model)
                row = against_fit(program, model, budget, n_free, rows[model], Path(folder))
            except RuntimeError as error:
                click.echo(json.dumps({"model": str(model), "budget": budget, "error": str(error)}))
                continue
            click.echo(json.dumps(row))
            logs += [math.log(value) for value in row["ratios"].values()]
    if left:
        click.echo(json.dumps({"left": left}))
    if logs:
        click.echo(json.dumps({"geometric_mean": math.exp(sum(logs) / len(logs)), "least": math.exp(min(logs))}))


if __name__ == "__main__":
    main()
