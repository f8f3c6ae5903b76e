"""What a manifest says of the machine and of the model: facts, as far as they can be told, else None.

Imports nothing heavy: `hprof models` describes models and needs no torch.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from executor.model import Model

_TIMEOUT_S: Final = 10
_GPU_QUERY: Final = {
    "name": "name",
    "uuid": "uuid",
    "memory_mib": "memory.total",
    "driver": "driver_version",
    "pcie_generation": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.max",
    "pcie_generation_now": "pcie.link.gen.current",
    "pcie_width_now": "pcie.link.width.current",
    "power_limit_w": "power.limit",
    "clock_max_mhz": "clocks.max.sm",
}
_NUMBERS: Final = frozenset(_GPU_QUERY) - {"name", "uuid", "driver"}
_RESULT_VARIABLES: Final = (
    *("OMP_", "MKL_", "OPENBLAS_", "KMP_", "CUDA_", "NVIDIA_", "PYTORCH_", "TORCH", "TRITON_", "HPROF_"),
    *("GGML_", "LLAMA_ARG_"),
)
_SECRET_WORDS: Final = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


def describe_machine() -> dict[str, Any]:
    """CPU, memory, system, versions and GPUs."""
    import psutil
    import torch

    return {
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_governor": _read_line(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,  # before the run adds its own
        "memory_bytes": psutil.virtual_memory().total,
        "os": _os_name(),
        "kernel": platform.release() or None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": describe_gpus(),
    }


def processors(machine: Mapping[str, Any]) -> list[str]:
    """The names of a manifest's processors, GPUs first: `2 x NVIDIA H200`. The manifest may be a stranger's."""
    return [*gpu_names(machine), *([str(machine["cpu"])] if machine.get("cpu") else [])]


def gpu_names(machine: Mapping[str, Any]) -> list[str]:
    """The names of a manifest's GPUs, each once: `2 x NVIDIA H200`."""
    listed = machine.get("gpus")
    gpus = [gpu for gpu in listed if isinstance(gpu, dict)] if isinstance(listed, list) else []
    one = machine.get("gpu")  # as llama-bench's rows have them, in one text
    if not gpus and isinstance(one, str) and one:
        return [one]
    counts = Counter(str(gpu.get("name") or "GPU without a name") for gpu in gpus)
    return [f"{n} x {name}" if n > 1 else name for name, n in counts.items()]


def cpu_model() -> str | None:
    """The processor's name."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, None) or platform.processor() or None
    except OSError:
        return platform.processor() or None


def describe_gpus() -> list[dict[str, Any]]:
    """One entry an NVIDIA GPU, by nvidia-smi's word; empty where there is none."""
    text = command_output(
        ["nvidia-smi", f"--query-gpu={','.join(_GPU_QUERY.values())}", "--format=csv,noheader,nounits"]
    )
    return parse_gpus(text or "")


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """nvidia-smi's CSV rows as dicts; fields that it does not know (`[N/A]`) are None."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    return [
        {name: _value(name, cell) for name, cell in zip(_GPU_QUERY, row, strict=True)}
        for row in rows
        if len(row) == len(_GPU_QUERY)
    ]


def result_variables() -> dict[str, str]:
    """Environment variables that can change what is measured, without anything that looks like a secret."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_RESULT_VARIABLES) and not any(word in name for word in _SECRET_WORDS)
    }


def source_commit() -> dict[str, Any] | None:
    """hprof's own git commit, and whether files differ from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    commit = command_output(["git", "-C", str(root), "rev-parse", "HEAD"])
    if commit is None:
        return None
    changes = command_output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit.strip(), "dirty": None if changes is None else bool(changes.strip())}


def command_output(command: Sequence[str]) -> str | None:
    """What a command prints; None where it does not exist, fails, or takes longer than 10 s."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _value(name: str, cell: str) -> str | float | int | None:
    if not cell or cell.startswith("["):
        return None
    if name not in _NUMBERS:
        return cell
    try:
        number = float(cell)
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _read_line(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def model_fields(model: Model) -> dict[str, Any]:
    """Name, origin, digest, bytes, quant types and shape of a model."""
    quants: dict[str, int] = {}
    for tensor in model.tensors.values():
        quants[tensor.quant] = quants.get(tensor.quant, 0) + tensor.n_bytes
    shape = model.shape
    return {
        "name": shape.name,
        "origin": model.origin,
        "digest": model.source.digest(),
        "architecture": shape.architecture,
        "n_bytes": model.n_bytes,
        "quant_bytes": dict(sorted(quants.items(), key=lambda item: -item[1])),
        "n_layers": len(shape.layers),
        "hidden": shape.hidden,
        "n_vocab": shape.n_vocab,
        "layer_kinds": layer_kinds(model),
        "notes": list(shape.notes),
    }


def layer_kinds(model: Model) -> dict[str, int]:
    """How many layers there are of each kind, e.g. `attention + dense ffn`."""
    kinds: dict[str, int] = {}
    for layer in model.shape.layers:
        mixer = type(layer.mixer).__name__.removesuffix("Shape").lower()
        ffn = "experts" if hasattr(layer.ffn, "n_experts") else "dense ffn"
        window = getattr(layer.mixer, "window", None)
        name = f"{mixer}{f' (window {window})' if window else ''} + {ffn}"
        kinds[name] = kinds.get(name, 0) + 1
    return kinds
