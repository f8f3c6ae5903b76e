"""Pushes NVTX ranges of domain `hprof` around what the engine issues; `executor.tracing.nvtx_names` says how they read.

Attributes are built once and kept: a push costs about a microsecond when no tool listens
(`benchmarks/recording_overhead.py`).
"""

from __future__ import annotations

from functools import lru_cache
from types import TracebackType
from typing import Any

import nvtx

from executor.job import PassJob, Ubatch
from executor.tracing.nvtx_names import (
    DOMAIN,
    Category,
    PassName,
    StepName,
    UbatchName,
    format_pass,
    format_step,
    format_ubatch,
)

_domain = nvtx.get_domain(DOMAIN)


class NvtxRange:
    """A context manager that pushes one prepared range; reusable, and it nests."""

    __slots__ = ("attributes",)

    def __init__(self, attributes: Any) -> None:
        self.attributes = attributes

    def __enter__(self) -> None:
        _domain.push_range(self.attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _domain.pop_range()


def _attributes(message: str, category: Category | None = None, payload: int | None = None) -> Any:
    return _domain.get_event_attributes(message=message, color=None, category=category, payload=payload)


def pass_range(job: PassJob) -> NvtxRange:
    """The range of a whole pass."""
    name = PassName(
        job.pass_id, job.arm, job.n_ubatch, job.n_depth, job.n_prompt, job.n_gen, job.repetition, job.warmup
    )
    return NvtxRange(_attributes(format_pass(name)))


def ubatch_range(ubatch: Ubatch) -> NvtxRange:
    """The range of a ubatch."""
    return NvtxRange(_attributes(format_ubatch(UbatchName(ubatch.number, ubatch.phase, ubatch.n_tokens))))


@lru_cache(maxsize=4096)
def copy_range(layer: int | None, tensor: str, what: str, n_bytes: int) -> NvtxRange:
    """The range of a copy; its payload is the bytes."""
    return NvtxRange(_attributes(format_step(StepName(layer, what, tensor)), "copy", n_bytes))


@lru_cache(maxsize=4096)
def compute_range(layer: int | None, what: str) -> NvtxRange:
    """The range of a computed part."""
    return NvtxRange(_attributes(format_step(StepName(layer, what)), "compute"))
