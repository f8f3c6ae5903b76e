"""What a session was opened for, and what to say where that is too much for a pass or for the memory."""

from __future__ import annotations

from executor.devices.out_of_memory import Memory
from executor.job import PassJob
from executor.session.options import SessionOptions


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
