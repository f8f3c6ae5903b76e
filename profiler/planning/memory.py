"""Refuses a run that memory cannot hold before anything is loaded, and says what would fit instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from executor.errors import HprofError
from executor.model import Model
from executor.placement.place import Placement
from executor.session import SessionOptions
from profiler.planning.abba import Cell
from profiler.planning.demand import Demand, Wanted, demands
from profiler.planning.fitting import what_fits
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
