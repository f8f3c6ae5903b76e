"""What a run will hold in memory, counted before it is reserved, so that a hopeless run is refused at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from executor.errors import HprofError
from executor.layers.state import new_state
from executor.model import Model
from executor.placement import Placement
from executor.session import FULL, SessionOptions
from executor.shape import Mixer
from profiler.abba import Cell

_GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes, by what asks for them. `kept_wide` are the dequantised weights of steps computed on the host."""

    resident: int
    host: int
    kept_wide: int
    states: int
    logits: int

    @property
    def on_device(self) -> int:
        return self.resident + self.states + self.logits

    @property
    def on_host(self) -> int:
        return self.host + self.kept_wide


def count_needs(
    model: Model, placement: Placement, arms: Sequence[str], options: SessionOptions, cells: Sequence[Cell]
) -> Needs:
    """Add up weights, the KV caches (or other mixer states) of the longest cell, and the logits."""
    tensors = model.tensors.values()
    host = sum(t.n_bytes for t in tensors if placement.is_host(t.name))
    wide = 4 if options.device.kind == "cpu" else 2
    n_host_weights = sum(math.prod(t.shape) for t in tensors if placement.is_host(t.name))
    n_logits = max(cell.n_gen for cell in cells) + 1
    return Needs(
        resident=model.n_bytes if FULL in arms else model.n_bytes - host,
        host=host,
        kept_wide=n_host_weights * wide if _computes_on_host(arms, options, cells) else 0,
        states=state_bytes(model, options.max_positions, options.dtype),
        logits=n_logits * model.shape.n_vocab * 4,
    )


def state_bytes(model: Model, n_positions: int, dtype: torch.dtype) -> int:
    """The mixer states of all layers for a context of `n_positions`: a fixed part and a part for each position."""
    one, two = (
        {mixer: new_state(mixer, n, torch.device("meta"), dtype).n_bytes for mixer in _mixers(model)} for n in (1, 2)
    )
    return sum(one[s.mixer] + (n_positions - 1) * (two[s.mixer] - one[s.mixer]) for s in model.shape.layers)


def check_needs(
    model: Model, placement: Placement, arms: Sequence[str], options: SessionOptions, cells: Sequence[Cell]
) -> None:
    """Raise HprofError, saying what to lower, when host or device memory cannot hold the run."""
    if options.device.kind == "sim":
        return
    needs = count_needs(model, placement, arms, options, cells)
    host_free = psutil.virtual_memory().available
    if options.device.kind == "cpu":
        _check(needs.on_device + needs.on_host, host_free, "memory", needs, model)
        return
    _check(needs.on_host, host_free, "host memory", needs, model)
    device_free = sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    _check(needs.on_device, device_free, "GPU memory", needs, model)


def _mixers(model: Model) -> set[Mixer]:
    return {layer.mixer for layer in model.shape.layers}


def _check(needed: int, free: int, what: str, needs: Needs, model: Model) -> None:
    if needed <= free:
        return
    largest = max(("states", "logits", "resident", "host", "kept_wide"), key=lambda name: getattr(needs, name))
    advice = {
        "states": f"the context alone takes {needs.states / _GIB:.1f} GiB: lower -d, -p or -n",
        "logits": f"the logits of -n tokens take {needs.logits / _GIB:.1f} GiB: lower -n",
        "kept_wide": f"weights computed on the host take {needs.kept_wide / _GIB:.1f} GiB dequantised: use -n 0 "
        "and ubatches of at least --op-offload-min-batch tokens, or run a slice with --layers",
    }.get(largest, "run a slice with --layers, a smaller --quant, or --device sim")
    raise HprofError(
        f"{model.origin} needs {needed / _GIB:.1f} GiB of {what} for this run and {free / _GIB:.1f} GiB are free; "
        f"{advice}."
    )


def _computes_on_host(arms: Sequence[str], options: SessionOptions, cells: Sequence[Cell]) -> bool:
    if "cpu" in arms:
        return True
    threshold = options.policy.op_offload_min_batch
    sizes = {size for cell in cells for size in _ubatch_sizes(cell)}
    return any(size < threshold for size in sizes) and set(arms) != {FULL}


def _ubatch_sizes(cell: Cell) -> set[int]:
    full, rest = divmod(cell.n_prompt, cell.n_ubatch)
    decodes = cell.n_gen > (1 if cell.n_prompt else 0)
    return {size for size, runs in ((cell.n_ubatch, full), (rest, rest), (1, decodes)) if runs}
