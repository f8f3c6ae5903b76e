"""One pass as plain data: what it is asked to do (`PassJob`, cut into ubatches) and its records (`PassResult`).

Times are integer nanoseconds. The executor imports nothing of the profiler: whoever runs a pass keeps its records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from executor.arrays import Flags

_WARMUP_TOKENS = 500_000  # repetitions are fewer
Phase = Literal["prefill", "decode"]
EventKind = Literal["h2d", "d2h", "d2d", "compute", "cpu_compute", "wait", "sync", "api"]


def decode_steps(n_prompt: int, n_gen: int) -> int:
    """Tokens that decoding takes time for: the first generated one comes from the prompt's logits, if there are any."""
    return max(0, n_gen - 1) if n_prompt else n_gen


@dataclass(frozen=True, slots=True)
class Ubatch:
    """Tokens that go through the layers together."""

    number: int  # from 0 in each pass
    phase: Phase
    n_tokens: int
    n_past: int  # positions before it: the depth, and the ubatches that came earlier
    n_outputs: int  # tokens at its end whose logits are wanted

    def outputs(self) -> Ubatch | None:
        """Those whose logits are wanted, as a ubatch of their own; None where there are none."""
        if self.n_outputs == self.n_tokens:
            return self
        n_past = self.n_past + self.n_tokens - self.n_outputs
        return replace(self, n_tokens=self.n_outputs, n_past=n_past) if self.n_outputs else None


@dataclass(frozen=True, slots=True)
class PassJob:
    """One pass of one arm. Arms get the same tokens and the same routing in passes of the same `repetition`."""

    pass_id: int
    arm: str
    n_prompt: int
    n_gen: int
    n_ubatch: int
    n_depth: int
    repetition: int
    warmup: bool = False
    all_logits: bool = False
    """Whether the logits of all of the prompt's tokens are wanted, and not of the last one alone."""

    @property
    def token_set(self) -> int:
        """Numbers the pass's tokens (and synthetic routing): warm-ups never see what is measured later."""
        return self.repetition + (_WARMUP_TOKENS if self.warmup else 0)

    @property
    def n_decode(self) -> int:
        """Decode steps."""
        return decode_steps(self.n_prompt, self.n_gen)

    @property
    def n_positions(self) -> int:
        """Positions that the KV cache must hold."""
        return self.n_depth + self.n_prompt + self.n_decode

    @property
    def n_logits(self) -> int:
        """Rows of logits: of the prompt's last token, or of all of them, and one a decode step."""
        return self.n_decode + (self.n_prompt if self.all_logits else min(1, self.n_prompt))

    def ubatches(self) -> list[Ubatch]:
        """The prompt's ubatches (the last may be shorter), then one a decode step."""
        starts = range(0, self.n_prompt, self.n_ubatch)
        prefill = [self._prompt_ubatch(number, start) for number, start in enumerate(starts)]
        first = self.n_depth + self.n_prompt
        decode = [Ubatch(len(prefill) + i, "decode", 1, first + i, n_outputs=1) for i in range(self.n_decode)]
        return prefill + decode

    def _prompt_ubatch(self, number: int, start: int) -> Ubatch:
        n_tokens = min(self.n_ubatch, self.n_prompt - start)
        is_last = start + n_tokens == self.n_prompt
        n_outputs = n_tokens if self.all_logits else int(is_last)
        return Ubatch(number, "prefill", n_tokens, self.n_depth + start, n_outputs)


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
    n_experts: int | None = None  # that a copy carried, or of a divided layer those that the host computed
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
    policy: str  # the effective one: "off", "on", "hot", "cpu", ...
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

    def flags(self) -> Flags:
        """The bitmap as one flag an expert, (n_experts,)."""
        return unpack_flags(np.frombuffer(self.used, np.uint8))[: self.n_experts]


def pack_flags(flags: Flags) -> bytes:
    """One flag an expert as the bitmap of `ExpertsRecord.used`."""
    return np.packbits(flags, bitorder="little").tobytes()


def unpack_flags(bitmaps: NDArray[np.uint8]) -> Flags:
    """Bitmaps (..., n_bytes) as flags (..., 8 n_bytes); those beyond the last expert are False."""
    return np.unpackbits(bitmaps, axis=-1, bitorder="little").astype(np.bool_)


OrderingOp = Literal["launch", "copy", "record", "wait", "sync", "alloc", "free"]
TaggedRange = tuple[str, int, int, str]
THREAD: Final = "thread"
"""The `stream` of what the issuing thread does itself."""


@dataclass(slots=True)
class OrderingRecord:
    """One operation for `hprof check`, in the order in which the host issued them.

    Ranges are (space, from, to, tag): bytes `from` to `to` of an address space. A written tag says what the bytes are
    from then on, a read one what the reader relies on; an empty one says nothing.
    """

    sequence: int
    stream: str  # THREAD where the issuing thread itself acts
    op: OrderingOp
    t_issued: int
    event: int | None = None
    generation: int | None = None  # how often the event had been recorded by then; 0: never
    reads: list[TaggedRange] = field(default_factory=list)
    writes: list[TaggedRange] = field(default_factory=list)
    device: int | None = None
    ubatch: int | None = None
    layer: int | None = None
    name: str | None = None


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
