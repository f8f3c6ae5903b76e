"""The options of the commands: those that several share, then all of `hprof run`, spelled as llama-bench spells them
where it has them. Each is spelled and explained once. Imports nothing heavy, so that help stays light.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from executor.errors import HprofError
from executor.fault_names import FAULT_MEANINGS
from executor.units import LARGEST_COUNT
from profiler.cli.completion import complete_arms, complete_models, complete_quants
from profiler.cli.llama_flags import LLAMA_FLAGS

Command = TypeVar("Command", bound=Callable[..., Any])

_MAX_SEED: Final = 2**32 - 1


class WholeRange(click.IntRange):
    """An IntRange that refuses digits of other scripts, which Python reads and no other program on the line does."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        _refuse_other_digits(self, value, param, ctx)
        return int(super().convert(value, param, ctx))


class FiniteRange(click.FloatRange):
    """A FloatRange that refuses nan, which no bound compares with, infinity, and digits of other scripts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        _refuse_other_digits(self, value, param, ctx)
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def _refuse_other_digits(
    kind: click.ParamType[Any], value: Any, param: click.Parameter | None, ctx: click.Context | None
) -> None:
    if isinstance(value, str) and not value.isascii():
        kind.fail(f"{value!r} is not a number: write it with the digits 0 to 9.", param, ctx)


class OnceOption(click.Option):
    """An option of one value, which llama-bench would take a list of: given again it is refused, not replaced."""

    def __init__(self, *args: Any, instead: str, **settings: Any) -> None:
        """instead: what to do, ends the sentence; `{}` in it stands for the second value."""
        super().__init__(*args, **settings | {"multiple": True})
        self._instead = instead

    def value_from_envvar(self, ctx: click.Context) -> Any:
        found = self.resolve_envvar_value(ctx)
        return None if found is None else (found,)  # click would cut a path at its blanks

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        values = super().process_value(ctx, value)
        if len(values) > 1:
            raise HprofError(f"{self.opts[0]} is given {len(values)} times: {self._instead.format(values[1])}.")
        return values[0]


def named(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """A callback for names of files and folders: an empty one, as an unset variable of a shell gives, would stand for
    the folder that one happens to be in."""
    values = value if isinstance(value, tuple) else (value,)
    if any(isinstance(one, str) and not one.strip() for one in values):
        what = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.make_metavar(context)
        raise HprofError(f"{what.removesuffix('...').strip('[]')} is empty: give a path or an address.")
    return value


def refuse_other_format(*, as_json: bool, form: str) -> None:
    """Raise HprofError where `--json` stands beside a `--format` that was typed and is another."""
    source = click.get_current_context().get_parameter_source("form")
    if as_json and form != "json" and source is click.core.ParameterSource.COMMANDLINE:
        raise HprofError(f"--json and --format {form} contradict each other: give one of them.")


def json_option(command: Command) -> Command:
    """`--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def whole_option(command: Command) -> Command:
    """`--all`, as the parameter `is_whole`."""
    text = "Print the whole report: every cell, figure, warning and finding."
    return click.option("--all", "is_whole", is_flag=True, help=text)(command)


def output_option(command: Command) -> Command:
    """`-o/--output DIR`, as the parameter `output` (None where it is left out)."""
    text = "The capture's folder, or an fsspec URL.  [default: traces/<name>]"
    return click.option("-o", "--output", metavar="DIR", show_default=False, callback=named, help=text)(command)


def force_option(command: Command) -> Command:
    """`--force`, as the parameter `force`."""
    return click.option("--force", is_flag=True, help="Replace a capture that is already there.")(command)


def seed_option(command: Command) -> Command:
    """`--seed N`, as the parameter `seed`."""
    return click.option("--seed", type=WholeRange(0, _MAX_SEED), default=0, help="Seed of all random choices.")(command)


def noise_option(command: Command) -> Command:
    """`--noise SHARE`, as the parameter `noise`."""
    text = "Relative change that counts as none, e.g. 0.01 for 1 %."
    return click.option("--noise", type=FiniteRange(0, 1, max_open=True), default=0.01, help=text)(command)


def dask_option(work: str) -> Callable[[Command], Command]:
    """`--dask ADDRESS`, as the parameter `dask` (None where it is left out); `work` is what the workers do."""
    text = f"Have the workers of this Dask scheduler {work} (pip install 'hprof[cluster]')."
    return click.option("--dask", metavar="ADDRESS", help=text)


class ArmsOption(click.Option):
    """`--arms`, whose help lists the arms; only help asks the registry, since every command loads this file."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from executor.policies import arm_names

        record = super().get_help_record(ctx)
        names = ", ".join(name for name in arm_names() if "+" not in name)
        return None if record is None else (record[0], f"{record[1]} {names}, and ARM+cache.")


def _grid(*names: str, default: str, help: str) -> Callable[[Any], Any]:  # noqa: A002 - click's own word
    """An option that takes a comma list or a range, and may be repeated."""
    return click.option(
        *names,
        multiple=True,
        metavar="N,…",
        default=[default],
        show_default=False,
        help=f"{help}  [default: {default}]",
    )


_MOST_THREADS: Final = 1024  # thread libraries end the process where the system gives them no more


def threads_option(command: Command) -> Command:
    """`-t/--threads N`, as the parameter `threads` (None where it is left out)."""
    text = "Cores for compute.  [default: all but one]"
    return click.option("-t", "--threads", type=WholeRange(1, _MOST_THREADS), help=text)(command)


_MODEL: Final = [
    click.option(
        *("-m", "--model", "--config", "model"),
        cls=OnceOption,
        instead="one run is of one model; give one here, and run again for {}",
        default=["tiny-dense"],
        shell_complete=complete_models,
        help="A GGUF file, a Hugging Face config.json, or a preset (`hprof models` lists them).",
    ),
    click.option(
        "--quant",
        metavar="TYPE",
        shell_complete=complete_quants,
        help="Store a preset's weights in this type, or llama.cpp's mixture, e.g. Q4_K_M; "
        "of A,B layers have each in turn.",
    ),
    click.option("--layers", type=WholeRange(min=1), help="Run only the first so many layers."),
    click.option("--routing", metavar="SPEC", help="Who chooses experts: model, lognormal, zipf, uniform, trace:FILE."),
]
_GRID: Final = [
    _grid("-p", "--n-prompt", default="512", help="Prompt tokens: 512, or 512,2048, or a range as 128-2048*2."),
    _grid("-n", "--n-gen", default="16", help="Tokens to generate after the prompt."),
    _grid("-ub", "--n-ubatch", default="32,256", help="Tokens that go through the layers together."),
    _grid("-d", "--n-depth", default="0", help="Tokens in the KV cache before the prompt."),
    click.option(
        "--all-logits",
        is_flag=True,
        help="Logits of all of the prompt's tokens: its last layer and the output then compute every row, not one.",
    ),
]
_REPEATS: Final = [
    click.option(
        "-r", "--repetitions", type=WholeRange(1, 100_000), default=6, help="Measured passes an arm and cell."
    ),
    click.option("--boots", type=WholeRange(1, 100), default=1, help="Repeat all of it in fresh processes."),
]
_PLACEMENT: Final = [
    click.option(
        "-ot",
        "--override-tensor",
        multiple=True,
        metavar="REGEX=CPU",
        help="Weights to keep in host memory; ';' joins overrides, ',' or another -ot begins another configuration, as "
        "for llama-bench (llama-server's ',' is ';' here).  [default: all experts, ffn_(gate|up|down)_exps.*=CPU; "
        "without any, ffn_(gate|up|down).*=CPU]",
    ),
    click.option("-ncmoe", "--n-cpu-moe", multiple=True, metavar="N,…", help="Keep the first N layers' experts there."),
    click.option(
        "-ngl",
        "--n-gpu-layers",
        multiple=True,
        metavar="N,…",
        help="Keep only the output and the last N - 1 layers resident; or all.",
    ),
    click.option(
        "--vram-budget",
        metavar="SIZE",
        help="Keep as many layers' FFN weights resident as fit on each device, e.g. 24GiB; slots and bank count. "
        "One for each: 12GiB,24GiB.",
    ),
    click.option(
        *("-lm", "--load-mode"),
        type=click.Choice(["none", "mmap", "register", "mlock"]),
        default="none",
        help="Host memory: pinned, memory-mapped (pageable), or mapped and pinned in place; mlock: llama-bench alone.",
    ),
    click.option("--madvise", is_flag=True, help="Ask the system to read a mapped file's host weights ahead."),
]
_MOST_MIB: Final = 2**30
_FASTEST_GB_S: Final = 1e6  # beyond it a copy takes no time that a clock can tell
_ARMS: Final = [
    click.option(
        "--arms",
        cls=ArmsOption,
        metavar="LIST",
        shell_complete=complete_arms,
        help="Copy policies to compare, the first is the baseline:",
    ),
    click.option("-pw", "--prefetch-weights", metavar="0,1", help="The same as --arms off,on.  [default: 0,1]"),
    click.option("--slots", type=WholeRange(2, 64), default=2, help="Device buffers that prefetch rotates."),
    click.option(
        "--gate-min-batch", type=WholeRange(0, LARGEST_COUNT), default=512, help="`gated` prefetches from here up."
    ),
    click.option(
        "--op-offload-min-batch",
        type=WholeRange(0, LARGEST_COUNT),
        default=32,
        help="Below it a ubatch's FFN and expert weights in host memory are used on the CPU, not copied.",
    ),
    click.option("--moe-cache-mib", type=WholeRange(0, _MOST_MIB), default=0, help="Size of the expert cache's bank."),
    click.option(
        "--cache-policy", type=click.Choice(["lru", "frequency"]), default="lru", help="What the cache keeps."
    ),
]
_MACHINE: Final = [
    click.option("--gpu", metavar="NAME", help="sim: the rates that this GPU reaches, e.g. rtx4090."),
    click.option("--link", metavar="NAME", help="cpu, sim: the speed that this link reaches, e.g. gen4x16."),
    click.option("--gemm-tflop-s", type=FiniteRange(1e-3, 1e6), help="sim: products on the device."),
    click.option("--memory-gb-s", type=FiniteRange(1e-3, 1e6), help="sim: device memory."),
    click.option("--device-memory", metavar="SIZE", help="sim: how much of it there is, e.g. 24GiB."),
    click.option("--launch-us", type=FiniteRange(0, 1e6), help="sim: a step on the device, besides its work."),
    click.option("--host-call-us", type=FiniteRange(0, 1e6), help="sim: what issuing something costs the host."),
    click.option("--host-gflop-s", type=FiniteRange(1e-3, 1e6), help="sim: products on the CPU."),
    click.option("--host-memory-gb-s", "--cpu-gb-s", type=FiniteRange(1e-3, 1e6), help="sim: host memory."),
]
_DEVICE: Final = [
    click.option("--device", type=click.Choice(["cpu", "cuda", "sim"]), help="[default: cuda where there is one]"),
    click.option("--n-devices", type=WholeRange(1, 64), default=1, help="Split the layers over so many devices."),
    click.option(
        "-ts", "--tensor-split", metavar="N/N", help="Each device's share of the layers, e.g. 3/1 (llama-server's 3,1)."
    ),
    click.option(
        *("-sm", "--split-mode"),
        type=click.Choice(["layer", "row", "none", "tensor"]),
        default="layer",
        help="Devices take whole layers; the others are for llama-bench alone.",
    ),
    click.option(
        "--link-gb-s", type=FiniteRange(0.001, _FASTEST_GB_S), help="Bus speed of cpu (default 8) and sim devices."
    ),
    click.option("--link-latency-us", type=FiniteRange(0, 1e6), help="What each copy costs besides its bytes."),
    threads_option,
    click.option(
        "--dtype",
        type=click.Choice(["auto", "f32", "bf16", "f16"]),
        default="auto",
        help="What activations and dequantised weights are in; auto: f32 on cpu, bf16 elsewhere.",
    ),
    click.option("-fa", "--flash-attn", is_flag=False, flag_value="1", help="Accepted; attention is always fused."),
    seed_option,
]
_OUTPUT: Final = [
    output_option,
    force_option,
    click.option(
        "--recorder",
        type=click.Choice(["native", "cupti", "off"]),
        default="native",
        help="What to keep of a pass: copies and steps, also the kernels inside (by torch.profiler), or only totals.",
    ),
    click.option(
        "--record-ordering",
        is_flag=True,
        help="Record too what every operation reads, writes and waits for, for `hprof check`.",
    ),
    click.option(
        "--inject",
        type=click.Choice(list(FAULT_MEANINGS)),
        help="Plant a fault on purpose, for `hprof check` to find; marked in every report.",
    ),
    click.option("--no-record", is_flag=True, help="The same as --recorder off."),
    whole_option,
    json_option,
]
_ENGINE: Final = [
    click.option(
        "--engine",
        type=click.Choice(["hprof", "llama-bench", "command"]),
        default="hprof",
        help="Who runs the passes; command: what each --arm says.",
    ),
    click.option(
        "--bin", "binary", multiple=True, metavar="PATH", help="llama-bench: the program; two are two builds, A/B."
    ),
    click.option("-b", "--batch-size", metavar="N,…", help="llama-bench: its logical batch."),
    click.option("-ctk", "--cache-type-k", metavar="TYPE,…", help="llama-bench: the KV cache's type of K."),
    click.option("-ctv", "--cache-type-v", metavar="TYPE,…", help="llama-bench: the KV cache's type of V."),
    click.option(
        "--timeout",
        type=FiniteRange(min=1),
        default=3600.0,
        help="llama-bench, command: end a process after so many seconds.",
    ),
    click.option("--nsys", is_flag=True, help="llama-bench: record each arm with Nsight Systems."),
    click.option(
        "--record", is_flag=True, help="llama-bench, command: run each arm once more, recorded as `hprof record` does."
    ),
    click.option(
        *("--arm", "arm_flags"),
        multiple=True,
        metavar="NAME=WORDS",
        help="llama-bench: an arm and its flags; command: an arm and its command.",
    ),
    click.option(
        *("--metric", "metrics"),
        multiple=True,
        metavar="NAME=REGEX",
        help="command: a figure that the programs print, such as t/s='speed: ([0-9.]+)'.",
    ),
]
_BOOT: Final = [
    click.option("--boot", type=int, hidden=True),
    click.option("--boot-path", hidden=True),
    click.option("--boot-run", hidden=True),
]


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options to a command, in the order in which its help shows them."""
    for option in reversed(
        [*_MODEL, *_GRID, *_REPEATS, *_PLACEMENT, *_ARMS, *_DEVICE, *_MACHINE, *_OUTPUT, *_ENGINE, *LLAMA_FLAGS, *_BOOT]
    ):
        function = option(function)
    return function


def engine_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--for`: whose scheduler and kernels a prediction is about."""
    return click.option("--for", "engine", type=click.Choice(["hprof", "llama.cpp"]), default="hprof", help=help_text)


def predict_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a prediction shares with a run, everything but how passes are repeated, recorded and shown, and
    `--probe`."""
    probe = click.option(
        "--probe",
        metavar="FILE",
        callback=named,
        help="Predict by this file of hprof probe.  [default: this machine's]",
    )
    outputs = [output_option, force_option, probe]
    for option in reversed([*_MODEL, *_GRID, *_PLACEMENT, *_ARMS, *_DEVICE, *_MACHINE, *outputs]):
        function = option(function)
    return json_option(function)
