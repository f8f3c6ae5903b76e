"""How far predictions are off: `python -m benchmarks.prediction [CAPTURE ...] [--json]`.

Each capture is fitted on three of its cells (`profiler.predicting.calibrate.usual_cells`) and predicted in all others.
With `--probe FILE` nothing of it is fitted. Without captures it takes the sweeps among the project's shared samples,
and llama-bench's rows there, of which two a model are fitted. Relative errors of what was not fitted.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import numpy as np

from executor.devices.factory import DeviceOptions
from executor.devices.known import find_gpu, find_link
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.cli.captured_request import captured_options, predicted_request
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, RunRequest, grid
from profiler.predicting.calibrate import Source, calibrate, usual_cells
from profiler.predicting.costs import RateCosts
from profiler.predicting.expert_use import expert_use
from profiler.predicting.llama_cpp import LlamaCppMachine
from profiler.predicting.llama_rows import fit_llama_rows, read_llama_rows, request_of, two_rows
from profiler.predicting.measured import misses_of
from profiler.predicting.predictor import predict
from profiler.predicting.probe import Probe, read_probe

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
FIGURES = {"ttft": "ttft_ns", "prefill": "prefill_ns", "decode": "decode_ns", "bytes": "bytes_h2d"}
COMMON = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": 32_000, "head_dim": 128}
LLAMA_MODELS = {
    "dense.gguf": {
        "model_type": "llama", "hidden_size": 5120, "intermediate_size": 17_408, "num_hidden_layers": 16,
        "num_attention_heads": 40, "num_key_value_heads": 8,
    },
    "moe.gguf": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 768, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 4,
    },
}  # fmt: skip
"""What the files of the shared rows were made as (`../shared/reference/hardware-h200.md`)."""
Errors = dict[str, dict[str, float]]


def capture_errors(path: Path, probe: Probe | None = None) -> Errors:
    """Median and 90th percentile of the relative errors of a capture's cells that were not fitted, by figure."""
    capture = Capture.open(path)
    plan = plan_run(predicted_request(captured_options(capture.manifest, str(path))))
    found: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    if probe is None:
        cells = usual_cells(capture)
        calibration = calibrate([Source(capture, plan, cells)])
        predictions = predict(plan, calibration.costs, calibration.use)
    else:
        cells, predictions = frozenset(), predict(plan, probe.costs)
    for miss in misses_of(predictions, capture, cells):
        for figure, column in FIGURES.items():
            error = miss.error(column)
            if error is not None and not miss.is_fitted:
                found[figure].append(abs(error))
    return {figure: _quantiles(errors) for figure, errors in found.items() if errors}


def _quantiles(errors: list[float]) -> dict[str, float]:
    return {"median": float(np.median(errors)), "p90": float(np.quantile(errors, 0.9))}


def llama_errors(files: Sequence[Path], folder: Path) -> Errors:
    """The same of llama-bench's rows on an H200, all files fitted together to two rows a model of each."""
    models = {}
    for name, config in LLAMA_MODELS.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(COMMON | config))
        models[name] = request_of(str(path), "Q4_0")
    rows = [row for file in files for row in read_llama_rows(file, models)]
    by_model = defaultdict(list)
    for row in rows:
        by_model[row.router].append(row)
    fitted = [row for of_model in by_model.values() for row in two_rows(of_model)]
    gpu, link = find_gpu("h200"), find_link("gen5x16")
    machine = SimMachine(gemm_tflop_s=gpu.gemm_tflop_s, memory_gb_s=gpu.memory_gb_s, link_gb_s=link.gb_s)
    fit = fit_llama_rows(fitted, LlamaCppMachine.of(machine))
    errors: dict[str, list[float]] = {"all": [], "prefill": [], "decode": []}
    for row in rows:
        if row not in fitted:
            error = abs(fit.predicted_ns(row) / row.ns - 1)
            errors["all"].append(error)
            errors["prefill" if row.cell.n_prompt else "decode"].append(error)
    return {figure: _quantiles(values) for figure, values in errors.items()}


def speed(folder: Path) -> dict[str, float]:
    """Seconds that predictions take: a grid of 10,000 cells, and one ubatch of a model of 61 layers of 256 experts."""
    layers = {"num_hidden_layers": 61, "num_experts": 256, "hidden_size": 7168, "moe_intermediate_size": 2048}
    path = folder / "large.json"
    path.write_text(json.dumps(COMMON | LLAMA_MODELS["moe.gguf"] | layers))
    cells = tuple(grid(range(512, 10_512, 1000), [16], range(32, 3232, 32), range(0, 10_000, 1000)))
    runs = {"10,000 cells": ("qwen3-30b-a3b", cells), "61 x 256": (str(path), (GridPoint(2048, 0, 2048, 0),))}
    found = {}
    for name, (model, asked) in runs.items():
        request = RunRequest(asked, DeviceOptions("sim"), model=model, quant="Q4_0", arms=("off",))
        plan = plan_run(request, most_cells=len(asked))
        use = expert_use(plan, [layer for layer, shape in enumerate(plan.model.shape.layers) if shape.moe is not None])
        begun = time.perf_counter()
        predict(plan, RateCosts(SimMachine(), plan.session.dtype), use)
        found[name] = time.perf_counter() - begun
    return found


def shared_sweeps(folder: Path) -> Iterator[tuple[str, Path]]:
    """The sweeps among the shared samples, unpacked into `folder`: name and path."""
    for archive in sorted((SHARED / "captures").glob("h200_*_sweep.tar.gz")):
        target = folder / archive.name.removesuffix(".tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(target, filter="data")
        yield target.name, next(target.glob("*/manifest.json")).parent


@click.command()
@click.argument("captures", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON: folder name -> figure -> median and p90.")
@click.option("--probe", "probe_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="By a probe.")
def main(captures: tuple[Path, ...], as_json: bool, probe_file: Path | None) -> None:
    """Print how far predictions of captures' cells are off that they were not fitted to."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        named = [(path.resolve().name, path) for path in captures] or list(shared_sweeps(folder))
        try:
            probe = None if probe_file is None else read_probe(probe_file)
            results = {name: capture_errors(path, probe) for name, path in named}
            rows = sorted((SHARED / "llama-bench").glob("h200_*.jsonl"))
            if rows and not captures and probe is None:
                results["llama-bench h200"] = llama_errors(rows, folder)
            seconds = speed(folder) if not captures and not as_json else {}
        except HprofError as error:
            raise SystemExit(f"benchmarks.prediction: {error}") from None
    if not results:
        click.echo(f"No captures were given, and there are none in {SHARED}.", err=True)
    if as_json:
        click.echo(json.dumps(results, indent=2))
        return
    for name, errors in results.items():
        click.echo(name)
        for figure, found in errors.items():
            click.echo(
                f"  {figure:8s} median {found['median'] * 100:5.1f} %   90th percentile {found['p90'] * 100:5.1f} %"
            )
    for name, taken in seconds.items():
        click.echo(f"predicting {name}: {taken * 1e3:,.0f} ms")


if __name__ == "__main__":
    main()
