"""The trace schema: one arrow schema a table. Every recorder and importer writes these; every metric reads only these.

Times are integer nanoseconds from the capture's start. A value that a source cannot give is null, never 0.
`docs/trace-schema.md` describes each column.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from executor.arrays import Flags

SCHEMA_VERSION: Final = 1

_LABEL = pa.dictionary(pa.int32(), pa.string())

PHASES: Final = ("prefill", "decode")
MEMORIES: Final = ("pinned", "pageable", "device", "managed")  # what `source_memory` may say
EVENT_KINDS: Final = ("h2d", "d2h", "d2d", "compute", "cpu_compute", "wait", "sync", "api")
KERNEL: Final = "kernel"  # the `detail` of what ran inside a step whose own row has been counted
KERNEL_STREAM: Final = "kernels"  # its `stream`, so that timelines show it beside the steps
COLLECTIVE: Final = "collective"  # the `detail` of collectives that run beside the compute
UVM: Final = "uvm"  # the `detail` of pages that migrated because somebody touched them: no copy that anyone asked for
UNCOUNTED: Final = ("memset", "graph", COLLECTIVE, KERNEL)  # `detail` of rows that are neither copy nor compute

# What a row counts as; `role_of` decides it, and nothing else does. The roles up to "graph" are a device's own work.
DIRECTIONS: Final = ("h2d", "d2h", "d2d", "uvm_h2d", "uvm_d2h")
MANAGED: Final = ("uvm_h2d", "uvm_d2h")
ROLES: Final = (*DIRECTIONS, "compute", COLLECTIVE, "memset", "graph", "cpu_compute", "wait")
ABSENT: Final = -1  # of a row that counts as nothing: host calls, and kernels inside steps that count themselves
H2D: Final = ROLES.index("h2d")  # explicit host to device copies: the direction that prefetch is about
COMPUTE, IN_COLLECTIVE, CPU_COMPUTE, WAIT = map(ROLES.index, ("compute", COLLECTIVE, "cpu_compute", "wait"))
COPIES: Final = tuple(range(len(DIRECTIONS)))
DEVICE_WORK: Final = tuple(range(ROLES.index("graph") + 1))  # while none of these runs, a device is idle

EVENTS: Final = pa.schema(
    [
        ("pass_id", pa.int32()),  # null: outside any pass, or the source has no passes
        ("phase", _LABEL),  # PHASES
        ("ubatch", pa.int32()),  # number inside the pass, prefill then decode
        ("layer", pa.int32()),
        ("process", pa.int64()),
        ("device", pa.int32()),  # null for host rows
        ("stream", _LABEL),  # "compute", "copy", "host"; an importer's own stream numbers as text
        ("kind", _LABEL),  # EVENT_KINDS
        ("name", _LABEL),
        ("tensor", _LABEL),
        ("t_start", pa.int64()),
        ("t_end", pa.int64()),
        ("bytes", pa.int64()),
        ("whole_bytes", pa.int64()),  # what a whole copy of the same tensors would have moved
        ("n_tokens", pa.int32()),
        ("n_experts", pa.int32()),
        ("slot", pa.int32()),
        ("correlation_id", pa.int64()),
        ("waits_for", pa.int64()),  # correlation_id of the copy that this interval's work reads
        ("source_memory", _LABEL),  # copies: MEMORIES
        ("detail", _LABEL),  # copies: "uvm"; compute: UNCOUNTED; importers' extra, short
    ]
)

PASSES: Final = pa.schema(
    [
        ("pass_id", pa.int32()),
        ("arm", pa.string()),
        ("n_ubatch", pa.int32()),
        ("n_depth", pa.int32()),
        ("n_prompt", pa.int32()),
        ("n_gen", pa.int32()),
        ("repetition", pa.int32()),
        ("order", pa.int32()),  # position in the run, over all arms
        ("boot", pa.int32()),
        ("warmup", pa.bool_()),
        ("t_start", pa.int64()),
        ("t_end", pa.int64()),
        ("ttft_ns", pa.int64()),
        ("prefill_ns", pa.int64()),
        ("decode_ns", pa.int64()),
        ("sampling_ns", pa.int64()),
        ("n_decoded", pa.int32()),  # tokens that decode_ns covers; null: n_gen - 1, of no prompt n_gen
        ("tokens", pa.list_(pa.int32())),
        ("bytes_h2d", pa.int64()),
        ("vram_peak", pa.int64()),
        ("vram_resident", pa.int64()),
        ("vram_slots", pa.int64()),
        ("vram_bank", pa.int64()),
        ("logits_digest", pa.string()),
        ("readings", pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))),  # that a program printed
    ]
)

UBATCHES: Final = pa.schema(
    [
        ("pass_id", pa.int32()),
        ("phase", _LABEL),
        ("ubatch", pa.int32()),
        ("n_tokens", pa.int32()),
        ("n_past", pa.int32()),
        ("policy", _LABEL),  # the effective one
        ("t_start", pa.int64()),
        ("t_end", pa.int64()),
    ]
)

EXPERTS: Final = pa.schema(
    [
        ("pass_id", pa.int32()),
        ("phase", _LABEL),
        ("ubatch", pa.int32()),
        ("layer", pa.int32()),
        ("n_tokens", pa.int32()),
        ("n_experts", pa.int32()),
        ("distinct", pa.int32()),
        ("copied", pa.int32()),
        ("hits", pa.int32()),
        ("misses", pa.int32()),
        ("used", pa.binary()),  # bitmap, little-endian, expert 0 in bit 0 of byte 0
    ]
)

_RANGES = pa.list_(pa.struct([("space", pa.string()), ("from", pa.int64()), ("to", pa.int64()), ("tag", pa.string())]))

ORDERING: Final = pa.schema(
    [
        ("pass_id", pa.int32()),
        ("sequence", pa.int64()),
        ("stream", _LABEL),
        ("op", _LABEL),
        ("event", pa.int64()),
        ("generation", pa.int64()),
        ("reads", _RANGES),
        ("writes", _RANGES),
        ("device", pa.int32()),
        ("ubatch", pa.int32()),
        ("layer", pa.int32()),
        ("name", _LABEL),
        ("t_issued", pa.int64()),  # by the host
    ]
)

TABLES: Final[dict[str, pa.Schema]] = {
    "events": EVENTS,
    "passes": PASSES,
    "ubatches": UBATCHES,
    "experts": EXPERTS,
    "ordering": ORDERING,
}


def role_of(kind: str | None, detail: str | None) -> int:
    """What a row of this kind and detail counts as: an index into ROLES, ABSENT for nothing.

    Collectives, memsets and graph launches recorded as a whole keep a device from being idle, but are neither copy
    nor compute and hide nothing. The host's compute hides nothing either, and leaves the device idle.
    """
    if detail in UNCOUNTED:
        return ROLES.index(detail) if kind == "compute" and detail in ROLES else ABSENT
    managed = f"uvm_{kind}"
    role = managed if detail == UVM and managed in MANAGED else kind
    return ROLES.index(role) if role in ROLES else ABSENT


def roles_of(kind: pa.ChunkedArray, detail: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """`role_of` each row of these two columns."""
    (kind_code, kinds), (detail_code, details) = label_codes(kind), label_codes(detail)
    of_pair = np.array([[role_of(k, d) for d in (*details, None)] for k in (*kinds, None)], np.int8)
    return of_pair[kind_code, detail_code]


def has_role(events: pa.Table, roles: Collection[int]) -> Flags:
    """Which rows of a table with `kind` and `detail` have one of these roles: the explicit copies to the device with
    [H2D]."""
    return np.isin(roles_of(events["kind"], events["detail"]), list(roles))


def label_codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], tuple[str, ...]]:
    """A column of labels as codes into its own texts, -1 for null."""
    if column.num_chunks == 0:
        return np.empty(0, np.int32), ()
    array = column.unify_dictionaries().combine_chunks()
    names = tuple(str(name) for name in array.dictionary.to_pylist())
    indices = array.indices
    return (indices.fill_null(-1) if indices.null_count else indices).to_numpy(), names
