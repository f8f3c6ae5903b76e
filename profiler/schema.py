"""The trace schema: one arrow schema a table. Every recorder and importer writes these; every metric reads only these.

Times are integer nanoseconds from the capture's start. A value that a source cannot give is null, never 0.
`docs/trace-schema.md` describes each column.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

SCHEMA_VERSION: Final = 1

_LABEL = pa.dictionary(pa.int32(), pa.string())

EVENT_KINDS: Final = ("h2d", "d2h", "d2d", "compute", "cpu_compute", "wait", "sync", "api")
KERNEL: Final = "kernel"  # the `detail` of what ran inside a step whose own row has been counted
KERNEL_STREAM: Final = "kernels"  # its `stream`, so that timelines show it beside the steps
UNCOUNTED: Final = ("memset", "graph", "collective", KERNEL)  # `detail` of rows that are neither copy nor compute

EVENTS: Final = pa.schema(
    [
        ("pass_id", pa.int32()),  # null: outside any pass, or the source has no passes
        ("phase", _LABEL),  # prefill | decode
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
        ("source_memory", _LABEL),  # copies: pinned | pageable | device | managed
        ("detail", _LABEL),  # copies: "uvm", "memset"; importers' extra, short
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
        ("n_decoded", pa.int32()),  # tokens that decode_ns covers; null: n_gen - 1
        ("tokens", pa.list_(pa.int32())),
        ("bytes_h2d", pa.int64()),
        ("vram_peak", pa.int64()),
        ("vram_resident", pa.int64()),
        ("vram_slots", pa.int64()),
        ("vram_bank", pa.int64()),
        ("logits_digest", pa.string()),
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
    ]
)

TABLES: Final[dict[str, pa.Schema]] = {
    "events": EVENTS,
    "passes": PASSES,
    "ubatches": UBATCHES,
    "experts": EXPERTS,
    "ordering": ORDERING,
}
