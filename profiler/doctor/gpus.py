"""GPUs: whether torch sees them, whether host memory can be pinned, and what the link reaches for its generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from executor.devices.known import KnownLink, known_links
from executor.errors import HprofError, first_line
from executor.units import format_bytes, format_gb_s
from profiler.doctor.check import HealthCheck

_POOR_LINK: Final = 0.8  # of what a link of its generation and width reaches
_WITHOUT: Final = "runs use --device cpu, or --device sim for a machine that is not there."


def gpu_checks() -> Iterator[HealthCheck]:
    """CUDA, then each GPU's link, measured by copies of pinned memory."""
    import torch

    from profiler.facts import describe_gpus

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


def link_check(index: int, gpu: Mapping[str, Any], measured: float | str) -> HealthCheck:
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


def usual_link(gpu: Mapping[str, Any]) -> KnownLink | None:
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
