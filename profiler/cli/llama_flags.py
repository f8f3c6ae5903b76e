"""Flags of llama-bench and llama-server that people type and `hprof run` has in another way, or not at all.

What comes to the same is taken: `-cmoe`, `-mmp`, and whatever asks for what hprof does anyway. Everything else is
refused with a sentence on that flag. None is shown in help, which lists what hprof has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import click

from executor.errors import HprofError
from executor.units import LARGEST_COUNT
from profiler.cli.asked import AskedOptions

OFFLOAD_VARIABLE: Final = "GGML_OP_OFFLOAD_MIN_BATCH"
"""llama.cpp's variable for what `--op-offload-min-batch` sets here."""
_ALL_LAYERS: Final = "999"
_FORMATS: Final = ("json", "jsonl", "md", "csv", "sql")


def _hidden(*names: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(*names, hidden=True, **settings)


LLAMA_FLAGS: Final = [
    _hidden("-cmoe", "--cpu-moe", is_flag=True),
    _hidden("-mmp", "--mmap"),
    _hidden("-nopo", "--no-op-offload"),
    _hidden("-nkvo", "--no-kv-offload"),
    _hidden("-mg", "--main-gpu"),
    _hidden("-pg", "prompt_and_gen"),
    _hidden("-dev", "--device-list", "llama_devices"),
]

_OFF: Final = ("0", "off", "false")
# flag, the values that ask for what hprof does anyway, and why it has no other
_REFUSED: Final[dict[str, tuple[str, tuple[str, ...], str]]] = {
    "no_op_offload": (
        "-nopo",
        _OFF,
        "the arm `cpu` uses weights in host memory where they are, so compare --arms off,cpu",
    ),
    "no_kv_offload": ("-nkvo", _OFF, "hprof keeps the KV cache on the device, so leave it out or lower -d"),
    "main_gpu": ("-mg", ("0",), "with -sm layer each device has its own layers, so share them out with -ts"),
    "prompt_and_gen": (
        "-pg",
        (),
        "every pass here generates after its prompt and times both, so write -pg 512,16 as -p 512 -n 16",
    ),
    "llama_devices": (
        "-dev",
        (),
        "hprof takes the first --n-devices, so choose them with CUDA_VISIBLE_DEVICES, as CUDA_VISIBLE_DEVICES=1,0",
    ),
}


def settle_llama_flags(asked: AskedOptions) -> AskedOptions:
    """The options with what llama.cpp's flags and variable ask for.

    Raises HprofError with a sentence on the flag that hprof has nothing for.
    """
    for name, (flag, harmless, why) in _REFUSED.items():
        value: str | None = asked.values[name]
        if value is not None and value.lower() not in harmless:
            raise HprofError(f"{flag} {value[:60]} is llama.cpp's: {why}.")
    kind = asked.output
    if kind in _FORMATS:
        raise HprofError(
            f"-o {kind}: -o is the capture's folder here, so print JSON with --json, or write -o ./{kind} for a folder "
            "of that name."
        )
    if asked.cpu_moe:
        asked = asked.but(n_cpu_moe=_every_layer(asked))
    if asked.mmap is not None:
        asked = asked.but(load_mode=_load_mode(asked.mmap, asked))
    if "op_offload_min_batch" not in asked.typed:
        asked = asked.but(op_offload_min_batch=_offload_min_batch(asked.op_offload_min_batch))
    return asked


def variables_used(asked: AskedOptions) -> list[str]:
    """A sentence on llama.cpp's variable, where it decides."""
    if OFFLOAD_VARIABLE not in os.environ or "op_offload_min_batch" in asked.typed:
        return []
    return [f"{OFFLOAD_VARIABLE}={os.environ[OFFLOAD_VARIABLE]} in the environment is used as --op-offload-min-batch."]


def _every_layer(asked: AskedOptions) -> tuple[str, ...]:
    if asked.n_cpu_moe:
        raise HprofError("-cmoe is -ncmoe with every layer: give one of them.")
    return (_ALL_LAYERS,)


def _load_mode(mmap: str, asked: AskedOptions) -> str:
    if "load_mode" in asked.typed:
        raise HprofError(f"-mmp {mmap[:60]} and -lm both say how weights are loaded: give one of them.")
    if mmap not in ("0", "1"):
        raise HprofError(f"-mmp {mmap[:60]}: give 1 for -lm mmap or 0 for -lm none; two load modes are two runs.")
    return "mmap" if mmap == "1" else "none"


def _offload_min_batch(default: int) -> int:
    """What llama.cpp would read from the environment."""
    text = os.environ.get(OFFLOAD_VARIABLE)
    if text is None:
        return default
    if not (text.isascii() and text.strip().isdigit()) or int(text) > LARGEST_COUNT:
        raise HprofError(
            f"The variable {OFFLOAD_VARIABLE} is {text[:60]!r}, not a number of tokens: correct or unset it."
        )
    return int(text)
