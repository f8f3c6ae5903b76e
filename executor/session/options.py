"""How to run a model: what a session is opened with, and what follows from it.

The load mode in effect, which passes fit, and what to lower where memory runs out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from executor.devices.factory import DeviceOptions
from executor.devices.out_of_memory import Memory
from executor.passes import PassJob
from executor.policies.base import Policy, PolicyOptions
from executor.weights.transfer_units import LoadMode

if TYPE_CHECKING:
    from executor.routing.routers import Routing


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to run a model. `max_*` bound every pass of the session: memory is reserved for them up front."""

    device: DeviceOptions
    max_positions: int
    """Positions of the KV cache: depth, prompt and decoded tokens."""
    max_ubatch: int
    """Tokens in a ubatch."""
    max_ubatches: int
    """Ubatches in a pass; a decode step is one."""
    dtype: torch.dtype = torch.float32
    """What devices compute in."""
    load_mode: LoadMode = "none"
    madvise: bool = False
    """Whether the system is asked to read mapped pages before they are needed."""
    tensor_split: tuple[float, ...] = ()
    """Each device's share of the layers; empty: equal shares."""
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    seed: int = 0
    routing: Routing | None = None
    """Who chooses experts; None: the model's own router."""
    prompt: Sequence[int] | None = None
    """Token ids that every prompt repeats; None: seeded random ones."""
    record_ordering: bool = False
    """Whether passes keep the order of all that was issued, for `hprof check`."""
    inject: str | None = None
    """A fault to plant, by a name of `executor.fault_names`; the order must be recorded."""
    layers_on_host: Collection[int] = ()
    """Layers whose host tensors passes will compute on the host, so that products are made when the session opens."""


def effective_load_mode(options: SessionOptions, policies: Iterable[Policy]) -> tuple[LoadMode, list[str]]:
    """The load mode of all arms, and a warning where it is not the one asked for.

    Prefetch needs memory that the copy engine reads by itself: pageable copies would serialise.
    """
    ahead = [policy.name for policy in policies if policy.streams_ahead or policy.cache_bytes]
    if options.load_mode != "mmap" or not ahead:
        return options.load_mode, []
    kind = "pinned" if options.device.kind == "cuda" else "copied"
    warning = (
        f"--load-mode mmap leaves weights in pageable memory, from which copies serialise with compute; "
        f"arm {ahead[0]} prefetches, so all arms use {kind} host memory (--load-mode none)"
    )
    return "none", [warning]


def check_size(job: PassJob, options: SessionOptions) -> None:
    """Raise ValueError for a pass larger than its session: it would read and write beside its memory."""
    largest = min(job.n_ubatch, job.n_prompt)
    for size, limit, what in (
        (job.n_positions, options.max_positions, "positions"),
        (largest, options.max_ubatch, "tokens in a ubatch"),
        (len(job.ubatches()), options.max_ubatches, "ubatches"),
    ):
        if size > limit:
            raise ValueError(f"a pass of {size:,} {what} does not fit in a session opened for {limit:,}")


def memory_advice(memory: Memory, options: SessionOptions, n_layers: int) -> str:
    """What to lower where `memory` ran out for a model of `n_layers`."""
    tokens = f"fewer than {options.max_positions:,} tokens of -d, -p and -n"
    if options.device.kind == "sim":  # holds no weights: what grows is rotary tables and routes
        return f"use {tokens}"
    if memory == "host":
        return f"use --layers below {n_layers}, {tokens}, a smaller --quant, or more resident layers"
    return (
        f"use -ub below {options.max_ubatch}, {tokens}, --layers below {n_layers}, or fewer resident layers "
        "(-ot, -ncmoe, -ngl)"
    )
