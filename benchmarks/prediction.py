"""How far predictions are off: `python -m benchmarks.prediction [CAPTURE ...] [--json]`.

Each capture is fitted on three of its cells (`profiler.predicting.calibrate.usual_cells`) and predicted in all others.
Without captures it takes the sweeps among the project's shared samples. Relative errors of what was not fitted.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import numpy as np

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.cli.captured_request import captured_values, predicted_request
from profiler.planning.plan import plan_run
from profiler.predicting.calibrate import Source, calibrate, usual_cells
from profiler.predicting.measured import misses_of
from profiler.predicting.predictor import predict

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
FIGURES = {"ttft": "ttft_ns", "prefill": "prefill_ns", "decode": "decode_ns", "bytes": "bytes_h2d"}
Errors = dict[str, dict[str, float]]


def capture_errors(path: Path) -> Errors:
    """Median and 90th percentile of the relative errors of a capture's cells that were not fitted, by figure."""
    capture = Capture.open(path)
    plan = plan_run(predicted_request(captured_values(capture.manifest, str(path))))
    cells = usual_cells(capture)
    calibration = calibrate([Source(capture, plan, cells)])
    found: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    for miss in misses_of(predict(plan, calibration.costs, calibration.use), capture, cells):
        for figure, column in FIGURES.items():
            error = miss.error(column)
            if error is not None and not miss.is_fitted:
                found[figure].append(abs(error))
    return {figure: _quantiles(errors) for figure, errors in found.items() if errors}


def _quantiles(errors: list[float]) -> dict[str, float]:
    return {"median": float(np.median(errors)), "p90": float(np.quantile(errors, 0.9))}


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
def main(captures: tuple[Path, ...], as_json: bool) -> None:
    """Print how far predictions of captures' cells are off that they were not fitted to."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        named = [(path.resolve().name, path) for path in captures] or list(shared_sweeps(folder))
        try:
            results = {name: capture_errors(path) for name, path in named}
        except HprofError as error:
            raise SystemExit(f"benchmarks.prediction: {error}") from None
    if as_json:
        click.echo(json.dumps(results, indent=2))
        return
    for name, errors in results.items():
        click.echo(name)
        for figure, found in errors.items():
            click.echo(
                f"  {figure:8s} median {found['median'] * 100:5.1f} %   90th percentile {found['p90'] * 100:5.1f} %"
            )


if __name__ == "__main__":
    main()
