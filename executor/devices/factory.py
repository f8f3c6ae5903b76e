"""Builds the devices of a run from plain options."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from executor.devices.base import Device, DeviceKind
from executor.devices.sim import SimDevice, SimHostClock, SimMachine
from executor.errors import HprofError


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """`n_devices` of one kind. Link options are for `cpu` and `sim` (None: their own); `cuda` measures its link."""

    kind: DeviceKind
    n_devices: int = 1
    link_gb_s: float | None = None
    link_latency_us: float | None = None
    n_threads: int | None = None
    memory_bytes: int | None = None
    machine: SimMachine | None = None


def default_kind() -> DeviceKind:
    """cuda where there is one, else cpu."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def make_devices(options: DeviceOptions) -> list[Device]:
    """Build the devices. Raises HprofError when there are not that many."""
    check_present(options)
    if options.kind == "cuda":
        return _cuda_devices(options)
    if options.kind == "sim":
        return _sim_devices(options)
    from executor.devices.cpu import CpuDevice

    return [
        CpuDevice(
            index,
            link_gb_s=options.link_gb_s,
            link_latency_us=options.link_latency_us,
            n_threads=options.n_threads,
            memory_bytes=options.memory_bytes,
        )
        for index in range(options.n_devices)
    ]


def check_present(options: DeviceOptions) -> None:
    """Raise HprofError when there are fewer devices than `options` asks for; builds nothing."""
    if options.kind != "cuda":
        return
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if present < options.n_devices:
        raise HprofError(
            f"--device cuda needs {options.n_devices} GPU(s) and torch {torch.__version__} sees {present}: "
            "use --device cpu or sim, or install a CUDA build of torch"
        )


def _cuda_devices(options: DeviceOptions) -> list[Device]:
    from executor.devices.cuda import CudaDevice

    return [CudaDevice(index) for index in range(options.n_devices)]


def sim_machine(options: DeviceOptions) -> SimMachine:
    """The rates that a `sim` device of these options has."""
    machine = options.machine or SimMachine()
    if options.link_gb_s is not None:
        machine = replace(machine, link_gb_s=options.link_gb_s)
    if options.link_latency_us is not None:
        machine = replace(machine, link_latency_us=options.link_latency_us)
    return machine


def _sim_devices(options: DeviceOptions) -> list[Device]:
    clock = SimHostClock()
    return [SimDevice(index, sim_machine(options), clock) for index in range(options.n_devices)]
