"""The figures that hprof gives: one name, one unit, one meaning; `docs/metrics.md` has the formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Unit = Literal["ns", "tokens/s", "bytes", "share"]


@dataclass(frozen=True, slots=True)
class Figure:
    """`better` says which way is good where that can be said; `label` is short, for tables."""

    label: str
    unit: Unit
    meaning: str
    better: Literal["lower", "higher"] | None = None


FIGURES: Final[dict[str, Figure]] = {
    "ttft_ns": Figure("TTFT", "ns", "start of the prompt's first ubatch to the first token known", "lower"),
    "prefill_tokens_per_s": Figure("prefill", "tokens/s", "prompt tokens / prefill time", "higher"),
    "decode_tokens_per_s": Figure("decode", "tokens/s", "tokens after the first / their time", "higher"),
    "wall_ns": Figure("wall", "ns", "start to end of the pass or phase", "lower"),
    "bytes_h2d": Figure("copied", "bytes", "bytes copied from host to device"),
    "busy_copy_ns": Figure("busy copy", "ns", "union of the host to device copies"),
    "busy_compute_ns": Figure("busy compute", "ns", "union of the device's compute intervals"),
    "hidden_copy_ns": Figure("hidden copy", "ns", "copy time covered by compute"),
    "exposed_copy_ns": Figure("exposed copy", "ns", "copy time that no compute covered", "lower"),
    "overlap_efficiency": Figure("overlap eff.", "share", "hidden / min(busy copy, busy compute)", "higher"),
    "hidden_ratio": Figure("hidden", "share", "hidden / busy copy", "higher"),
    "idle_ns": Figure("idle", "ns", "time in which the device neither copied nor computed", "lower"),
    "wait_ns": Figure("waiting", "ns", "union of the waits of the compute stream for copies", "lower"),
    "host_compute_ns": Figure("host compute", "ns", "union of what the host computed"),
    "distinct_share": Figure("distinct", "share", "expert weights touched / all expert weights"),
    "selective_saving_bytes": Figure("saved", "bytes", "bytes not copied thanks to the selective copy"),
    "cache_hit_rate": Figure("cache hits", "share", "expert cache hits / look-ups", "higher"),
    "vram_peak_bytes": Figure("VRAM", "bytes", "most device memory in use", "lower"),
}
