"""What of hprof works on this machine, and what to do where it does not: `hprof doctor`.

Each check is a pure function of facts, so that it can be held to machines that are not there; `examine` gathers them.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from executor.devices.known import KnownLink, known_links
from executor.errors import HprofError, first_line
from executor.units import format_bytes, format_gb_s, format_rate
from executor.version import __version__
from profiler.facts import command_output, describe_gpus

_PACKAGES: Final = ("executor", "profiler", "dashboard")
_ROOT: Final = Path(__file__).resolve().parents[1]
_POOR_LINK: Final = 0.8  # of what a link of its generation and width reaches
_WITHOUT: Final = "runs use --device cpu, or --device sim for a machine that is not there."
_CROWDED: Final = 0.5  # of the processors: beyond it programs take turns with the run's threads
_LITTLE_DISK_BYTES: Final = 2 * 10**9  # some hundred captures of a usual run
_LITTLE_MEMORY: Final = 0.2  # of the whole: model weights in host memory need the most of it

State = Literal["ok", "absent", "poor", "broken"]
"""ok; not there, so that some command has nothing to work with; there but not as it should be; in the way of hprof."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A fact in a sentence, and what to do about it where something can be done."""

    name: str
    state: State
    fact: str
    advice: str | None = None


def examine(folder: str) -> Iterator[HealthCheck]:
    """Every check of this machine, as they are done; the link's copy takes a second a GPU.

    folder: where captures go, whose disk is looked at.
    """
    yield from software_checks()
    yield from gpu_checks()
    yield from machine_checks(folder)


def software_checks() -> Iterator[HealthCheck]:
    """hprof itself, then other tools."""
    yield packages_check({name: package_place(name) for name in _PACKAGES}, _ROOT)
    yield recorder_check(has_gpu=bool(describe_gpus()))
    yield nsys_check(shutil.which("nsys"))
    yield nvtx_check(importlib.util.find_spec("nvtx") is not None)


def package_place(name: str) -> Path | None:
    """The folder that Python would import a package from; None where there is none."""
    found = importlib.util.find_spec(name)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return Path(places[0]).resolve() if places else None


def packages_check(places: Mapping[str, Path | None], root: Path) -> HealthCheck:
    """Whether another project's package of the same name hides one of hprof's, which all lie in `root`."""
    versions = f"hprof {__version__}, Python {platform.python_version()} ({sys.executable})."
    hidden = [f"{name} at {place}" for name, place in places.items() if place != root / name]
    if not hidden:
        return HealthCheck("hprof", "ok", versions)
    advice = "install hprof into an environment of its own (pipx install hprof), or leave that folder off PYTHONPATH."
    return HealthCheck("hprof", "broken", f"{versions} Hidden by another project's: {', '.join(hidden)}.", advice)


def recorder_check(*, has_gpu: bool) -> HealthCheck:
    """Whether `hprof record` has what it records, and can compile its library; it is not compiled here."""
    from executor.compiling import find_compiler
    from profiler.recording.cupti_files import find_headers, find_libraries

    if not sys.platform.startswith("linux"):
        return HealthCheck("hprof record", "absent", f"It records on Linux alone, and this is {platform.system()}.")
    headers = find_headers()
    missing = [] if find_compiler() else ["a C++ compiler (apt install g++)"]
    missing += [] if headers else ["CUPTI's headers (pip install 'hprof[record]')"]
    missing += [] if find_libraries() else ["libcupti (pip install 'hprof[record]', or a CUDA toolkit)"]
    if missing:
        return HealthCheck("hprof record", "absent", "It records CUDA programs.", f"install {', '.join(missing)}.")
    majors = " and ".join(str(one.cuda_major) for one in headers)
    fact = f"A compiler and CUPTI for CUDA {majors} are here"
    if not has_gpu:
        advice = "time programs with hprof run --engine command; hprof.record() in Python records CPU operators."
        return HealthCheck("hprof record", "absent", f"{fact}, but no GPU: it would find NVTX ranges alone.", advice)
    return HealthCheck("hprof record", "ok", f"{fact}.")


def nsys_check(path: str | None) -> HealthCheck:
    """Whether .nsys-rep files can be imported; their .sqlite exports need nothing."""
    if path is None:
        advice = "install Nsight Systems for .nsys-rep files and --nsys; exports to .sqlite are read without it."
        return HealthCheck("nsys", "absent", "nsys is not in PATH.", advice)
    said = (command_output([path, "--version"]) or "").strip().splitlines()
    return HealthCheck("nsys", "ok", f"{said[0] if said else 'nsys'} at {path}.")


def nvtx_check(is_there: bool) -> HealthCheck:
    """Whether ranges of hprof's own steps reach another profiler."""
    if is_there:
        return HealthCheck("nvtx", "ok", "Ranges of passes, ubatches and layers reach nsys and hprof record.")
    return HealthCheck(
        "nvtx", "absent", "The package nvtx is missing: other profilers see no ranges.", "pip install nvtx"
    )


def gpu_checks() -> Iterator[HealthCheck]:
    """CUDA, then each GPU's link, measured by copies of pinned memory."""
    import torch

    gpus = describe_gpus()
    n_seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield cuda_check(gpus, n_seen, torch.version.cuda, torch.__version__)
    for index in range(n_seen):
        yield link_check(index, gpus[index] if len(gpus) == n_seen else {}, _measured_link(index))


