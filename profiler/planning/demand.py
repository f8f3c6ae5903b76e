"""What a run asks of each memory, counted before anything is reserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass

from executor.memory.footprint import footprint
from executor.model import Model
from executor.placement.place import Placement
from executor.policies import FULL
from executor.session import SessionOptions
from profiler.planning.abba import Cell
from profiler.planning.free_memory import Free


@dataclass(frozen=True, slots=True)
class Wanted:
    """What decides how much memory a session takes. `placement` may be one an arm."""

    model: Model
    placement: Placement | Mapping[str, Placement]
    arms: tuple[str, ...]
    options: SessionOptions
    cells: tuple[Cell, ...]

    @property
    def computes_on_host(self) -> bool:
        """Whether any ubatch's host weights are used on the CPU."""
        return computes_on_host(self.arms, self.cells, self.options.policy.op_offload_min_batch)


@dataclass(frozen=True, slots=True)
class Demand:
    """One memory: bytes by what asks for them (names of `_SAID`), and how many are free."""

    memory: str
    parts: dict[str, int]
    free: int

    @property
    def needed(self) -> int:
        return sum(self.parts.values())

    @property
    def is_met(self) -> bool:
        return self.needed <= self.free


def computes_on_host(arms: Collection[str], cells: Iterable[Cell], op_offload_min_batch: int) -> bool:
    """Whether any pass computes host weights on the CPU: in arm `cpu`, and in ubatches below the threshold."""
    sizes = {size for cell in cells for size in _ubatch_sizes(cell)}
    return "cpu" in arms or (set(arms) != {FULL} and any(size < op_offload_min_batch for size in sizes))


def demands(wanted: Wanted, free: Free) -> list[Demand]:
    """What is asked of each memory that has a limit. On `cpu`, device memory is the host's."""
    n_logits = max(cell.n_gen for cell in wanted.cells) + 1
    counted = footprint(
        wanted.model,
        wanted.placement,
        wanted.arms,
        wanted.options,
        n_logits,
        computes_on_host=wanted.computes_on_host,
    )
    kind = wanted.options.device.kind
    on_devices = [Counter(asdict(device)) for device in counted.devices]
    on_host = Counter(asdict(counted.host))
    if kind == "cpu":
        on_host = sum(on_devices, on_host)
    found = [(_name(kind, i, len(on_devices)), on_devices[i], free.devices[i]) for i in range(len(on_devices))]
    found.append(("memory" if kind == "cpu" else "host memory", on_host, free.host))
    return [Demand(memory, dict(parts), left) for memory, parts, left in found if left is not None]


def _name(kind: str, index: int, n_devices: int) -> str:
    device = "GPU" if kind == "cuda" else "device"
    return f"{device} memory" if n_devices == 1 else f"{device} {index}'s memory"


def _ubatch_sizes(cell: Cell) -> set[int]:
    full, rest = divmod(cell.n_prompt, cell.n_ubatch)
    decodes = cell.n_gen > (1 if cell.n_prompt else 0)
    return {size for size, runs in ((cell.n_ubatch, full), (rest, rest), (1, decodes)) if runs}
