"""What the executor hands to a recorder: plain records, times in integer nanoseconds.

The executor imports nothing of the profiler; whoever runs it passes something with a `Recorder`'s methods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

Phase = Literal["prefill", "decode"]
EventKind = Literal["h2d", "d2h", "d2d", "compute", "cpu_compute", "wait", "sync", "api"]


@dataclass(slots=True)
class EventRecord:
    """A copy, a compute interval, a wait or a host call. `None` means: does not apply, or is not known."""

    kind: EventKind
    name: str
    t_start: int
    t_end: int
    device: int
    stream: str
    phase: Phase
    ubatch: int
    layer: int | None = None
    tensor: str | None = None
    bytes: int | None = None
    whole_bytes: int | None = None  # what a whole copy of the same tensors would have moved
    n_tokens: int | None = None
    n_experts: int | None = None  # experts that a copy carried
    slot: int | None = None
    correlation_id: int | None = None  # a copy's own number, unique in its pass
    source_memory: str | None = None  # a copy's: "pinned" | "pageable"; None where it makes no difference
    waits_for: int | None = None  # correlation_id of the (last) copy that this interval's work reads


@dataclass(slots=True)
class UbatchRecord:
    """One ubatch of a pass: what was asked of it and which policy served it."""

    phase: Phase
    ubatch: int
    n_tokens: int
    n_past: int
    policy: str  # the effective one: "off", "on", "hot:64", "cpu", ...
    t_start: int
    t_end: int


@dataclass(slots=True)
class ExpertsRecord:
    """One MoE layer in one ubatch. `used` is a bitmap, little-endian, expert 0 in bit 0 of byte 0."""

    phase: Phase
    ubatch: int
    layer: int
    n_tokens: int
    n_experts: int
    distinct: int
    copied: int  # experts that crossed the bus for this layer and ubatch
    hits: int | None
    misses: int | None
    used: bytes


@dataclass(slots=True)
class OrderingRecord:
    """One operation for the hazard check, in host issue order."""

    sequence: int
    stream: str
    op: Literal["launch", "copy", "record", "wait", "sync", "alloc", "free"]
    event: int | None = None
    generation: int | None = None
    reads: list[tuple[str, int, int, str]] = field(default_factory=list)  # (space, from, to, tag)
    writes: list[tuple[str, int, int, str]] = field(default_factory=list)


@dataclass(slots=True)
class PassResult:
    """What one pass took and gave. Times in ns; `vram_*` in bytes; `tokens` are the generated ids."""

    t_start: int
    t_end: int
    ttft_ns: int | None
    prefill_ns: int | None
    decode_ns: int | None
    sampling_ns: int | None
    tokens: list[int]
    bytes_h2d: int
    vram_peak: int | None
    vram_resident: int | None
    vram_slots: int | None
    vram_bank: int | None
    logits_digest: str | None  # sha256 of the float32 logits after the prompt and after each step; None on sim
    events: list[EventRecord] = field(default_factory=list)
    ubatches: list[UbatchRecord] = field(default_factory=list)
    experts: list[ExpertsRecord] = field(default_factory=list)
    ordering: list[OrderingRecord] = field(default_factory=list)


class Recorder(Protocol):
    """Takes finished passes. Called between passes, never inside a timed region."""

    def record_pass(self, pass_id: int, result: PassResult) -> None:
        """Keep a finished pass; `pass_id` is unique in the run."""
