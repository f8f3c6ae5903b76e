"""Whether memory can hold a run: what is free, what the run needs of each memory, and the refusal that names options
with which it would fit. All of it is counted before anything is loaded or reserved.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import psutil
import torch

from executor.devices.factory import DeviceOptions
from executor.errors import BudgetTooSmallError, HprofError
from executor.memory.budget import Budget
from executor.memory.footprint import Footprint, footprint
from executor.model import Model, ModelShape
from executor.models.synthetic import QuantPlan, model_tensors
from executor.output_rows import drops_rows
from executor.placement.place import Placement, first_resident_layer, is_movable
from executor.policies import arm_traits
from executor.quants.table import PLAIN
from executor.session import SessionOptions
from executor.units import format_bytes, listed
from profiler.planning.request import GridPoint

_CGROUPS: Final = (  # limit, use, and in the statistics the part of it that the kernel drops when asked for more
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes; None where nothing limits it."""

    host: int | None
    devices: tuple[int | None, ...]


def free_memory(options: DeviceOptions) -> FreeMemory:
    """What a run on these devices may take. Nothing of the host is asked for on `sim`."""
    n = options.n_devices
    if options.kind == "sim":
        return FreeMemory(None, (options.machine.memory_bytes if options.machine else None,) * n)
    if options.kind == "cpu":
        return FreeMemory(free_host_bytes(), (options.memory_bytes,) * n)
    return FreeMemory(free_host_bytes(), tuple(torch.cuda.mem_get_info(i)[0] for i in range(n)))


def free_host_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Host memory that can be had without swapping; in a container no more than its limit leaves."""
    limits = [_left_in_cgroup(root, *names) for names in _CGROUPS]
    return min([int(psutil.virtual_memory().available), *(left for left in limits if left is not None)])


def _left_in_cgroup(root: Path, limit: str, used: str, statistics: str, droppable: str) -> int | None:
    """None where there is no limit, or no control group of this version."""
    try:
        most, taken = (int((root / name).read_text()) for name in (limit, used))
        lines = (line.split() for line in (root / statistics).read_text().splitlines())
        cached = next((int(value) for name, value in lines if name == droppable), 0)
    except (OSError, ValueError):  # "max" is no number: no limit
        return None
    return max(0, most - taken + cached)


@dataclass(frozen=True, slots=True)
class BudgetedPlacement:
    """The budget of a device that placements, one an arm, were made for, and how they would be made for another. The
    arms of a session share it, so that together they hold what the one keeps resident and the slots of the other."""

    budget: Budget
    placed: Callable[[Budget], Mapping[str, Placement]]


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What decides how much memory a session takes. `placement` may be one an arm; `budgeted`: as a budget says."""

    model: Model
    placement: Placement | Mapping[str, Placement]
    arms: tuple[str, ...]
    options: SessionOptions
    cells: tuple[GridPoint, ...]
    all_logits: bool = False
    budgeted: BudgetedPlacement | None = None

    def counted(self) -> Footprint:
        """What the session will hold."""
        least = self.options.policy.op_offload_min_batch
        on_host = layers_on_host(self.model.shape, self.arms, self.cells, least, all_logits=self.all_logits)
        options = replace(self.options, layers_on_host=on_host)
        n_logits = max(cell.n_logits(all_logits=self.all_logits) for cell in self.cells)
        return footprint(self.model, self.placement, self.arms, options, n_logits, all_logits=self.all_logits)


@dataclass(frozen=True, slots=True)
class MemoryDemand:
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


def layers_on_host(
    shape: ModelShape, arms: Collection[str], cells: Iterable[GridPoint], op_offload_min_batch: int, *, all_logits: bool
) -> Collection[int]:
    """The layers whose host weights any pass computes on the CPU.

    All of them by an arm's design, or for ubatches below the threshold; else the last one, where it drops rows.
    """
    traits = [arm_traits(arm) for arm in arms]
    sizes = {size for cell in cells for size in _ubatch_sizes(cell)}
    n_layers, can = len(shape.layers), any(not one.is_resident for one in traits)
    if any(one.computes_on_host for one in traits) or (can and min(sizes) < op_offload_min_batch):
        return range(n_layers)
    is_last_small = drops_rows(shape) and not all_logits and op_offload_min_batch > 1
    return range(n_layers - 1, n_layers) if can and is_last_small else ()


