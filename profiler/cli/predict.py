"""`hprof predict`: what a run would measure, without running it; and how far that is from a capture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from executor.errors import HprofError
from profiler.cli.asked import AskedOptions
from profiler.cli.completion import complete_captures
from profiler.cli.options import engine_option, named, predict_options
from profiler.cli.printing import console, say

if TYPE_CHECKING:
    from profiler.planning.plan import RunPlan
    from profiler.predicting.forecast import Forecast

_FROM_RATES: Final = "From rates alone: nothing says how far off they are, so no figure has an interval."


@click.command()
@predict_options
@click.option(
    "--fit",
    "fits",
    multiple=True,
    metavar="CAPTURE",
    callback=named,
    shell_complete=complete_captures,
    help="Fit to all cells of this capture of hprof run; for llama.cpp, to rows of llama-bench too (a file).",
)
@engine_option("Whose scheduler and kernels; llama.cpp: what llama-bench would print.")
@click.option(
    "--against",
    shell_complete=complete_captures,
    metavar="CAPTURE",
    callback=named,
    help="Show how far off it is there; without --fit or --probe, fitted to three of its cells.",
)
@click.pass_context
def command(ctx: click.Context, /, **_values: Any) -> None:
    """Predict what `hprof run` would measure: times with intervals, bytes, device memory.

    \b
    hprof predict -m qwen3-30b-a3b -ub 128-4096*2 -p 4096 --arms off,on,hot,full --gpu rtx4090 --link gen4x16
    hprof predict --fit traces/sweep -ub 8192 -d 0,32768
    hprof predict --against traces/sweep
    hprof predict -m model.gguf --for llama.cpp --fit rows.jsonl --link gen4x16 -ncmoe 20 -p 4096 -n 64 -ub 512,2048
    hprof predict -m model.gguf --for llama.cpp --against traces/llama-bench --link gen4x16

    With --fit or --against, what is not given is as in the first such capture. Without them, this machine's probe
    decides where there is one (hprof probe), or the rates of --gpu, --link and the flags of each, by the rules of
    --device sim. -o DIR keeps the prediction as a capture, for the dashboard.
    """
    from profiler.plain_text import printable

    asked = AskedOptions.of(ctx)
    if asked.force and asked.output is None:
        raise HprofError("--force replaces the capture at -o, and none is kept here: add -o DIR, or leave --force out.")
    forecast, plan = (_of_llama_cpp if asked.engine == "llama.cpp" else _forecast)(asked)
    assumed = [] if asked.fits or asked.against else _unasked(asked)
    notes = [*assumed, *(f"{note}." for note in plan.model.shape.notes)]
    forecast = replace(forecast, notes=(*forecast.notes, *notes))
    if asked.output is not None:
        _keep(forecast, plan, asked, asked.output)
    if asked.as_json:
        import orjson

        say(orjson.dumps(forecast.to_json(), option=orjson.OPT_INDENT_2).decode())
        return
    from profiler.cli.predict_output import forecast_blocks
    from profiler.report.terminal import drawn_block

    out = console()
    for block in forecast_blocks(forecast):
        for part in drawn_block(block):
            out.print(part)
    if asked.output is not None:
        say(printable(f"Wrote {asked.output}: hprof report {asked.output}"))


def _forecast(asked: AskedOptions) -> tuple[Forecast, RunPlan]:
    from profiler.cli.captured_request import predicted_request
    from profiler.cli.ground import MOST_CELLS, Basis
    from profiler.planning.plan import plan_run
    from profiler.predicting.forecast import Forecast
    from profiler.predicting.measured import misses_of
    from profiler.predicting.predictor import predict

    basis = Basis.of(asked)
    plan = plan_run(predicted_request(basis.options()), MOST_CELLS)
    ground = basis.ground(plan.request, plan)
    predictions, misses = predict(plan, ground.costs, ground.use), []
    if asked.against is not None:
        fitted = ground.cells or ({one.cell for one in predictions} if asked.against in asked.fits else ())
        misses = misses_of(predictions, basis.captures[asked.against], fitted, with_steps=True)
    notes = [] if ground.fitted_to else [_FROM_RATES]
    name, told = plan.model.shape.name, [*ground.notes, *notes]
    return Forecast(name, _baseline(plan), predictions, ground.spread, ground.fitted_to, misses, told), plan


def _of_llama_cpp(asked: AskedOptions) -> tuple[Forecast, RunPlan]:
    from profiler.cli.ground import MOST_CELLS, llama_cpp_ground
    from profiler.planning.plan import plan_run
    from profiler.predicting.forecast import Forecast
    from profiler.predicting.predictor import predict

    if asked.against is not None:
        return _of_llama_cpp_against(asked, asked.against)
    ground = llama_cpp_ground(asked)
    plan = plan_run(ground.request, MOST_CELLS)
    predictions = predict(plan, ground.costs, ground.use)
    name = f"{plan.model.shape.name} in llama.cpp"
    return Forecast(name, _baseline(plan), predictions, ground.spread, ground.fitted_to, notes=ground.notes), plan


def _of_llama_cpp_against(asked: AskedOptions, against: str) -> tuple[Forecast, RunPlan]:
    """Each test of a capture of llama-bench; fitted to the rows of `--fit`, or to two of its own."""
    from profiler.capture import Capture
    from profiler.cli.ground import llama_cpp_rates
    from profiler.predicting.forecast import Forecast
    from profiler.predicting.llama_cpp import LlamaCppMachine
    from profiler.predicting.llama_rows import captured_rows, fit_llama_rows, read_llama_rows, request_of, two_rows

    if asked.output is not None:
        raise HprofError("-o keeps predictions of a grid: leave it out with --against for llama.cpp, or use --json.")
    if "model" not in asked.typed:
        raise HprofError(f"say which model {against} is of: add -m (a preset, a config.json or a GGUF file).")
    capture = Capture.open(against)
    of_model = request_of(asked.model, asked.quant, asked.layers)
    told = [row for path in asked.fits for row in read_llama_rows(Path(path), {"": of_model})]
    rows = captured_rows(capture, of_model, told[0].router if told else None)
    rates, notes = llama_cpp_rates(asked, str(capture.manifest.machine.get("gpu") or ""))
    fitted = told or two_rows(rows)
    fit = fit_llama_rows(fitted, LlamaCppMachine.of(rates))
    misses = [fit.miss(row, fitted) for row in rows]
    names = [Path(path).name for path in asked.fits] or [f"{len(fitted)} tests of {capture.name}"]
    spread: dict[str, float | None] = {"ttft": fit.spread, "decode": fit.spread}
    name, predictions = f"{rows[0].plan.model.shape.name} in llama.cpp", [miss.prediction for miss in misses]
    return Forecast(name, rows[0].label, predictions, spread, names, misses, notes), rows[0].plan


def _unasked(asked: AskedOptions) -> list[str]:
    """What was assumed of the workload where no option says it."""
    usual = {"n_prompt": "-p", "n_gen": "-n", "n_ubatch": "-ub"}
    assumed = [f"{flag} {','.join(asked.values[name])}" for name, flag in usual.items() if name not in asked.typed]
    return [f"Nobody said what is run: taken as {' '.join(assumed)}."] if assumed else []


def _baseline(plan: RunPlan) -> str:
    return next(iter(plan.setups[0].labels))


def _keep(forecast: Forecast, plan: RunPlan, asked: AskedOptions, output: str) -> None:
    """Write the predictions as a capture of one pass an arm and cell."""
    from profiler.cli.machine_options import imagined
    from profiler.running.run_manifest import initial_fields
    from profiler.storage.writer import PassKey, new_capture

    fields = initial_fields(plan, ["hprof", "predict"])
    told = ("device", "n_devices") if forecast.fitted_to else ("device", "n_devices", "rates")
    machine = {name: fields["machine"][name] for name in told}  # this one's processor has no part in it
    if "rates" in machine:
        machine["rates"] = {name: rate for name, rate in machine["rates"].items() if name != "host_call_us"}
        machine |= imagined(asked)
    fields["machine"] = machine
    fields["warnings"] = ["Predicted, not measured.", *forecast.notes]
    fields["cannot_say"] = ["what happened when inside a pass: a prediction keeps no events"]
    writer = new_capture(output, force=asked.force, source="predicted", **fields)
    end = 0
    for number, one in enumerate(forecast.predictions):
        cell, start = one.cell, end
        end = start + round((one.ttft_ns or 0.0) + (one.decode_ns or 0.0))
        key = PassKey(one.label, cell.n_ubatch, cell.n_depth, cell.n_prompt, cell.n_gen, 0, number, 0)
        times = {"ttft_ns": one.ttft_ns, "prefill_ns": one.prefill_ns, "decode_ns": one.decode_ns}
        rounded = {name: None if ns is None else round(ns) for name, ns in times.items()}
        writer.add_pass_row(
            number, key, t_start=start, t_end=end, n_decoded=cell.n_decoded, bytes_h2d=round(one.bytes_h2d),
            vram_peak=sum(one.vram.values()), **one.vram, **rounded,
        )  # fmt: skip
    writer.finish()
