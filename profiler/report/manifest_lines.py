"""Lines of a report that its manifest alone tells: what programs allocated, which build of llama-bench measured, and
what a recording beside timed runs saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from executor.units import format_bytes, format_ns, format_share
from profiler.manifest import Manifest
from profiler.plain_text import printable

_MAX_PROCESSES: Final = 16
# field of llama-bench's rows -> its flag
_PLACEMENT: Final = {
    "n_gpu_layers": "-ngl",
    "n_cpu_moe": "-ncmoe",
    "tensor_buft_overrides": "-ot",
    "override_tensor": "-ot",
    "load_mode": "-lm",
    "use_mmap": "-mmp",
    "split_mode": "-sm",
    "tensor_split": "-ts",
}
_NOTHING: Final = (None, "", "none", "0.00")


def allocation_notes(manifest: Manifest) -> list[str]:
    """What was allocated of device memory, a line for each process and device; empty where the source does not say."""
    told = manifest.extra.get("device_memory")
    rows = [row for row in told if _is_sound(row)] if isinstance(told, list) else []
    return [
        f"Process {row['process']}, device {row['device']}: at most {format_bytes(row['peak_bytes'])} of its memory "
        "allocated while recorded."
        for row in rows[:_MAX_PROCESSES]
    ]


def _is_sound(row: object) -> bool:
    return isinstance(row, dict) and all(type(row.get(name)) is int for name in ("process", "device", "peak_bytes"))


def bench_lines(manifest: Manifest) -> Iterator[str]:
    """llama-bench's builds, and the placement that all arms share; nothing for captures of other tools."""
    shared = manifest.extra.get("llama_bench")
    if manifest.source != "llama-bench" or not isinstance(shared, dict):
        return
    if (commit := shared.get("build_commit")) is not None:
        yield f"llama-bench build: {commit} ({shared.get('build_number')})."
    else:
        by_arm = [f"{arm.name}: {build}" for arm in manifest.arms if (build := _build(arm.options)) is not None]
        if by_arm:
            yield f"llama-bench builds: {'; '.join(by_arm)}."
    flags = [
        f"{flag} {shared[name]}"
        for name, flag in _PLACEMENT.items()
        if shared.get(name) not in _NOTHING or (name == "load_mode" and name in shared)
    ]
    if flags:
        yield f"Placement as asked for: {' '.join(flags)}."


def _build(options: dict[str, object]) -> object:
    return options.get("build", options.get("build_commit"))


def recorded_lines(manifest: Manifest) -> Iterator[str]:
    """What a recording beside the timed runs saw of each arm, a line each; what it could not say is left out."""
    recorded = manifest.extra.get("recorded")
    arms = recorded.get("arms") if isinstance(recorded, dict) else None
    if not isinstance(arms, dict) or not isinstance(recorded, dict):
        return
    yield printable(f"{recorded.get('how', '')} The recording: {recorded.get('capture', 'unknown')}")
    for name, figures in arms.items():
        if isinstance(figures, dict) and (told := list(_told(figures))):
            yield printable(f"  {name}: {', '.join(told)}.")


def _told(figures: Mapping[str, object]) -> Iterator[str]:
    n_bytes, busy_ns, hidden_ns, compute_ns, idle_ns, host_ns = (
        value if isinstance(value := figures.get(name), int | float) else None
        for name in ("bytes_h2d", "busy_copy_ns", "hidden_copy_ns", "busy_compute_ns", "idle_ns", "host_compute_ns")
    )
    if n_bytes is not None:
        yield f"copied {format_bytes(n_bytes)} to the device"
    if busy_ns is not None:
        shown = (
            f", {format_share(hidden_ns / busy_ns)} of it hidden behind compute"
            if busy_ns and hidden_ns is not None
            else ""
        )
        yield f"busy copy {format_ns(busy_ns)}{shown}"
    if compute_ns is not None:
        yield f"busy compute {format_ns(compute_ns)}"
    if idle_ns is not None:
        yield f"idle {format_ns(idle_ns)}"
    if host_ns:
        yield f"host compute {format_ns(host_ns)}"
