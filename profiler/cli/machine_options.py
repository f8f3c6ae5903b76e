"""The options that describe a machine which is not there: known GPUs and links by name, and each rate by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from executor.devices.known import find_gpu, find_link
from executor.devices.sim import SimMachine
from executor.errors import HprofError

_RATES: Final = {
    "gemm_tflop_s": "--gemm-tflop-s",
    "memory_gb_s": "--memory-gb-s",
    "launch_us": "--launch-us",
    "host_call_us": "--host-call-us",
    "host_gflop_s": "--host-gflop-s",
    "host_memory_gb_s": "--host-memory-gb-s",
}
MACHINE_FLAGS: Final = {"gpu": "--gpu", "device_memory": "--device-memory"} | _RATES
"""The options of this kind that serve `sim` alone, by parameter; a link's speed serves `cpu` too."""


def imagined(values: Mapping[str, Any]) -> dict[str, str]:
    """The names of the table's rows that were asked for, for the manifest."""
    return {f"imagined_{name}": values[name] for name in ("gpu", "link") if values[name] is not None}


def link_gb_s(values: Mapping[str, Any]) -> float | None:
    """The link's speed, from its own flag or from the table; None where neither is given."""
    own: float | None = values["link_gb_s"]
    return find_link(values["link"]).gb_s if own is None and values["link"] is not None else own


def sim_machine(values: Mapping[str, Any]) -> SimMachine:
    """The machine that the options describe: what a rate's own flag says, else the GPU's row, else the usual.

    The link's speed and latency are the device's own options. Raises HprofError for a GPU that the table lacks, and
    for a memory size that is none.
    """
    rates: dict[str, Any] = {}
    if values["gpu"] is not None:
        gpu = find_gpu(values["gpu"])
        rates |= {"gemm_tflop_s": gpu.gemm_tflop_s, "memory_gb_s": gpu.memory_gb_s, "memory_bytes": gpu.memory_bytes}
    if values["device_memory"] is not None:
        from executor.units import parse_bytes

        rates["memory_bytes"] = parse_bytes(values["device_memory"], "--device-memory")
    return SimMachine(**rates | {name: values[name] for name in _RATES if values[name] is not None})


def knows_device(kind: str, given: Mapping[str, object]) -> bool:
    """Whether the user said how fast a device of this kind is."""
    return {"gemm_tflop_s", "memory_gb_s"} <= given.keys() or ("gpu" in given and kind != "cpu")


def refuse_rates(given: Mapping[str, object], *, idle: Sequence[str]) -> None:
    """Raises HprofError where rates are given beside captures to fit to. idle: options that tell something else."""
    if (MACHINE_FLAGS.keys() - set(idle)) & given.keys():
        raise HprofError("--gpu and rates are not for --fit and --against, whose captures say how fast steps are.")


def told_rates(kind: str, given: Mapping[str, object], notes: Sequence[str]) -> str | None:
    """The first line of an answer from rates alone: which of them are sim's defaults; None where none is.

    kind: the device that is asked about. given: what the user gave. notes: why a probe that is there says nothing.
    Raises HprofError where that device is a real one and its rates are not given: defaults would look like knowledge.
    """
    if kind != "sim" and not knows_device(kind, given):
        if notes:
            raise HprofError(" ".join(notes))
        raise HprofError(
            f"nobody measured how fast the {kind} device of this machine is: run `hprof probe --device {kind}` once, "
            "or give --fit CAPTURE, or --gemm-tflop-s and --memory-gb-s."
        )
    defaults = [] if knows_device(kind, given) else ["the device"]
    defaults += [] if {"link", "link_gb_s"} & given.keys() else ["the link"]
    if not defaults:
        return None
    return (
        f"Rates of {' and '.join(defaults)} are sim's defaults and no machine's: run `hprof probe` once, or give --gpu "
        "and --link, each rate by its flag, or --fit CAPTURE."
    )
