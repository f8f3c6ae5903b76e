"""Known machines as data: common GPUs and links, with the rates that they are sold with and those that are reached.

`known_machines.toml` holds them, one source named a line. They are rates for the `sim` device and for predictions, so
that a laptop answers for a machine that it has not.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeVar

from executor.errors import HprofError, did_you_mean

_GIB: Final = 2**30

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """One GPU: what a 16-bit product and device memory reach, and what they are sold with."""

    name: str
    gemm_tflop_s: float
    peak_gemm_tflop_s: float
    memory_gb_s: float
    peak_memory_gb_s: float
    memory_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class KnownLink:
    """One way to a GPU: what a large pinned host-to-device copy reaches, and the bus's own rate."""

    name: str
    gb_s: float
    peak_gb_s: float
    source: str


@cache
def known_gpus() -> Mapping[str, KnownGpu]:
    """Every GPU of the table by name."""
    table = _table()
    reached = table["reached"]
    return {name: _gpu(name, row, reached) for name, row in table["gpu"].items()}


@cache
def known_links() -> Mapping[str, KnownLink]:
    """Every link of the table by name."""
    return {
        name: KnownLink(name, row["gb_s"], row["peak_gb_s"], row["source"]) for name, row in _table()["link"].items()
    }


def find_gpu(name: str) -> KnownGpu:
    """The GPU called `name`, however it is cased. Raises HprofError with the near names, or all."""
    return _find("--gpu", name, known_gpus())


def find_link(name: str) -> KnownLink:
    """The link called `name`. Raises HprofError with the near names, or all."""
    return _find("--link", name, known_links())


def _find(option: str, name: str, known: Mapping[str, Row]) -> Row:
    wanted = "".join(c for c in name.lower() if c.isalnum())
    if wanted in known:
        return known[wanted]
    hint = did_you_mean(wanted, known) or f"known are {', '.join(known)}."
    raise HprofError(f"{option} '{name[:40]}' is not in the table: {hint} Every rate can be given by a flag as well.")


def _gpu(name: str, row: Mapping[str, Any], reached: Mapping[str, float]) -> KnownGpu:
    """A row of the table; a rate that nobody measured is the usual share of its peak."""
    gemm, memory = float(row["peak_gemm_tflop_s"]), float(row["peak_memory_gb_s"])
    return KnownGpu(
        name=name,
        gemm_tflop_s=float(row.get("gemm_tflop_s", gemm * reached["gemm_share"])),
        peak_gemm_tflop_s=gemm,
        memory_gb_s=float(row.get("memory_gb_s", memory * reached["memory_share"])),
        peak_memory_gb_s=memory,
        memory_bytes=int(float(row["memory_gib"]) * _GIB),
        source=str(row["source"]),
    )


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(files("executor.devices").joinpath("known_machines.toml").read_text(encoding="utf-8"))
