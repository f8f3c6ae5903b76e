"""Which options a user may change so that a run fits in memory: the largest values that were counted and do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from executor.errors import HprofError
from executor.model import Model
from executor.placement.place import Placement, is_movable
from executor.policies import FULL
from profiler.planning.demand import Demand, Wanted

MOST_SAID: Final = 3
_WORTH_LOWERING: Final = 0.1  # of all that is needed
_STREAM_ALL: Final = "--op-offload-min-batch 1"
_MIB: Final = 1 << 20

Fits = Callable[[Wanted], bool]
Knob = Callable[[Wanted, Fits], str | None]
"""Gives the option as it is typed, with the largest value that fits; None where none does."""


def what_fits(wanted: Wanted, short: Demand, fits: Fits) -> list[str]:
    """Options that make it fit, the ones that lower the largest part of the demand first."""

    def does(other: Wanted) -> bool:
        try:
            return fits(other)
        except HprofError:  # such as a bank too small for one token's experts
            return False

    found = _found(wanted, short, does)
    if found or not short.parts.get("products"):
        return found
    return [f"{_STREAM_ALL} with {text}" for text in _found(_streaming(wanted), short, does)]


def _found(wanted: Wanted, short: Demand, fits: Fits) -> list[str]:
    texts = (knob(wanted, fits) for knob in _knobs(short))
    return list(islice((text for text in texts if text is not None), MOST_SAID))


def _knobs(short: Demand) -> Iterator[Knob]:
    by_size = sorted(short.parts, key=lambda name: -short.parts[name])
    names = [name for name in by_size if short.parts[name] >= _WORTH_LOWERING * short.needed]
    yield from dict.fromkeys(knob for name in names for knob in _KNOBS[name])


def _without_full(wanted: Wanted, fits: Fits) -> str | None:
    others = tuple(arm for arm in wanted.arms if arm != FULL)
    if not others or len(others) == len(wanted.arms):
        return None
    return f"--arms {','.join(others)}" if fits(replace(wanted, arms=others)) else None


def _resident_layers(wanted: Wanted, fits: Fits) -> str | None:
    """More layers in host memory, beside what is there already."""
    placement, n_layers = wanted.placement, len(wanted.model.shape.layers)
    if not isinstance(placement, Placement):
        return None
    n = _largest(lambda n: fits(replace(wanted, placement=_resident(wanted.model, placement, n))), 0, n_layers - 1)
    others = re.sub(r"\s*-ngl -?\d+|all resident", "", placement.spelled).strip()
    return None if n is None else f"-ngl {n}" + (f" beside {others}" if others else "")


def _resident(model: Model, placement: Placement, n: int) -> Placement:
    first = len(model.shape.layers) - n
    moved = {t.name for t in model.tensors.values() if is_movable(t) and (t.layer or 0) < first}
    return replace(placement, host=placement.host | moved)


def _layers(wanted: Wanted, fits: Fits) -> str | None:
    least, most = wanted.options.device.n_devices, len(wanted.model.shape.layers) - 1
    n = _largest(lambda n: fits(replace(wanted, model=_sliced(wanted.model, n))), least, most)
    return None if n is None else f"--layers {n}"


def _sliced(model: Model, n: int) -> Model:
    tensors = {name: t for name, t in model.tensors.items() if t.layer is None or t.layer < n}
    return replace(model, shape=model.shape.sliced(n), tensors=tensors)


def _ubatch(wanted: Wanted, fits: Fits) -> str | None:
    def with_ubatch(n: int) -> Wanted:
        cells = tuple(replace(cell, n_ubatch=min(cell.n_ubatch, n)) for cell in wanted.cells)
        return replace(wanted, cells=cells, options=replace(wanted.options, max_ubatch=n))

    halves = (2**i for i in range((wanted.options.max_ubatch - 1).bit_length() - 1, 4, -1))
    return next((f"-ub {n}" for n in halves if fits(with_ubatch(n))), None)


def _positions(wanted: Wanted, fits: Fits) -> str | None:
    def with_positions(n: int) -> Wanted:
        return replace(wanted, options=replace(wanted.options, max_positions=n))

    n = _largest(lambda n: fits(with_positions(n)), 1, wanted.options.max_positions - 1)
    return None if n is None else f"a context (-d, -p and -n together) of {n:,} tokens"


def _n_gen(wanted: Wanted, fits: Fits) -> str | None:
    def with_n_gen(n: int) -> Wanted:
        cells = tuple(replace(cell, n_gen=min(cell.n_gen, n)) for cell in wanted.cells)
        n_positions = max(cell.n_positions for cell in cells)
        return replace(wanted, cells=cells, options=replace(wanted.options, max_positions=n_positions))

    n = _largest(lambda n: fits(with_n_gen(n)), 1, max(cell.n_gen for cell in wanted.cells) - 1)
    return None if n is None else f"-n {n}"


def _cache(wanted: Wanted, fits: Fits) -> str | None:
    policy = wanted.options.policy

    def with_mib(n: int) -> Wanted:
        return replace(wanted, options=replace(wanted.options, policy=replace(policy, cache_bytes=n * _MIB)))

    # not halved down to nothing: a bank must hold what one token needs
    eighths = (policy.cache_bytes // _MIB * i // 8 for i in range(7, 0, -1))
    return next((f"--moe-cache-mib {n}" for n in eighths if fits(with_mib(n))), None)


def _slots(wanted: Wanted, fits: Fits) -> str | None:
    policy = wanted.options.policy
    fewest = replace(wanted, options=replace(wanted.options, policy=replace(policy, slots=2)))
    return "--slots 2" if policy.slots > 2 and fits(fewest) else None


def _stream_all(wanted: Wanted, fits: Fits) -> str | None:
    return _STREAM_ALL if fits(_streaming(wanted)) else None


def _streaming(wanted: Wanted) -> Wanted:
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
    "resident": (_without_full, _resident_layers, _layers),
    "slots": (_slots, _layers),
    "bank": (_cache,),
    "states": (_positions, _layers),
    "activations": (_ubatch, _positions),
    "scratch": (_ubatch,),
    "logits": (_n_gen,),
    "weights": (_layers,),
    "loading": (_layers,),
    "products": (_stream_all, _layers),
}
