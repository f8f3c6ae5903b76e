"""Which kind of host memory copies start from, where an arm needs another one than was asked for."""

from __future__ import annotations

from collections.abc import Iterable

from executor.policies.base import Policy
from executor.session.options import SessionOptions
from executor.weights.host_memory import LoadMode


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