def demands(wanted: MemoryRequest, free: FreeMemory) -> list[MemoryDemand]:
    """What is asked of each memory that has a limit. On `cpu`, device memory is the host's."""
    counted = wanted.counted()
    kind = wanted.options.device.kind
    on_devices = [Counter(asdict(device)) for device in counted.devices]
    on_host = Counter(asdict(counted.host))
    if kind == "cpu":
        on_host = sum(on_devices, on_host)
    found = [(_memory_name(kind, i, len(on_devices)), on_devices[i], free.devices[i]) for i in range(len(on_devices))]
    found.append(("memory" if kind == "cpu" else "host memory", on_host, free.host))
    return [MemoryDemand(memory, dict(parts), left) for memory, parts, left in found if left is not None]


def _memory_name(kind: str, index: int, n_devices: int) -> str:
    device = "GPU" if kind == "cuda" else "device"
    return f"{device} memory" if n_devices == 1 else f"{device} {index}'s memory"


def _ubatch_sizes(cell: GridPoint) -> set[int]:
    full, rest = divmod(cell.n_prompt, cell.n_ubatch)
    decodes = cell.n_gen > (1 if cell.n_prompt else 0)
    return {size for size, runs in ((cell.n_ubatch, full), (rest, rest), (1, decodes)) if runs}


_SAID: Final = {
    "resident": "resident weights take {}",
    "slots": "the slots that weights are streamed into take {}",
    "bank": "the expert cache's bank takes {}",
    "states": "the context alone takes {}",
    "activations": "the activations of a ubatch take {}",
    "scratch": "dequantised weights and the rows computed with them take {}",
    "logits": "the logits of -n tokens take {}",
    "recordings": "steps recorded as CUDA graphs take {}",
    "weights": "weights in host memory take {}",
    "loading": "tensors on their way take {}",
    "products": "weights computed on the host take {} beside the bytes that are streamed",
}


def check_needs(
    model: Model,
    placement: Placement | Mapping[str, Placement],
    arms: Sequence[str],
    options: SessionOptions,
    cells: Sequence[GridPoint],
    free: FreeMemory | None = None,
    *,
    all_logits: bool = False,
    budgeted: BudgetedPlacement | None = None,
) -> None:
    """Raise HprofError, saying what would fit, when host or device memory cannot hold the run.

    `free`: as `free_memory` finds it, where it is not given.
    """
    free = free_memory(options.device) if free is None else free
    if all(limit is None for limit in (free.host, *free.devices)):
        return
    wanted = MemoryRequest(model, placement, tuple(arms), options, tuple(cells), all_logits, budgeted)
    unmet = [demand for demand in demands(wanted, free) if not demand.is_met]
    if unmet:
        raise HprofError(_refusal(wanted, free, max(unmet, key=lambda demand: demand.needed - demand.free)))


def _refusal(wanted: MemoryRequest, free: FreeMemory, worst: MemoryDemand) -> str:
    largest = max(worst.parts, key=lambda name: worst.parts[name])
    said = _SAID[largest].format(format_bytes(worst.parts[largest]))
    fitting = what_fits(wanted, worst, lambda other: all(demand.is_met for demand in demands(other, free)))
    elsewhere = "" if wanted.options.device.kind == "sim" else ", or use --device sim"
    together = f"no option alone would do: lower -d, -ub and --layers together{elsewhere}"
    advice = f"{listed(fitting, 'or')} would fit" if fitting else together
    return (
        f"{wanted.model.origin} needs {format_bytes(worst.needed)} of {worst.memory} for this run and "
        f"{format_bytes(worst.free)} are free; {said}: {advice}."
    )


MOST_SAID: Final = 3
_WORTH_LOWERING: Final = 0.1  # of all that is needed
_STREAM_ALL: Final = "--op-offload-min-batch 1"
_MIB: Final = 1 << 20
_SMALLER: Final = ("Q8_0", "Q6_K", "Q4_K")  # the closest to what was published first

