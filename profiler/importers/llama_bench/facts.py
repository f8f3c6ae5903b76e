"""What llama-bench's rows say about machine and model, and what they cannot say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from profiler.importers.llama_bench.arms import arm_name
from profiler.importers.llama_bench.parsed import Format
from profiler.importers.llama_bench.rows import IMPOSSIBLE_SAMPLES, BenchRow
from profiler.manifest import Arm

_MACHINE: Final = {"cpu_info": "cpu", "gpu_info": "gpu", "backends": "backends"}
_MODEL: Final = {
    "model_type": "name",
    "model_filename": "path",
    "model_size": "n_bytes",
    "model_n_params": "n_params",
}
_PLACEMENT: Final = ("n_gpu_layers", "n_cpu_moe", "tensor_buft_overrides", "override_tensor", "load_mode", "use_mmap")
_NEVER_RECORDED: Final = (
    "llama-bench does not record bytes moved, copy times, which operations were offloaded, experts or cache hits.",
    "llama-bench does not record device memory in use, nor whether weights were pinned (load_mode is the request).",
    "llama-bench does not record clocks, the link, power, driver or operating system.",
    "llama-bench does not record environment variables that change results, such as GGML_OP_OFFLOAD_MIN_BATCH.",
    "The effective placement is not recorded: -ncmoe does not show in the overrides, nor fitted values in any field.",
    "TTFT is not measured: prompts are random tokens without tokenising, sampling or a first token.",
    "Starts of repetitions are not recorded; they are laid end to end.",
)
_MD: Final = (
    "The md table leaves out options at their defaults, and n_ubatch among them.",
    "Times are worked out from t/s with two decimals, a mean of the repetitions' rates.",
)


def manifest_fields(rows: Sequence[BenchRow], names: Sequence[str]) -> dict[str, Any]:
    """Fields of the manifest: what all rows share, and the arms in the order of the file, `off` first."""
    shared = _shared(rows)
    arms = {arm_name(row, names): {name: row.settings.get(name) for name in names} for row in rows}
    ordered = sorted(arms, key=lambda arm: arm != "off")
    times = [row.test_time for row in rows if row.test_time]
    return {
        "machine": {to: shared[name] for name, to in _MACHINE.items() if name in shared},
        "model": {to: shared[name] for name, to in _MODEL.items() if name in shared},
        "placement": {name: shared[name] for name in _PLACEMENT if name in shared},
        "arms": [Arm(arm, requested=arm, options=arms[arm]) for arm in ordered],
        "grid": {
            name: sorted({getattr(r, name) or 0 for r in rows}) for name in ("n_prompt", "n_gen", "n_depth", "n_ubatch")
        },
        "extra": {"llama_bench": shared, "stddev_ns": _spreads(rows)},
        **({"created_utc": times[0]} if times else {}),
    }


def cannot_say(rows: Sequence[BenchRow], file_format: Format) -> list[str]:
    """A sentence for each thing that these rows do not tell."""
    said = list(_NEVER_RECORDED)
    if any(row.stddev_ns is not None and IMPOSSIBLE_SAMPLES not in row.doubts for row in rows):
        said.append(
            "Single repetitions are not in this format: each pass is the mean of a row; jsonl and json have them."
        )
    if any(row.n_prompt and row.n_gen and row.parts_ns is None for row in rows):
        said.append(
            "Tests that prompt and generate have one time for both: their prefill and decode are not known apart."
        )
    return [*said, *(_MD if file_format == "md" else ())]


def doubts(rows: Sequence[BenchRow]) -> list[str]:
    """A sentence for each thing that is wrong with rows that are used, with their number."""
    counts = Counter(doubt for row in rows for doubt in row.doubts)
    return [f"{n} {'row' if n == 1 else 'rows'} {doubt}." for doubt, n in counts.items()]


def warnings(rows: Sequence[BenchRow], names: Sequence[str], unsaid: Sequence[str], *, truncated: bool) -> list[str]:
    """Sentences to show beside the figures."""
    found = doubts(rows)
    if truncated:
        found.append("The file ends inside a row; whole rows before it were kept.")
    if unsaid:
        found.append(f"Rows that differ in {', '.join(unsaid)} are taken for repetitions of one arm.")
    if names:
        found.append("llama-bench runs one arm after the other, so a drift of the machine is part of every difference.")
    return found


def _shared(rows: Sequence[BenchRow]) -> dict[str, Any]:
    first = rows[0].settings
    return {name: v for name, v in first.items() if all(row.settings.get(name) == v for row in rows)}


def _spreads(rows: Sequence[BenchRow]) -> dict[str, int]:
    """pass_id -> standard deviation of the samples that a pass of one mean stands for."""
    spreads, pass_id = {}, 0
    for row in rows:
        if row.stddev_ns is not None:
            spreads[str(pass_id)] = row.stddev_ns
        pass_id += max(1, len(row.samples_ns))
    return spreads
