"""What the manifest says of each arm: what was asked for, and what is in effect."""

from __future__ import annotations

from typing import Any

from executor.host.weights import host_products
from executor.policies import FULL
from executor.session.arm import Arm
from executor.session.options import SessionOptions
from executor.weights.host_memory import LoadMode


def describe_arm(name: str, arm: Arm, options: SessionOptions, load_mode: LoadMode) -> dict[str, Any]:
    """An arm's entry: `name`, `requested` and `effective`; bytes are those of all devices together.

    Where there are several devices, `by_device` has those of each. `load_mode` is the effective one.
    """
    policy = arm.policy
    return {
        "name": name,
        "requested": {
            "arm": name,
            "load_mode": options.load_mode,
            "slots": options.policy.slots,
            "op_offload_min_batch": options.policy.op_offload_min_batch,
        },
        "effective": {
            "load_mode": None if options.device.kind == "sim" else load_mode,
            "slots": 0 if name == FULL else policy.n_slots,
            "streams_ahead": policy.streams_ahead and bool(arm.placed.splits),
            "host_bytes": arm.host_bytes,
            "host_layers": arm.placement.host_layers(),
            "host_products": _host_products(arm, options),
            **arm.vram(),
            **({"by_device": arm.vram_by_device()} if len(arm.placed.lanes) > 1 else {}),
        },
    }


def _host_products(arm: Arm, options: SessionOptions) -> dict[str, str] | None:
    """How each quant type is multiplied on the host; None where nothing is."""
    if not options.computes_on_host or options.device.kind == "sim":
        return None
    placed = arm.placed
    return dict(host_products(placed.model, placed.splits, placed.host.dtype)) or None