Fits = Callable[[MemoryRequest], bool]
Knob = Callable[[MemoryRequest, Fits], str | None]
"""Gives the option as it is typed, with the largest value that fits; None where none does."""


def what_fits(wanted: MemoryRequest, short: MemoryDemand, fits: Fits) -> list[str]:
    """Options that make it fit, the ones that lower the largest part of the demand first."""

    def does(other: MemoryRequest) -> bool:
        try:
            return fits(other)
        except HprofError:  # such as a bank too small for one token's experts
            return False

    found = _found(wanted, short, does)
    if found or not short.parts.get("products"):
        return found
    return [f"{_STREAM_ALL} with {text}" for text in _found(_streaming(wanted), short, does)]


def _found(wanted: MemoryRequest, short: MemoryDemand, fits: Fits) -> list[str]:
    texts = (knob(wanted, fits) for knob in _knobs(short))
    return list(islice((text for text in texts if text is not None), MOST_SAID))


def _knobs(short: MemoryDemand) -> Iterator[Knob]:
    by_size = sorted(short.parts, key=lambda name: -short.parts[name])
    names = [name for name in by_size if short.parts[name] >= _WORTH_LOWERING * short.needed]
    yield from dict.fromkeys(knob for name in names for knob in _KNOBS[name])


def _without_full(wanted: MemoryRequest, fits: Fits) -> str | None:
    others = tuple(arm for arm in wanted.arms if not arm_traits(arm).is_resident)
    if not others or len(others) == len(wanted.arms):
        return None
    without, said = replace(wanted, arms=others), f"--arms {','.join(others)}"
    if fits(without):
        return said
    smaller = _smaller_budget(without, fits)
    return None if smaller is None else f"{said} with {smaller}"


