"""What a run is asked to do: plain values, checked where they are used (`profiler.planning.plan`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from executor.devices.factory import DeviceOptions
from executor.policies.base import PolicyOptions
from executor.weights.host_memory import LoadMode
from profiler.planning.abba import Cell

DtypeName = Literal["auto", "f32", "bf16", "f16"]
RecorderName = Literal["native", "cupti", "off"]
"""What is kept of a pass: copies and steps; the kernels inside the steps too; nothing but totals."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """One configuration of `-ot`, `-ncmoe` and `-ngl`. All unset: the FFN weights live in host memory.

    With `vram_budget_bytes` each arm gets the placement that fits beside what it reserves.
    """

    overrides: str | None = None
    n_cpu_moe: int = 0
    n_gpu_layers: int | None = None
    vram_budget_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One capture's worth of passes: every arm, in every cell, under every placement."""

    cells: tuple[Cell, ...]
    device: DeviceOptions
    model: str = "tiny-dense"
    quant: str | None = None
    layers: int | None = None
    arms: tuple[str, ...] = ("off", "on")
    placements: tuple[PlacementOptions, ...] = (PlacementOptions(),)
    repetitions: int = 6
    dtype: DtypeName = "auto"
    load_mode: LoadMode = "none"
    madvise: bool = False
    tensor_split: tuple[float, ...] = ()
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    routing: str | None = None  # None: the model's own router for a file, log-normal for a preset
    seed: int = 0
    recorder: RecorderName = "native"
    boots: int = 1
