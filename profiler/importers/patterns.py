"""Ubatches and layers of a trace that names none, from kernels that repeat; nothing where they do not decide it.

A transformer's layers show as one attention kernel each, with the same kernels from one to the next. The rule, and
what it leaves null, is in `docs/importing.md`. All steps work on arrays; only distinct ubatches are looked at singly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from executor.arrays import Flags, Int64

NOTHING: Final = -1
MIN_LAYERS: Final = 4
MIN_UBATCHES: Final = 2
_UNIT: Final = (6, 1024)  # kernels from one attention to the next, at least and at most
_MAX_BREAK_UNITS: Final = 2  # a longer break may hold an ubatch whose attention has a name that is not known
_MAX_SHAPES: Final = 256  # distinct (unit, break) pairs
_MAX_REPEATED_SHARE: Final = 0.15  # of a unit: one that holds several layers has their common kernels twice
_MAX_FAR_SHARE: Final = 0.1  # where the two lie as far apart as layers do
_FAR: Final = 5  # a fifth of a unit, from either end
_TELLING: Final = 3  # kernels in a row that go on as the unit does, behind one that it does not have
_BASE: Final = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2^64


@dataclass(frozen=True, slots=True)
class KernelSequence:
    """The kernels of one stream in their order: codes of their names, and what the names say."""

    name: Int64
    is_attention: Flags
    is_lookup: Flags  # picks rows of a table: the token embedding, among others
    is_product: Flags  # a matrix product
    is_known: Flags  # does something that is no mixing of tokens by another name


@dataclass(frozen=True, slots=True)
class Repeats:
    """The ubatch and layer of each kernel, NOTHING where that is not certain."""

    ubatch: Int64
    layer: Int64  # NOTHING everywhere where it is unknown which layer comes first
    attention: Int64  # (ubatches, layers): where the attention kernels lie


def find_repeats(kernels: KernelSequence) -> Repeats | None:
    """Ubatches, and layers where the first one is known; None where the kernels decide nothing."""
    attention = _attention(kernels)
    if attention is None:
        return None
    ends = _certain_ends(kernels.name, attention)
    if ends is None:
        return None
    post, pre = ends
    # kernels of its own near the end of a layer leave too little behind them to be told by: those stay null
    sure = (np.maximum(count - _TELLING + 1, 0) for count in (post, pre))
    ubatch, layer = _labels(len(kernels.name), attention, *sure)
    if not (_starts_at_embedding(kernels, attention, pre) and _is_one_layer(kernels, attention)):
        layer = np.full(len(layer), NOTHING)
    return Repeats(ubatch, layer, attention)


def _attention(kernels: KernelSequence) -> Int64 | None:
    """Where attention runs, (ubatches, layers): equally often from break to break, with the same kernels between."""
    at = np.flatnonzero(kernels.is_attention)
    if len(at) < MIN_LAYERS * MIN_UBATCHES:
        return None
    gap = hashes(kernels.name, at[:-1], at[1:])
    same = gap[1:] == gap[:-1]
    breaks = np.flatnonzero(~(np.append(same, False) | np.append(False, same)))
    counts = np.diff(np.concatenate([[-1], breaks, [len(at) - 1]]))
    n_layers = int(counts[0])
    if len(counts) < MIN_UBATCHES or n_layers < MIN_LAYERS or (counts != n_layers).any():
        return None
    inner = np.append(gap, gap[:1]).reshape(-1, n_layers)[:, :-1]
    return at.reshape(-1, n_layers) if (inner == inner[:, :1]).all() else None


def _certain_ends(name: Int64, attention: Int64) -> tuple[Int64, Int64] | None:
    """Of each ubatch: how many kernels after an attention are surely its layer's, and how many before it.

    A unit is the rest of one layer and the beginning of the next, and nothing says where it is cut. The rest is no
    longer than what follows the last attention alike, the beginning no longer than what precedes the first one alike.
    None where that is contradictory, as it is where the first or the last layer has kernels of its own.
    """
    first, second, last = attention[:, 0], attention[:, 1], attention[:, -1]
    length = second - first - 1
    if length.min() < _UNIT[0] or length.max() > _UNIT[1]:
        return None
    unit = hashes(name, first + 1, second)
    starts, stops = np.append(0, last + 1), np.append(first, len(name))
    if (stops - starts).max() > _MAX_BREAK_UNITS * length.min():
        return None
    shape = np.stack([np.append(0, unit), hashes(name, starts, stops), np.append(unit, 0)])
    _, example, of_break = np.unique(shape, axis=1, return_index=True, return_inverse=True)
    if len(example) > _MAX_SHAPES:
        return None
    units = [name[:0], *(name[a + 1 : b] for a, b in attention[:, :2].tolist()), name[:0]]
    found = [_ends_of_break(name[starts[b] : stops[b]], units[b], units[b + 1]) for b in example.tolist()]
    if None in found:
        return None
    alike_after, alike_before = np.array(found)[of_break.ravel()].T
    post, pre = length - alike_before[:-1], length - alike_after[1:]
    return (post, pre) if (post + pre <= length).all() else None


def _ends_of_break(kernels: Int64, left: Int64, right: Int64) -> tuple[int, int] | None:
    """How far what lies between two ubatches begins as the left one's unit does, and ends as the right one's does.

    None where the rest holds kernels that go on like a unit: then that layer has some of its own before them. None
    too where the two overlap: then what was taken for layers is ubatches of one layer, and their kernels change here.
    """
    after, before = _common(kernels, left), _common(kernels[::-1], right[::-1])
    if after + before > len(kernels):
        return None
    rest = kernels[after : max(len(kernels) - before, after)]
    next_left, next_right = left[after:][:_TELLING], right[: len(right) - before][-_TELLING:]
    return None if _occurs(next_left, rest) or _occurs(next_right, rest) else (after, before)


def _labels(n_kernels: int, attention: Int64, post: Int64, pre: Int64) -> tuple[Int64, Int64]:
    """The ubatch from the first layer's certain beginning to the last one's certain end; layers between their own."""
    n_ubatches, n_layers = attention.shape
    ubatch, layer = (np.full(n_kernels, NOTHING) for _ in range(2))
    _fill(ubatch, attention[:, 0] - pre, attention[:, -1] + post + 1, np.arange(n_ubatches))
    starts, stops = attention - pre[:, None], attention + post[:, None] + 1
    _fill(layer, starts.ravel(), stops.ravel(), np.tile(np.arange(n_layers), n_ubatches))
    return ubatch, layer


def _fill(target: Int64, starts: Int64, stops: Int64, values: Int64) -> None:
    """target[start:stop] = value for ranges that are in order and apart."""
    lengths = stops - starts
    offsets = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    target[np.repeat(starts, lengths) + offsets] = np.repeat(values, lengths)


def _starts_at_embedding(kernels: KernelSequence, attention: Int64, pre: Int64) -> bool:
    """Whether each ubatch begins with rows picked from a table and no product between them and the first layer here.

    Otherwise layers before the first one here may have run on the host or on another device. What every layer picks
    does not count, as it lies in the layer's own kernels.
    """
    first = attention[:, 0]
    alike_after = attention[:, 1] - first - pre
    begin = np.append(0, (attention[:, -1] + alike_after)[:-1])
    lookups = np.append(np.flatnonzero(kernels.is_lookup), len(kernels.name))
    products = np.cumsum(np.append(0, kernels.is_product))
    # the last lookup before the certain beginning of the first layer
    at = np.searchsorted(lookups, first - pre) - 1
    lookup = np.where(at >= 0, lookups[at], NOTHING)
    return bool(((lookup >= begin) & (products[first - pre] == products[lookup])).all())


def hashes(values: Int64, starts: Int64, stops: Int64) -> npt.NDArray[np.uint64]:
    """A number for each values[start:stop], the same for equal ones: polynomials over random codes, modulo 2^64."""
    code = np.random.default_rng(0).integers(0, 2**64, int(values.max(initial=0)) + 1, np.uint64)[values]
    power = np.concatenate([np.ones(1, np.uint64), np.cumprod(np.full(len(values), _BASE))])
    prefix = np.concatenate([np.zeros(1, np.uint64), np.cumsum(code * power[:-1])])
    # brought to one power, the highest
    found: npt.NDArray[np.uint64] = (prefix[stops] - prefix[starts]) * power[len(values) - starts]
    return found * np.uint64(2) + (stops - starts).astype(np.uint64)


def _common(a: Int64, b: Int64) -> int:
    """How many elements the two begin with alike."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


