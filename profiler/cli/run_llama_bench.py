"""`hprof run --engine llama-bench`: hprof's options as llama-bench's, which has most of the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from click.core import ParameterSource

from executor.errors import HprofError

# given to llama-bench in any case, or only where the user said so; each joined by commas where it may be repeated
_ALWAYS: Final = {"n_prompt": "-p", "n_gen": "-n", "n_depth": "-d", "repetitions": "-r"}
_IF_GIVEN: Final = {
    "n_ubatch": "-ub",
    "override_tensor": "-ot",
    "n_cpu_moe": "-ncmoe",
    "n_gpu_layers": "-ngl",
    "load_mode": "-lm",
    "threads": "-t",
    "flash_attn": "-fa",
}
_PASSED: Final = frozenset({*_ALWAYS, *_IF_GIVEN, "model", "boots", "output", "force", "as_json"})
_OWN: Final = frozenset({"engine", "binary", "nsys", "arm_flags", "prefetch_weights"})


def run(ctx: click.Context, values: Mapping[str, Any], arguments: Sequence[str], default_output: str) -> str:
    """Run the arms and give back the capture's address. Raises HprofError for options that llama-bench has not."""
    from profiler.engines.arms import parse_arms
    from profiler.engines.llama_bench import BenchRequest, run_llama_bench

    if values["binary"] is None:
        raise HprofError("--engine llama-bench needs --bin, the path of llama-bench.")
    _refuse_others(ctx)
    request = BenchRequest(
        binary=values["binary"],
        arms=parse_arms(values["arm_flags"] or _prefetch_arms(values["prefetch_weights"])),
        flags=_flags(ctx, values),
        boots=values["boots"],
        nsys=values["nsys"],
    )
    result = run_llama_bench(
        request,
        values["output"] or default_output,
        force=values["force"],
        argv=["hprof", "run", *arguments],
        say=lambda text: click.echo(text, err=True),
    )
    if result.traces is not None:
        click.echo(f"Wrote {result.traces}, the traces: hprof report {result.traces}", err=values["as_json"])
    return result.capture


def _prefetch_arms(prefetch: str | None) -> tuple[str, ...]:
    names = {"0": "off", "1": "on"}
    wanted = [word.strip() for word in (prefetch or "0,1").split(",")]
    if not set(wanted) <= names.keys():
        raise HprofError(f"-pw {prefetch} is not 0, 1 or 0,1; other arms are given as --arm NAME=FLAGS.")
    return tuple(f"{names[word]}=-pw {word}" for word in wanted)


def _flags(ctx: click.Context, values: Mapping[str, Any]) -> tuple[str, ...]:
    if not _is_given(ctx, "model"):
        raise HprofError("--engine llama-bench needs -m, a GGUF file: it has no presets.")
    flags = ["-m", str(values["model"])]
    for name, flag in (_ALWAYS | {n: f for n, f in _IF_GIVEN.items() if _is_given(ctx, n)}).items():
        value = values[name]
        flags += [flag, ",".join(value) if isinstance(value, tuple | list) else str(value)]
    return tuple(flags)


def _refuse_others(ctx: click.Context) -> None:
    """An option that would silently do nothing is an error."""
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name not in _PASSED | _OWN and _is_given(ctx, name):
            raise HprofError(f"{parameter.opts[0]} is not for --engine llama-bench; give its own flags in --arm.")


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
