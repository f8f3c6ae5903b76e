"""Refuses a run that memory cannot hold before anything is loaded, and says what would fit instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from executor.errors import HprofError
from executor.memory.footprint import footprint
from executor.model import Model
from executor.placement.place import Placement
from executor.policies import FULL
from executor.session import SessionOptions
from profiler.planning.abba import Cell
from profiler.planning.free_memory import Free, free_memory

_SAID: Final = {
    "resident": "resident weights take {}",
    "slots": "the slots that weights are streamed into take {}",
    "bank": "the expert cache's bank takes {}",
    "states": "the context alone takes {}",
    "activations": "the activations of a ubatch take {}",
    "scratch": "a dequantised weight and the rows computed with it take {}",
    "logits": "the logits of -n tokens take {}",
    "weights": "weights in host memory take {}",
    "loading": "tensors on their way take {}",
    "products": "weights computed on the host take {} beside the bytes that are streamed",
}


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


def check_needs(
    model: Model,
    placement: Placement | Mapping[str, Placement],
    arms: Sequence[str],
    options: SessionOptions,
    cells: Sequence[Cell],
    free: Free | None = None,
) -> None:
    """Raise HprofError, saying what would fit, when host or device memory cannot hold the run.

    `free`: as `free_memory` finds it, where it is not given.
    """
    free = free_memory(options.device) if free is None else free
    if all(limit is None for limit in (free.host, *free.devices)):
        return
    wanted = Wanted(model, placement, tuple(arms), options, tuple(cells))
    unmet = [demand for demand in demands(wanted, free) if not demand.is_met]
    if unmet:
        raise HprofError(_refusal(wanted, free, max(unmet, key=lambda demand: demand.needed - demand.free)))


def gib(n_bytes: int) -> str:
    """1.5 GiB, or MiB below one."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"


def _refusal(wanted: Wanted, free: Free, worst: Demand) -> str:
    from profiler.planning.fitting import what_fits

    largest = max(worst.parts, key=lambda name: worst.parts[name])
    said = _SAID[largest].format(gib(worst.parts[largest]))
    fitting = what_fits(wanted, worst, lambda other: all(demand.is_met for demand in demands(other, free)))
    together = "no option alone would do: lower -d, -ub and --layers together, or use --device sim"
    advice = f"{_any_of(fitting)} would fit" if fitting else together
    return (
        f"{wanted.model.origin} needs {gib(worst.needed)} of {worst.memory} for this run and {gib(worst.free)} are "
        f"free; {said}: {advice}."
    )


def _any_of(texts: Sequence[str]) -> str:
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _name(kind: str, index: int, n_devices: int) -> str:
    device = "GPU" if kind == "cuda" else "device"
    return f"{device} memory" if n_devices == 1 else f"{device} {index}'s memory"


def _ubatch_sizes(cell: Cell) -> set[int]:
    full, rest = divmod(cell.n_prompt, cell.n_ubatch)
    decodes = cell.n_gen > (1 if cell.n_prompt else 0)
    return {size for size, runs in ((cell.n_ubatch, full), (rest, rest), (1, decodes)) if runs}