def _occurs(few: Int64, many: Int64) -> bool:
    """Whether `few` comes in `many` as a whole."""
    if len(few) < _TELLING or len(many) < len(few):
        return False
    return bool((np.lib.stride_tricks.sliding_window_view(many, len(few)) == few).all(axis=1).any())


def _is_one_layer(kernels: KernelSequence, attention: Int64) -> bool:
    """Whether one layer goes to each attention.

    Where several do, a unit has a good part of itself twice, or kernels of whose kind nothing is known.
    """
    name = kernels.name
    _, example = np.unique(hashes(name, attention[:, 0], attention[:, 1]), return_index=True)
    units = [slice(first + 1, second) for first, second in attention[example, :2].tolist()]
    return all(kernels.is_known[unit].all() and not _repeats_itself(name[unit]) for unit in units)


def _repeats_itself(unit: Int64) -> bool:
    near, far = (max(2, int(len(unit) * share)) for share in (_MAX_REPEATED_SHARE, _MAX_FAR_SHARE))
    for lag in range(far + 1, len(unit) - far):
        limit = far if len(unit) <= _FAR * min(lag, len(unit) - lag) else near
        edges = np.flatnonzero(np.diff(np.concatenate([[False], unit[lag:] == unit[:-lag], [False]])))
        if len(edges) and int((edges[1::2] - edges[::2]).max()) > limit:
            return True
    return False
