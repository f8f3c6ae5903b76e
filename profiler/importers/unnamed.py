"""Gives ubatches and layers to a trace whose ranges name neither, where `patterns` finds them for certain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from profiler.arithmetic.joins import distinct
from profiler.importers.patterns import NOTHING, KernelSequence, Repeats, find_repeats
from profiler.schema import COMPUTE, EVENTS, H2D, has_role

_ATTENTION: Final = r"flash|fmha|attention|attn|sdpa|mha_"
_SOFTMAX: Final = "softmax"  # of attention in three kernels
_BACKWARD: Final = r"bwd|backward"  # training: the order of the layers turns round
_OTHER_MIXER: Final = r"mamba|selective_scan|ssm_|delta_?(?:rule|net)|wkv|retention|causal_conv|linear_att|rglru"
_SECOND_STEP: Final = r"combine|reduce|bwd|backward|log_?softmax"
_LOOKUP: Final = r"gather|embedding|get_rows|index_select|indexselect"
_PRODUCT: Final = r"gemm|gemv|matmul|nvjet|cutlass|mul_mat|mmq|mmvq"
# What kernels between two attentions do when there is one layer: all else may be another layer's mixer.
_KNOWN: Final = (
    rf"{_PRODUCT}|norm|elementwise|quantize|dequant|unpack|rope|rotary|swiglu|geglu|silu|gelu|relu|sigmoid|softmax|"
    r"cast|convert|copy|cpy|concat|catarray|index|gather|scatter|get_rows|set_rows|kv_?cache|transpose|permute|"
    r"split_?k|reduce|combine|top_?k|argsort|expert|moe|router|fill|memset|dot_kernel|"
    r"(?:^|_|k_)(?:add|mul|act|down|bin_bcast|scale)(?:$|_|\W)"
)
_MAIN_SHARE: Final = 0.95  # of a device's kernels, on the stream whose order counts
_WEIGHTS_FROM_BYTES: Final = 1 << 16  # smaller copies are token ids, positions and the like
_UNDECIDED: Final = (
    "ubatches and layers: no range names them, and the kernels do not repeat in the one way that would decide it"
)


@dataclass(frozen=True, slots=True)
class _DecidingRows:
    """The columns of all events that decide, as arrays."""

    start: Int64
    end: Int64
    name: Int64
    device: Int64  # a number for each (process, device)
    stream: Int64
    size: Int64  # -1: unknown
    is_kernel: Flags
    is_h2d: Flags


def segment_unnamed(events: pa.Table) -> tuple[pa.Table, list[str]]:
    """Fill `ubatch` and `layer` where both are null everywhere; gives the table and what `cannot_say` must hold.

    events: an EVENTS table of one import. Ubatches count from 0 in each pass, or in the whole trace where it has none.
    """
    n_rows = events.num_rows
    if min(events["ubatch"].null_count, events["layer"].null_count) < n_rows:
        return events, []
    if "compute" not in events["kind"].unique().to_pylist():
        return events, []
    names = events["name"].combine_chunks().dictionary
    is_attention = _attention_names(names)
    if not is_attention.any() or _says(names, f"{_BACKWARD}|{_OTHER_MIXER}").any():
        return events, [_UNDECIDED]
    rows = _rows_of(events)
    ubatch, layer = (np.full(n_rows, NOTHING) for _ in range(2))
    told = []
    for device in np.unique(rows.device[rows.is_kernel & _of(is_attention, rows.name)]).tolist():
        found = _segment_device(rows, device, is_attention, names, ubatch, layer)
        if found is not None:
            told.append(_told(found))
    if not told:
        return events, [_UNDECIDED]
    _count_in_passes(events, ubatch)
    for column, values in (("ubatch", ubatch), ("layer", layer)):
        position = EVENTS.get_field_index(column)
        array = pa.array(values.astype(np.int32), mask=values == NOTHING)
        events = events.set_column(position, EVENTS.field(position), array)
    return events, list(dict.fromkeys(told))


def _segment_device(
    rows: _DecidingRows, device: int, is_attention: Flags, names: pa.Array, ubatch: Int64, layer: Int64
) -> Repeats | None:
    """Fill in the rows of one device."""
    kernel = np.flatnonzero(rows.is_kernel & (rows.device == device))
    streams, counts = np.unique(rows.stream[kernel], return_counts=True)
    main = int(streams[counts.argmax()])
    if main == NOTHING or counts.max() < _MAIN_SHARE * len(kernel):
        return None
    kernel = kernel[rows.stream[kernel] == main]
    kernel = kernel[np.argsort(rows.start[kernel], kind="stable")]
    name = rows.name[kernel]
    said = (_of(_says(names, pattern), name) for pattern in (_LOOKUP, _PRODUCT, _KNOWN))
    found = find_repeats(KernelSequence(name, _of(is_attention, name), *said))
    if found is None:
        return None
    copies = np.flatnonzero(rows.is_h2d & (rows.device == device))
    by_stream = {int(stream): copies[rows.stream[copies] == stream] for stream in np.unique(rows.stream[copies])}
    in_order = [s for s, of_s in by_stream.items() if _segment_in_order(rows, of_s, kernel, found, ubatch, layer)]
    if not in_order:
        found = replace(found, layer=np.full(len(kernel), NOTHING))
    ubatch[kernel], layer[kernel] = found.ubatch, found.layer
    if main in by_stream and main not in in_order:
        inline = by_stream[main]
        ubatch[inline] = np.append(found.ubatch, NOTHING)[np.searchsorted(rows.start[kernel], rows.start[inline])]
    return found


def _segment_in_order(
    rows: _DecidingRows, copies: Int64, kernel: Int64, found: Repeats, ubatch: Int64, layer: Int64
) -> bool:
    """Copies of one stream, taken in order where there are the same ones for every layer of every ubatch.

    They are the second witness to the layers: as many sets of copies as attention kernels.
    """
    copies = copies[rows.size[copies] >= _WEIGHTS_FROM_BYTES]
    n_ubatches, n_layers = found.attention.shape
    if len(copies) == 0 or len(copies) % found.attention.size:
        return False
    of_layer = copies[np.argsort(rows.start[copies], kind="stable")].reshape(found.attention.size, -1)
    sizes = rows.size[of_layer]
    attention = kernel[found.attention.ravel()]
    # a copy ends before its layer's successor has its attention, and is no more than one ubatch ahead
    in_time = rows.end[of_layer[:-1]].max(axis=1) <= rows.start[attention[1:]]
    not_early = rows.start[of_layer[n_layers:]].min(axis=1) >= rows.start[attention[:-n_layers]]
    alike = bool((sizes == sizes[0]).all()) and _is_of_one_layer(sizes[0])
    if not (alike and in_time.all() and not_early.all()):
        return False
    ubatch[of_layer] = np.repeat(np.arange(n_ubatches), n_layers)[:, None]
    if (found.layer != NOTHING).any():
        layer[of_layer] = np.tile(np.arange(n_layers), n_ubatches)[:, None]
    return True


def _is_of_one_layer(sizes: Int64) -> bool:
    """Whether copies are surely not of several layers, whole ones (all of other sizes) or with parts in common.

    A layer has tensors of one size, such as key and value or gate and up, or it is copied as a whole. No two of
    different sizes come twice in it, and no three.
    """
    listed = sizes.tolist()
    n_distinct = len(set(listed))
    if n_distinct == 1 or n_distinct == len(listed):
        return len(listed) in (1, 3) and n_distinct == 1
    first: dict[tuple[int, ...], int] = {}
    for length in (2, 3):
        for at in range(len(listed) - length + 1):
            few = tuple(listed[at : at + length])
            if at - first.setdefault(few, at) >= length and (length == 3 or len(set(few)) == 2):
                return False
    return True


def _rows_of(events: pa.Table) -> _DecidingRows:
    def ints(column: str, fill: int) -> Int64:
        values: Int64 = pc.fill_null(events[column].cast(pa.int64()), fill).to_numpy()
        return values

    def codes(column: str) -> Int64:
        indices = events[column].combine_chunks().indices
        values: Int64 = pc.fill_null(indices, NOTHING).to_numpy(zero_copy_only=False).astype(np.int64)
        return values

    _, process = distinct(ints("process", NOTHING))
    _, device = distinct((process << 32) | ints("device", NOTHING) + 1)
    return _DecidingRows(
        start=ints("t_start", 0),
        end=ints("t_end", 0),
        name=codes("name"),
        device=device,
        stream=codes("stream"),
        size=ints("bytes", NOTHING),
        is_kernel=has_role(events, [COMPUTE]),
        is_h2d=has_role(events, [H2D]),
    )


def _says(names: pa.Array, pattern: str) -> Flags:
    found: Flags = pc.match_substring_regex(names, pattern, ignore_case=True).to_numpy(zero_copy_only=False)
    return found


def _attention_names(names: pa.Array) -> Flags:
    """Fused kernels where there are any, else the softmax between two products."""
    second = _says(names, _SECOND_STEP)
    fused = _says(names, _ATTENTION) & ~second
    return fused if fused.any() else _says(names, _SOFTMAX) & ~second


def _of(by_name: Flags, name: Int64) -> Flags:
    found: Flags = np.append(by_name, False)[name]
    return found


def count_in_passes(events: pa.Table) -> pa.Table:
    """The events with ubatches that count from 0 in each pass, where they counted over several."""
    position = EVENTS.get_field_index("ubatch")
    if events["ubatch"].null_count == events.num_rows:
        return events
    ubatch: Int64 = pc.fill_null(events["ubatch"].cast(pa.int64()), NOTHING).to_numpy().copy()
    _count_in_passes(events, ubatch)
    array = pa.array(ubatch.astype(np.int32), mask=ubatch == NOTHING)
    return events.set_column(position, EVENTS.field(position), array)


def _count_in_passes(events: pa.Table, ubatch: Int64) -> None:
    """Ubatches count from 0 in each pass; one that lies in two passes at once is none."""
    passes: Int64 = pc.fill_null(events["pass_id"].cast(pa.int64()), NOTHING).to_numpy()
    known = np.flatnonzero(ubatch != NOTHING)
    _, code = distinct(passes[known])
    first = np.full(int(code.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, code, ubatch[known])
    ubatch[known] -= first[code]


def _told(found: Repeats) -> str:
    n_ubatches, n_layers = found.attention.shape
    if (found.layer == NOTHING).all():
        return (
            f"layers, and the names of ubatches: {n_ubatches} ubatches with {n_layers} attention kernels each are told "
            "from kernels that repeat, which do not say what the layers are or which of the model's comes first"
        )
    return (
        f"the names of ubatches and layers: {n_ubatches} ubatches of {n_layers} layers are told from kernels that "
        "repeat; what lies between them has neither"
    )
