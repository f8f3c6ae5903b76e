"""`hprof run --engine`: llama-bench, or any commands. Their options, and what they are asked to run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import click

from executor.errors import HprofError
from profiler.cli.asked import AskedOptions
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


def run_engine(command: click.Command, asked: AskedOptions, arguments: Sequence[str]) -> str:
    """Run the arms of another engine and give back the capture's address. Raises HprofError for options it has not."""
    run = {"llama-bench": _run_bench, "command": _run_commands}[asked.engine]
    return run(command, asked, arguments)


def _run_commands(command: click.Command, asked: AskedOptions, arguments: Sequence[str]) -> str:
    from profiler.engines.command import CommandRequest, parse_commands, run_commands
    from profiler.engines.readings import parse_rules

    _refuse_others(command, asked, _OF_COMMANDS, "command", "it belongs into the commands of --arm, or nowhere")
    request = CommandRequest(
        parse_commands(asked.arm_flags),
        boots=asked.boots,
        rules=parse_rules(asked.metrics),
        record=asked.record,
        timeout_s=asked.timeout,
    )
    return run_commands(
        request,
        asked.output or default_output("command"),
        force=asked.force,
        argv=["hprof", "run", *arguments],
        say=lambda text: say(text, err=True),
    )


def _run_bench(command: click.Command, asked: AskedOptions, arguments: Sequence[str]) -> str:
    from profiler.engines.bench_arms import parse_arms
    from profiler.engines.llama_bench import BenchRequest, run_llama_bench

    if not asked.binary:
        raise HprofError("--engine llama-bench needs --bin, the path of llama-bench.")
    _refuse_others(command, asked, _OF_BENCH, "llama-bench", "give its own flags in --arm")
    request = BenchRequest(
        binary=asked.binary[0],
        other_binaries=asked.binary[1:],
        arms=parse_arms(asked.arm_flags or _bench_arms(asked)),
        flags=_bench_flags(asked),
        boots=asked.boots,
        nsys=asked.nsys,
        record=asked.record,
        timeout_s=asked.timeout,
    )
    result = run_llama_bench(
        request,
        asked.output or default_output("llama-bench"),
        force=asked.force,
        argv=["hprof", "run", *arguments],
        say=lambda text: say(text, err=True),
    )
    if result.traces is not None:
        say(f"Wrote {result.traces}, the traces: hprof report {result.traces}", err=asked.as_json)
    return result.capture


def _bench_arms(asked: AskedOptions) -> tuple[str, ...]:
    """Without --arm: several builds are the arms, unless -pw was asked for too."""
    if len(asked.binary) > 1 and "prefetch_weights" not in asked.typed:
        return ("build=",)
    from profiler.cli.run_request import prefetch_arms

    return tuple(f"{name}=-pw {flag}" for flag, name in prefetch_arms(asked.prefetch_weights))


def _bench_flags(asked: AskedOptions) -> tuple[str, ...]:
    if "model" not in asked.typed:
        raise HprofError("--engine llama-bench needs -m, a GGUF file: it has no presets.")
    flags = ["-m", str(asked.model)]
    for name, flag in (_BENCH_ALWAYS | {n: f for n, f in _BENCH_IF_GIVEN.items() if n in asked.typed}).items():
        value = asked.values[name]
        flags += [flag, ",".join(value) if isinstance(value, tuple | list) else str(value)]
    return tuple(flags)


def _refuse_others(
    command: click.Command, asked: AskedOptions, known: Collection[str], engine: str, instead: str
) -> None:
    """An option that would silently do nothing is an error."""
    for parameter in command.params:
        name = parameter.name or ""
        if name not in known and name in asked.typed:
            raise HprofError(f"{parameter.opts[0]} is not for --engine {engine}; {instead}.")
