"""Which build of llama-bench measured, and the placement that it was asked for, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from profiler.manifest import Manifest

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


def bench_lines(manifest: Manifest) -> Iterator[str]:
    """The builds and the placement shared by all arms; nothing for captures of other tools."""
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