def cuda_check(gpus: list[dict[str, Any]], n_seen: int, torch_cuda: str | None, torch_version: str) -> HealthCheck:
    """Whether torch sees the GPUs that the driver has; gpus: `describe_gpus`'s."""
    named = ", ".join(f"{gpu.get('name')} with {format_bytes((gpu.get('memory_mib') or 0) * 2**20)}" for gpu in gpus)
    if n_seen:
        driver = next((gpu["driver"] for gpu in gpus if gpu.get("driver")), "unknown")
        seen = named or f"{n_seen} GPU(s)"
        return HealthCheck("cuda", "ok", f"{seen}; driver {driver}, torch {torch_version} for CUDA {torch_cuda}.")
    if gpus and torch_cuda is None:
        advice = "install a CUDA build: pip install torch --index-url https://download.pytorch.org/whl/cu130"
        return HealthCheck("cuda", "poor", f"There is {named}, but torch {torch_version} is a build for CPUs.", advice)
    if gpus:
        fact = f"There is {named}, but torch {torch_version} for CUDA {torch_cuda} does not see it."
        return HealthCheck("cuda", "poor", fact, "update the driver, or unset CUDA_VISIBLE_DEVICES if it hides it.")
    return HealthCheck("cuda", "absent", "No NVIDIA GPU: nvidia-smi names none.", _WITHOUT)


def link_check(index: int, gpu: Mapping[str, object], measured: float | str) -> HealthCheck:
    """What a GPU's link reached against what its generation and width reach elsewhere.

    gpu: one of `describe_gpus`. measured: GB/s of large pinned copies, or why there are none.
    """
    name = f"link of GPU {index}"
    if isinstance(measured, str):
        advice = "raise the limit of locked memory (ulimit -l unlimited), or run --load-mode mmap."
        return HealthCheck(name, "poor", f"Pinned memory could not be copied from: {measured}.", advice)
    reached = f"Pinned copies to the device reach {format_gb_s(measured)}"
    usual = usual_link(gpu)
    if usual is None:
        return HealthCheck(name, "ok", f"{reached}; what such a link reaches is not known here.")
    fact = f"{reached}; PCIe Gen{usual.name[3]} x{usual.name.partition('x')[2]} reaches {format_gb_s(usual.gb_s)}"
    if measured >= usual.gb_s * _POOR_LINK:
        return HealthCheck(name, "ok", f"{fact}.")
    now = f"{gpu.get('pcie_generation_now')} x{gpu.get('pcie_width_now')}"
    advice = "look at the slot's width, at ReBAR and IOMMU in the BIOS, and at the NUMA node (numactl -N 0 -m 0)."
    return HealthCheck(name, "poor", f"{fact}, at present it runs at Gen{now}.", advice)


def usual_link(gpu: Mapping[str, object]) -> KnownLink | None:
    """The table's row for a GPU's best generation and width; None where it has none."""
    return known_links().get(f"gen{gpu.get('pcie_generation')}x{gpu.get('pcie_width')}")


def _measured_link(index: int) -> float | str:
    from executor.devices.cuda import CudaDevice

    try:
        device = CudaDevice(index)
        device.close()
    except (HprofError, RuntimeError) as error:
        return first_line(error)
    return "no speed was measured" if device.link_gb_s is None else device.link_gb_s


def machine_checks(folder: str) -> Iterator[HealthCheck]:
    """Load, clocks, memory and the disk below `folder`."""
    import psutil

    from profiler.facts import describe_machine

    facts = describe_machine()
    yield load_check(facts)
    yield governor_check(facts.get("cpu_governor"))
    memory = psutil.virtual_memory()
    yield memory_check(memory.available, memory.total)
    yield disk_check(folder)


def load_check(facts: Mapping[str, Any]) -> HealthCheck:
    """Whether other programs leave the processors alone; facts: `describe_machine`'s."""
    load, n_processors = facts.get("load_1min"), facts.get("usable_threads") or facts.get("threads")
    if load is None or not n_processors:
        return HealthCheck("load", "absent", "The system does not say how busy it is.")
    fact = f"Load {format_rate(load)} on {n_processors} processors, {facts.get('cpu') or 'of unknown name'}."
    if load > n_processors * _CROWDED:
        return HealthCheck("load", "poor", fact, "close other programs before a run; times and intervals suffer.")
    return HealthCheck("load", "ok", fact)


def governor_check(governor: str | None) -> HealthCheck:
    """Whether the processors keep their clock."""
    if governor is None:
        return HealthCheck("cpu clock", "absent", "The system does not say how it sets the processors' clock.")
    fact = f"The processors' governor is {governor}."
    if governor == "powersave":
        return HealthCheck("cpu clock", "poor", fact, "for runs on the CPU: sudo cpupower frequency-set -g performance")
    return HealthCheck("cpu clock", "ok", fact)


def memory_check(available_bytes: int, total_bytes: int) -> HealthCheck:
    """Whether there is room for weights in host memory."""
    fact = f"{format_bytes(available_bytes)} of {format_bytes(total_bytes)} of host memory are available."
    if available_bytes < total_bytes * _LITTLE_MEMORY:
        return HealthCheck("host memory", "poor", fact, "close other programs: weights in host memory need room.")
    return HealthCheck("host memory", "ok", fact)


def disk_check(folder: str) -> HealthCheck:
    """Whether captures can be written to `folder`, and for how long; it need not be there yet."""
    if "://" in folder:
        return HealthCheck(
            "disk", "absent", f"{folder} is an address: whether it takes captures shows when it is used."
        )
    place = Path(folder).absolute()
    existing = next(path for path in (place, *place.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return HealthCheck("disk", "broken", f"Captures go to {folder}, and {existing} cannot be written.", "use -o.")
    stats = os.statvfs(existing)
    free = stats.f_bavail * stats.f_frsize
    fact = f"Captures go to {folder}, where {format_bytes(free)} are free."
    if free < _LITTLE_DISK_BYTES:
        return HealthCheck("disk", "poor", fact, "free some, or write elsewhere with -o.")
    return HealthCheck("disk", "ok", fact)
