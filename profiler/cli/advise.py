"""`hprof advise`: what to set, what it gives, and how sure that is."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from executor.errors import HprofError
from profiler.cli.asked import AskedOptions
from profiler.cli.completion import complete_captures
from profiler.cli.options import WholeRange, engine_option, named, predict_options
from profiler.cli.printing import console, say

if TYPE_CHECKING:
    from profiler.cli.advise_output import LlamaCppCommands
    from profiler.planning.request import RunRequest
    from profiler.predicting.advise import Advice
    from profiler.predicting.candidates import Candidate

_MOST_VERIFIED: Final = 16


@click.command()
@predict_options
@click.option(
    "--objective",
    type=click.Choice(["ttft", "prefill", "decode", "mix"]),
    default="mix",
    help="What to make best; mix: the whole time of prompts and tokens.",
)
@engine_option("Whose settings to tell; llama.cpp: the command to type.")
@click.option(
    "--fit",
    "fits",
    shell_complete=complete_captures,
    multiple=True,
    metavar="CAPTURE",
    callback=named,
    help="Fit to this capture of hprof run; for llama.cpp, to rows of llama-bench too (a file).",
)
@click.option(
    "--verify",
    type=WholeRange(0, _MOST_VERIFIED),
    default=0,
    help="Run the best so many; tell how well it knew.",
)
@click.option("--prefetch-build", is_flag=True, help="llama.cpp: the build has -pw and --moe-cache-mib.")
@click.pass_context
def command(ctx: click.Context, /, **_values: Any) -> None:
    """Search arm, ubatch, slots, cache and placement for what is best under a budget of device memory.

    \b
    hprof advise -m qwen3-30b-a3b --vram-budget 12GiB -p 34,8192 -n 512 --gpu rtx4090 --link gen4x16
    hprof advise --fit traces/sweep --vram-budget 24GiB --objective ttft
    hprof advise -m model.gguf --gpu rtx3090 --link gen4x16 --for llama.cpp
    hprof advise -m model.gguf --for llama.cpp --fit rows.jsonl --link gen5x16 --vram-budget 16GiB

    The budget is that of each device, or one for each (12GiB,24GiB); without it, a known GPU's memory is. -ub is
    searched.
    """
    asked = AskedOptions.of(ctx)
    searched = _search(asked)
    request, found, spread, notes = searched.request, searched.advice, searched.spread, searched.notes
    verified = _verify(request, found, asked) if asked.verify else []
    from profiler.cli.advise_output import advice_blocks, advice_json
    from profiler.report.terminal import print_block

    typed = searched.llama_cpp
    if asked.as_json:
        import orjson

        say(orjson.dumps(advice_json(found, spread, notes, typed, verified), option=orjson.OPT_INDENT_2).decode())
        return
    out = console()
    for block in advice_blocks(found, spread, notes, typed, verified):
        print_block(block, out)


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found, for which request, and how sure it is. `notes` must be said first; `llama_cpp`: the commands
    to type, where that engine was asked for.
    """

    request: RunRequest
    advice: Advice
    spread: dict[str, float | None]
    notes: list[str]
    llama_cpp: LlamaCppCommands | None


def searched_by(options: Sequence[str]) -> Searched:
    """What the command finds with these options. Raises HprofError for what it would refuse."""
    try:
        context = command.make_context("advise", list(options))
    except click.ClickException as error:
        raise HprofError(error.format_message()) from error
    return _search(AskedOptions.of(context))


def _search(asked: AskedOptions) -> Searched:
    from executor.memory.budget import Budget
    from executor.units import format_bytes, listed
    from profiler.cli.advise_output import llama_cpp_commands
    from profiler.cli.ground import advice_ground
    from profiler.predicting.advise import advise

    ground = advice_ground(asked)
    request, told, machine = ground.request, asked.vram_budget, ground.request.device.machine
    memory = machine.memory_bytes if machine is not None else None
    if told is None and memory is None:
        raise HprofError("advise needs a budget of device memory: give --vram-budget, e.g. 24GiB, or --gpu.")
    budget = Budget.parse(told, "--vram-budget") if told is not None else Budget((memory or 0,))
    notes = [*_searched_anyway(asked), *ground.notes]
    beyond = [own for own in budget.n_bytes if memory is not None and own > memory]
    if memory is not None and beyond:
        told_so = listed(map(format_bytes, beyond))
        notes.append(f"A device has {format_bytes(memory)}: that is the budget, and not {told_so}.")
        budget = budget.within(memory)
    found = advise(request, budget, asked.objective, ground.costs, ground.use)
    is_for_llama = asked.engine == "llama.cpp"
    typed = llama_cpp_commands(found.best, request, has_prefetch=asked.prefetch_build)
    return Searched(request, found, ground.spread, notes, typed if is_for_llama else None)


_SEARCHED: Final = {
    "n_ubatch": "-ub",
    "slots": "--slots",
    "moe_cache_mib": "--moe-cache-mib",
    "override_tensor": "-ot",
    "n_cpu_moe": "-ncmoe",
    "n_gpu_layers": "-ngl",
}


def _searched_anyway(asked: AskedOptions) -> list[str]:
    """A sentence on what was given and is searched instead; none where that is nothing."""
    from executor.units import listed

    given = [flag for name, flag in _SEARCHED.items() if name in asked.typed]
    if not given:
        return []
    does = "does" if len(given) == 1 else "do"
    return [f"{listed(given)} {does} nothing here: that is what is searched (hprof predict takes it as given)."]


def _verify(
    request: RunRequest, found: Advice, asked: AskedOptions
) -> list[tuple[Candidate, float | None, float | None]]:
    """The best few, run for real: each with its time to first token and its decode time, in ns."""
    from dataclasses import replace

    from executor.devices.factory import default_kind
    from profiler.capture import Capture
    from profiler.planning.plan import plan_run
    from profiler.predicting.advise import verified_request
    from profiler.predicting.measured import measured_cells
    from profiler.running.progress import make_progress
    from profiler.running.run_manifest import initial_fields
    from profiler.running.runner import run_capture
    from profiler.storage.writer import new_capture

    device = replace(request.device, kind=asked.device or default_kind())
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for number, one in enumerate(found.ranked[: asked.verify]):
            chosen = replace(verified_request(request, one, repetitions=3), device=device, dtype="auto")
            plan = plan_run(chosen)
            path = str(Path(folder) / str(number))
            writer = new_capture(path, force=False, source="hprof", **initial_fields(plan, ["hprof", "advise"]))
            run_capture(plan, writer, make_progress())
            writer.finish()
            measured = measured_cells(Capture.open(path)).values()
            results.append((one, _sum(cell.ttft_ns for cell in measured), _sum(cell.decode_ns for cell in measured)))
    return results


def _sum(values: Any) -> float | None:
    known: Sequence[float] = [value for value in values if value is not None]
    return sum(known) if known else None
