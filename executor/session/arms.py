"""The arms of a session: each one's policy, transfer units and streamers, and the slots that all of them share.

Also each arm's entry in the manifest: what was asked for, and what is in effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor.errors import HprofError
from executor.host.steps import host_products
from executor.placed_model import DeviceShard, PlacedModel
from executor.placement.place import Placement, devices_of
from executor.policies.base import Policy
from executor.quants.dispatch import is_stored_as
from executor.session.options import SessionOptions
from executor.streaming.expert_cache import ExpertCacheBuffer, build_banks
from executor.streaming.streamer import Streamer
from executor.streaming.substitutes import Substitutes
from executor.triton_support import has_triton
from executor.weights.transfer_units import LoadMode, StepKind, TransferUnit


@dataclass(frozen=True, slots=True)
class SessionArm:
    """One arm, ready to run passes."""

    policy: Policy
    placement: Placement
    placed: PlacedModel
    """The session's, with the units that this arm streams."""
    streamers: Sequence[Streamer]
    """One a device."""

    @property
    def host_bytes(self) -> int:
        """Bytes of weights that the arm keeps in host memory."""
        return sum(unit.n_bytes for unit in self.placed.units)

    def vram(self) -> dict[str, int]:
        """Device memory in bytes: `vram_resident` weights, `vram_slots`, and the cache's `vram_bank`."""
        return {part: sum(n_bytes) for part, n_bytes in self.vram_by_device().items()}

    def vram_by_device(self) -> dict[str, list[int]]:
        """The same, on each device in their order."""
        slot_bytes = [sum(sizes.values()) for sizes in largest_unit_bytes(self.placed, self.placed.units)]
        return {
            "vram_resident": self._resident_bytes(),
            "vram_slots": [self.policy.n_slots * n_bytes for n_bytes in slot_bytes],
            "vram_bank": [streamer.bank_bytes for streamer in self.streamers],
        }

    def _resident_bytes(self) -> list[int]:
        """On each device; what two devices read lies on both."""
        placed, is_tied = self.placed, self.placed.model.shape.tied_embeddings
        n_bytes = [0] * len(placed.shards)
        for tensor in placed.model.tensors.values():
            if tensor.name not in self.placement.host:
                for device in devices_of(tensor, placed.shard_of, tied_embeddings=is_tied):
                    n_bytes[device] += tensor.n_bytes
        return n_bytes


def largest_unit_bytes(placed: PlacedModel, units: Sequence[TransferUnit]) -> list[dict[StepKind, int]]:
    """The bytes of the largest unit of each kind of step, for each shard: what a slot must hold."""
    sizes: list[dict[StepKind, int]] = [{} for _ in placed.shards]
    for unit in units:
        of_shard = sizes[placed.shard_of[unit.layer]]
        of_shard[unit.what] = max(of_shard.get(unit.what, 0), unit.n_bytes)
    return sizes


def make_arms(
    placed: PlacedModel, policies: Mapping[str, Policy], placements: Mapping[str, Placement]
) -> dict[str, SessionArm]:
    """Every arm by name. Raises HprofError where an arm's bank does not fit, or its device has no kernel for it."""
    most_slots = max(policy.n_slots for policy in policies.values())
    return {name: _make_arm(placed, policy, placements[name], most_slots) for name, policy in policies.items()}


def _make_arm(placed: PlacedModel, policy: Policy, placement: Placement, most_slots: int) -> SessionArm:
    mine = placed.with_units(placed.units_of(placement))
    streamers = []
    for number, (shard, sizes) in enumerate(zip(placed.shards, largest_unit_bytes(placed, placed.units), strict=True)):
        for kind, n_bytes in sizes.items():
            shard.reserve_slots(kind, most_slots, n_bytes)
        slots = {kind: buffers[: policy.n_slots] for kind, buffers in shard.slots.items()}
        banks, substitutes = _make_banks(mine, policy, shard), _make_substitutes(mine, policy, shard)
        place = {"number": number, "n_devices": len(placed.shards)}
        streamers.append(Streamer(shard.device, policy, slots, banks, substitutes, **place))
    return SessionArm(policy, placement, mine, streamers)


def _make_substitutes(placed: PlacedModel, policy: Policy, shard: DeviceShard) -> Substitutes | None:
    n_experts = max((unit.n_experts for unit in placed.units), default=0)
    if not (policy.traits.divides and n_experts):
        return None
    return Substitutes(shard.device, len(placed.layers), n_experts)


def _make_banks(placed: PlacedModel, policy: Policy, shard: DeviceShard) -> dict[int, ExpertCacheBuffer]:
    if not policy.cache_bytes:
        return {}
    if shard.device.kind == "cuda" and not has_triton():
        raise HprofError(
            f"arm '{policy.name}' is refused: without Triton this GPU has no kernel for products with cached "
            "experts, and copying the bank for each ubatch would cost more than it saves; install triton"
        )
    units = [unit for unit in placed.units if unit.layer in shard.layers]
    budget = policy.cache_bytes // len(placed.shards)
    moe = {unit.layer: placed.moe(unit.layer) for unit in units}
    n_used = {layer: ffn.n_used for layer, ffn in moe.items() if ffn is not None}
    return build_banks(shard.device, units, budget, policy.options.cache_policy, n_used)


def describe_arm(name: str, arm: SessionArm, options: SessionOptions, load_mode: LoadMode) -> dict[str, Any]:
    """An arm's entry: `name`, `traits`, `requested`, `effective` and `notes`; bytes are those of all devices together.

    Where there are several devices, `by_device` has those of each. `load_mode` is the effective one.
    """
    policy = arm.policy
    return {
        "name": name,
        "traits": policy.traits,
        "requested": {
            "arm": name,
            "load_mode": options.load_mode,
            "slots": options.policy.slots,
            "op_offload_min_batch": options.policy.op_offload_min_batch,
        },
        "effective": {
            "load_mode": None if options.device.kind == "sim" else load_mode,
            "slots": policy.n_slots,
            "streams_ahead": policy.streams_ahead and bool(arm.placed.units),
            "host_bytes": arm.host_bytes,
            "host_layers": arm.placement.host_layers(),
            "host_products": _host_products(arm, options),
            **arm.vram(),
            **({"by_device": arm.vram_by_device()} if len(arm.placed.shards) > 1 else {}),
        },
        "notes": _notes(arm, options),
    }


def _notes(arm: SessionArm, options: SessionOptions) -> list[str]:
    """What a reader must know to compare the arm with others."""
    tensors, dtype = arm.placed.model.tensors.values(), options.dtype
    widens = any(len(tensor.shape) > 1 and not is_stored_as(tensor, dtype) for tensor in tensors)
    if options.device.kind == "cuda" and widens and not has_triton():
        return [
            "without Triton the GPU widens every quantised weight before its product, which makes decode several "
            "times slower than products straight from the stored bytes: install triton and a C compiler"
        ]
    if not (arm.policy.traits.is_resident and options.device.kind == "cpu" and options.layers_on_host and widens):
        return []
    return [
        "the cpu device dequantises a resident weight each time a step reads it, as a GPU does for many rows, but the "
        "host multiplies weights that were prepared once: this is the limit of what copies can reach, and decode "
        "on the host may be faster"
    ]


def _host_products(arm: SessionArm, options: SessionOptions) -> dict[str, str] | None:
    """How each quant type is multiplied on the host; None where nothing is."""
    if options.device.kind == "sim":
        return None
    placed = arm.placed
    units = [unit for unit in placed.units if unit.layer in options.layers_on_host]
    return dict(host_products(placed.model, units, placed.host.dtype)) or None