def _smaller_budget(wanted: MemoryRequest, fits: Fits) -> str | None:
    """The largest that fits of seven, each a sixteenth less than the one before."""
    told = wanted.budgeted
    if told is None:
        return None

    def holds(budget: Budget) -> bool:
        try:
            return fits(replace(wanted, placement=told.placed(budget)))
        except BudgetTooSmallError:
            return False

    smaller = (Budget(tuple(own * n // 16 // _MIB * _MIB for own in told.budget.n_bytes)) for n in range(15, 8, -1))
    return next((f"--vram-budget {budget.spelled}" for budget in smaller if holds(budget)), None)


def _resident_layers(wanted: MemoryRequest, fits: Fits) -> str | None:
    """More layers in host memory, beside what is there already."""
    placement, n_layers = wanted.placement, len(wanted.model.shape.layers)
    if not isinstance(placement, Placement):
        return None
    n = _largest(lambda n: fits(replace(wanted, placement=_resident(wanted.model, placement, n))), 0, n_layers)
    others = re.sub(r"\s*-ngl (\d+|all)|all resident", "", placement.spelled).strip()
    return None if n is None else f"-ngl {n}" + (f" beside {others}" if others else "")


def _resident(model: Model, placement: Placement, n: int) -> Placement:
    first = first_resident_layer(len(model.shape.layers), n)
    moved = {t.name for t in model.tensors.values() if is_movable(t) and (t.layer or 0) < first}
    return replace(placement, host=placement.host | moved)


def _quant(wanted: MemoryRequest, fits: Fits) -> str | None:
    """A quant for a config whose matrices are plain floats, as published ones mostly are."""
    n_plain = sum(t.n_bytes for t in wanted.model.tensors.values() if t.quant in PLAIN)
    if not wanted.model.origin.startswith("config:") or n_plain < wanted.model.n_bytes / 2:
        return None
    return next((f"--quant {quant}" for quant in _SMALLER if fits(_stored_as(wanted, quant))), None)


def _stored_as(wanted: MemoryRequest, quant: str) -> MemoryRequest:
    tensors = model_tensors(wanted.model.shape, QuantPlan.uniform(quant))
    return replace(wanted, model=replace(wanted.model, tensors=tensors))


def _fewer_layers(wanted: MemoryRequest, fits: Fits) -> str | None:
    least, most = wanted.options.device.n_devices, len(wanted.model.shape.layers) - 1
    n = _largest(lambda n: fits(replace(wanted, model=_sliced(wanted.model, n))), least, most)
    return None if n is None else f"--layers {n}"


def _sliced(model: Model, n: int) -> Model:
    tensors = {name: t for name, t in model.tensors.items() if t.layer is None or t.layer < n}
    return replace(model, shape=model.shape.sliced(n), tensors=tensors)


def _ubatch(wanted: MemoryRequest, fits: Fits) -> str | None:
    def with_ubatch(n: int) -> MemoryRequest:
        cells = tuple(replace(cell, n_ubatch=min(cell.n_ubatch, n)) for cell in wanted.cells)
        return replace(wanted, cells=cells, options=replace(wanted.options, max_ubatch=n))

    halves = (2**i for i in range((wanted.options.max_ubatch - 1).bit_length() - 1, 4, -1))
    return next((f"-ub {n}" for n in halves if fits(with_ubatch(n))), None)


def _positions(wanted: MemoryRequest, fits: Fits) -> str | None:
    def with_positions(n: int) -> MemoryRequest:
        return replace(wanted, options=replace(wanted.options, max_positions=n))

    n = _largest(lambda n: fits(with_positions(n)), 1, wanted.options.max_positions - 1)
    return None if n is None else f"a context (-d, -p and -n together) of {n:,} tokens"


def _n_gen(wanted: MemoryRequest, fits: Fits) -> str | None:
    def with_n_gen(n: int) -> MemoryRequest:
        cells = tuple(replace(cell, n_gen=min(cell.n_gen, n)) for cell in wanted.cells)
        n_positions = max(cell.n_positions for cell in cells)
        return replace(wanted, cells=cells, options=replace(wanted.options, max_positions=n_positions))

    n = _largest(lambda n: fits(with_n_gen(n)), 1, max(cell.n_gen for cell in wanted.cells) - 1)
    return None if n is None else f"-n {n}"


def _cache(wanted: MemoryRequest, fits: Fits) -> str | None:
    policy = wanted.options.policy

    def with_mib(n: int) -> MemoryRequest:
        return replace(wanted, options=replace(wanted.options, policy=replace(policy, cache_bytes=n * _MIB)))

    # not halved down to nothing: a bank must hold what one token needs
    eighths = (policy.cache_bytes // _MIB * i // 8 for i in range(7, 0, -1))
    return next((f"--moe-cache-mib {n}" for n in eighths if fits(with_mib(n))), None)


def _slots(wanted: MemoryRequest, fits: Fits) -> str | None:
    policy = wanted.options.policy
    fewest = replace(wanted, options=replace(wanted.options, policy=replace(policy, slots=2)))
    return "--slots 2" if policy.slots > 2 and fits(fewest) else None


def _stream_all(wanted: MemoryRequest, fits: Fits) -> str | None:
    return _STREAM_ALL if fits(_streaming(wanted)) else None


def _streaming(wanted: MemoryRequest) -> MemoryRequest:
    """No weights are computed with on the host, whatever the ubatch."""
    policy = replace(wanted.options.policy, op_offload_min_batch=1)
    return replace(wanted, options=replace(wanted.options, policy=policy))


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number from low to high that fits (to a sixteenth, where it is large); None where low does not."""
    if high < low or not fits(low):
        return None
    while high - low > low // 16:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


_KNOBS: Final[dict[str, tuple[Knob, ...]]] = {
    "resident": (_without_full, _smaller_budget, _quant, _resident_layers, _fewer_layers),
    "slots": (_slots, _smaller_budget, _fewer_layers),
    "bank": (_cache,),
    "states": (_positions, _fewer_layers),
    "activations": (_ubatch, _positions),
    "scratch": (_ubatch,),
    "logits": (_n_gen,),
    "recordings": (_fewer_layers,),
    "weights": (_quant, _fewer_layers),
    "loading": (_fewer_layers,),
    "products": (_stream_all, _fewer_layers),
}
