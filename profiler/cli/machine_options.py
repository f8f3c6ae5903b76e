"""The options that describe a machine which is not there: known GPUs and links by name, and each rate by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from executor.devices.known import find_gpu, find_link
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from executor.units import listed
from profiler.cli.asked import AskedOptions

_RATES: Final = {
    "gemm_tflop_s": "--gemm-tflop-s",
    "memory_gb_s": "--memory-gb-s",
    "launch_us": "--launch-us",
    "host_call_us": "--host-call-us",
    "host_gflop_s": "--host-gflop-s",
    "host_memory_gb_s": "--host-memory-gb-s",
}
_OF_A_GPU: Final = {
    "gemm_tflop_s": "--gemm-tflop-s",
    "memory_gb_s": "--memory-gb-s",
    "device_memory": "--device-memory",
}  # what a row of the table says
MACHINE_FLAGS: Final = {"gpu": "--gpu", "device_memory": "--device-memory"} | _RATES
"""The options of this kind that serve `sim` alone, by parameter; a link's speed serves `cpu` too."""


def imagined(asked: AskedOptions) -> dict[str, str]:
    """The names of the table's rows that were asked for, for the manifest, and which of a row's rates are others."""
    others = [flag for name, flag in _OF_A_GPU.items() if asked.values[name] is not None]
    gpu = f"{asked.gpu} (but for {listed(others)})" if asked.gpu is not None and others else asked.gpu
    return {f"imagined_{name}": value for name, value in (("gpu", gpu), ("link", asked.link)) if value is not None}


def link_gb_s(asked: AskedOptions) -> float | None:
    """The link's speed, from its own flag or from the table; None where neither is given, and HprofError for both."""
    if asked.link is None:
        return asked.link_gb_s
    if asked.link_gb_s is not None:
        raise HprofError(
            f"--link {asked.link} and --link-gb-s {asked.link_gb_s:g} both say how fast the link is: give one of them."
        )
    return find_link(asked.link).gb_s


def sim_machine(asked: AskedOptions) -> SimMachine:
    """The machine that the options describe: what a rate's own flag says, else the GPU's row, else the usual.

    The link's speed and latency are the device's own options. Raises HprofError for a GPU that the table lacks, for one
    of which the flags leave nothing, and for a memory size that is none.
    """
    rates: dict[str, Any] = {}
    if asked.gpu is not None:
        if all(asked.values[name] is not None for name in _OF_A_GPU):
            flags = listed(_OF_A_GPU.values())
            raise HprofError(f"--gpu {asked.gpu} does nothing beside {flags}, which say all of it: leave it out.")
        gpu = find_gpu(asked.gpu)
        rates |= {"gemm_tflop_s": gpu.gemm_tflop_s, "memory_gb_s": gpu.memory_gb_s, "memory_bytes": gpu.memory_bytes}
    if asked.device_memory is not None:
        from executor.units import parse_bytes

        rates["memory_bytes"] = parse_bytes(asked.device_memory, "--device-memory")
    return SimMachine(**rates | {name: asked.values[name] for name in _RATES if asked.values[name] is not None})


def knows_device(kind: str, asked: AskedOptions) -> bool:
    """Whether the user said how fast a device of this kind is."""
    return {"gemm_tflop_s", "memory_gb_s"} <= asked.typed or (asked.names_gpu and kind != "cpu")


def refuse_rates(asked: AskedOptions, *, idle: Sequence[str]) -> None:
    """Raises HprofError where rates are given beside captures to fit to. idle: options that tell something else."""
    if (MACHINE_FLAGS.keys() - set(idle)) & asked.typed:
        raise HprofError("--gpu and rates are not for --fit and --against, whose captures say how fast steps are.")


def told_rates(kind: str, asked: AskedOptions, notes: Sequence[str]) -> str | None:
    """The first line of an answer from rates alone: which of them are sim's defaults; None where none is.

    kind: the device that is asked about. notes: why a probe that is there says nothing.
    Raises HprofError where that device is a real one and its rates are not given: defaults would look like knowledge.
    """
    if kind != "sim" and not knows_device(kind, asked):
        if notes:
            raise HprofError(" ".join(notes))
        if told := [flag for name, flag in MACHINE_FLAGS.items() if name in asked.typed and name != "device_memory"]:
            where = "" if asked.device is not None else ", on which --verify runs"
            one, them = ("says", "it") if len(told) == 1 else ("say", "them")
            raise HprofError(
                f"{listed(told)} {one} too little of the {kind} device of this machine{where}: give --device sim, or "
                f"leave {them} out and run `hprof probe --device {kind}` once."
            )
        raise HprofError(
            f"nobody measured how fast the {kind} device of this machine is: run `hprof probe --device {kind}` once, "
            "or give --fit CAPTURE, or --gemm-tflop-s and --memory-gb-s."
        )
    defaults = [] if knows_device(kind, asked) else ["the device"]
    defaults += [] if asked.names_link else ["the link"]
    if not defaults:
        return None
    return (
        f"Rates of {' and '.join(defaults)} are sim's defaults and no machine's: run `hprof probe` once, or give --gpu "
        "and --link, each rate by its flag, or --fit CAPTURE."
    )
