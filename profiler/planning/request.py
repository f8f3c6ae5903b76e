"""What a run is asked to do: the points of its grid, and the request itself. Plain values, checked in
`profiler.planning.plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from executor.devices.factory import DeviceOptions
from executor.memory.budget import Budget
from executor.passes import decode_steps
from executor.policies.base import PolicyOptions
from executor.weights.transfer_units import LoadMode


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One point of the grid; every arm is measured in every cell."""

    n_prompt: int
    n_gen: int
    n_ubatch: int
    n_depth: int

    @property
    def n_positions(self) -> int:
        """Positions that the KV cache must hold."""
        return self.n_depth + self.n_prompt + self.n_gen

    @property
    def n_decoded(self) -> int:
        """Tokens that decoding takes time for."""
        return decode_steps(self.n_prompt, self.n_gen)

    @property
    def n_ubatches(self) -> int:
        """Ubatches of the prompt, and one a generated token."""
        return -(-self.n_prompt // self.n_ubatch) + self.n_gen

    def n_logits(self, *, all_logits: bool) -> int:
        """Rows of logits that a pass holds at most."""
        return self.n_gen + (self.n_prompt if all_logits else 1)


def grid(
    n_prompts: Sequence[int], n_gens: Sequence[int], n_ubatches: Sequence[int], n_depths: Sequence[int]
) -> list[GridPoint]:
    """All cells, in llama-bench's order: ubatch outermost, then depth, prompt, generation."""
    return [GridPoint(p, n, ub, d) for ub, d, p, n in product(n_ubatches, n_depths, n_prompts, n_gens)]


def distinct_cells(cells: Sequence[GridPoint]) -> list[GridPoint]:
    """The cells, each measurement once: where a prompt is one ubatch, a larger `-ub` changes nothing.

    Of several such cells the one with the smallest `-ub` stays, where the first of them was.
    """
    found: dict[tuple[int, ...], GridPoint] = {}
    for cell in cells:
        key = (cell.n_prompt, cell.n_gen, min(cell.n_ubatch, cell.n_prompt), cell.n_depth)
        found[key] = min(found.get(key, cell), cell, key=lambda one: one.n_ubatch)
    return list(found.values())


DtypeName = Literal["auto", "f32", "bf16", "f16"]
Engine = Literal["hprof", "llama.cpp"]
RecorderName = Literal["native", "cupti", "off"]
"""What is kept of a pass: copies and steps; the kernels inside the steps too; nothing but totals."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """One configuration of `-ot`, `-ncmoe` and `-ngl`. All unset: the FFN weights live in host memory.

    With `vram_budget` each arm gets the placement that fits beside what it reserves.
    """

    overrides: str | None = None
    n_cpu_moe: int = 0
    n_gpu_layers: int | None = None
    vram_budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One capture's worth of passes: every arm, in every cell, under every placement."""

    cells: tuple[GridPoint, ...]
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
    all_logits: bool = False  # of the prompt's tokens, not of the last one alone
    keeps_rows: bool = False  # all rows go through the last layer, whatever logits are wanted
    routing: str | None = None  # None: the model's own router for a file, log-normal for a preset
    seed: int = 0
    recorder: RecorderName = "native"
    record_ordering: bool = False
    inject: str | None = None  # a fault planted on purpose
    boots: int = 1
    engine: Engine = "hprof"  # whose memory a placement under a budget is for; a run is always hprof's
