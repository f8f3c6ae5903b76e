"""`hprof run --engine`: llama-bench, or any commands. Their options, and what they are asked to run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import click

from executor.errors import HprofError
from profiler.cli.options import given_values
from profiler.cli.printing import say
from profiler.cli.run_output import default_output

# given to llama-bench in any case, or only where the user said so; each joined by commas where it may be repeated
_BENCH_ALWAYS: Final = {"n_prompt": "-p", "n_gen": "-n", "n_depth": "-d", "repetitions": "-r"}
_BENCH_IF_GIVEN: Final = {
    "n_ubatch": "-ub",
    "override_tensor": "-ot",
    "n_cpu_moe": "-ncmoe",
    "n_gpu_layers": "-ngl",
    "load_mode": "-lm",
    "threads": "-t",
    "flash_attn": "-fa",
    "batch_size": "-b",
    "split_mode": "-sm",
    "tensor_split": "-ts",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
}
_OF_BOTH: Final = frozenset(
    {"engine", "arm_flags", "boots", "timeout", "record", "output", "force", "is_whole", "as_json"}
)
_OF_BENCH: Final = _OF_BOTH | {*_BENCH_ALWAYS, *_BENCH_IF_GIVEN, "model", "binary", "nsys", "prefetch_weights"}
_OF_COMMANDS: Final = _OF_BOTH | {"metrics"}


def run_engine(ctx: click.Context, values: Mapping[str, Any], arguments: Sequence[str]) -> str:
    """Run the arms of another engine and give back the capture's address. Raises HprofError for options it has not."""
    run = {"llama-bench": _run_bench, "command": _run_commands}[values["engine"]]
    return run(ctx, values, arguments)


def _run_commands(ctx: click.Context, values: Mapping[str, Any], arguments: Sequence[str]) -> str:
    from profiler.engines.command import CommandRequest, parse_commands, run_commands
    from profiler.engines.readings import parse_rules

    _refuse_others(ctx, _OF_COMMANDS, "command", "it belongs into the commands of --arm, or nowhere")
    request = CommandRequest(
        parse_commands(values["arm_flags"]),
        boots=values["boots"],
        rules=parse_rules(values["metrics"]),
        record=values["record"],
        timeout_s=values["timeout"],
    )
    return run_commands(
        request,
        values["output"] or default_output("command"),
        force=values["force"],
        argv=["hprof", "run", *arguments],
        say=lambda text: say(text, err=True),
    )


def _run_bench(ctx: click.Context, values: Mapping[str, Any], arguments: Sequence[str]) -> str:
    from profiler.engines.bench_arms import parse_arms
    from profiler.engines.llama_bench import BenchRequest, run_llama_bench

    if not values["binary"]:
        raise HprofError("--engine llama-bench needs --bin, the path of llama-bench.")
    _refuse_others(ctx, _OF_BENCH, "llama-bench", "give its own flags in --arm")
    request = BenchRequest(
        binary=values["binary"][0],
        other_binaries=values["binary"][1:],
        arms=parse_arms(values["arm_flags"] or _bench_arms(ctx, values)),
        flags=_bench_flags(ctx, values),
        boots=values["boots"],
        nsys=values["nsys"],
        record=values["record"],
        timeout_s=values["timeout"],
    )
    result = run_llama_bench(
        request,
        values["output"] or default_output("llama-bench"),
        force=values["force"],
        argv=["hprof", "run", *arguments],
        say=lambda text: say(text, err=True),
    )
    if result.traces is not None:
        say(f"Wrote {result.traces}, the traces: hprof report {result.traces}", err=values["as_json"])
    return result.capture


def _bench_arms(ctx: click.Context, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Without --arm: several builds are the arms, unless -pw was asked for too."""
    if len(values["binary"]) > 1 and "prefetch_weights" not in given_values(ctx):
        return ("build=",)
    from profiler.cli.run_request import prefetch_arms

    return tuple(f"{name}=-pw {flag}" for flag, name in prefetch_arms(values["prefetch_weights"]))


def _bench_flags(ctx: click.Context, values: Mapping[str, object]) -> tuple[str, ...]:
    if "model" not in given_values(ctx):
        raise HprofError("--engine llama-bench needs -m, a GGUF file: it has no presets.")
    given = given_values(ctx)
    flags = ["-m", str(values["model"])]
    for name, flag in (_BENCH_ALWAYS | {n: f for n, f in _BENCH_IF_GIVEN.items() if n in given}).items():
        value = values[name]
        flags += [flag, ",".join(value) if isinstance(value, tuple | list) else str(value)]
    return tuple(flags)


def _refuse_others(ctx: click.Context, known: Collection[str], engine: str, instead: str) -> None:
    """An option that would silently do nothing is an error."""
    given = given_values(ctx)
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name not in known and name in given:
            raise HprofError(f"{parameter.opts[0]} is not for --engine {engine}; {instead}.")
