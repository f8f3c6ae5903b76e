"""A run's lasting part: places a model's weights once, keeps one policy an arm, and runs passes of any arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from executor.devices.base import Device
from executor.devices.factory import DeviceOptions, make_devices
from executor.engine.pass_run import PassRun
from executor.errors import HprofError, PinningRefusedError
from executor.host.weights import HostWeights, host_dtype, host_products
from executor.job import PassJob
from executor.model import Model, TensorInfo
from executor.out_of_memory import Memory, told_plainly
from executor.placed.lane import Lane, make_lane
from executor.placed.model import PlacedModel
from executor.placement.devices import layers_to_devices
from executor.placement.place import EVERYTHING_RESIDENT, Placement
from executor.policies import FULL, make_policy
from executor.policies.base import Policy, PolicyOptions
from executor.quants.dispatch import has_fused
from executor.records import PassResult
from executor.shape import MoeFfn
from executor.streaming.bank import Bank
from executor.streaming.build_banks import build_banks
from executor.streaming.streamer import Streamer
from executor.weights.host_memory import LoadMode, build_splits
from executor.weights.splits import Split, StepKind

if TYPE_CHECKING:
    from executor.routing.kinds import Routing


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to run a model. `max_*` bound every pass of the session: memory is reserved for them up front."""

    device: DeviceOptions
    max_positions: int
    max_ubatch: int
    max_ubatches: int
    dtype: torch.dtype = torch.float32
    load_mode: LoadMode = "none"
    madvise: bool = False
    tensor_split: tuple[float, ...] = ()
    """Each device's share of the layers; empty: equal shares."""
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    seed: int = 0
    routing: Routing | None = None
    prompt: Sequence[int] | None = None
    computes_on_host: bool = False
    """Whether passes will compute host tensors on the host, so that their products are made when the session opens."""


class Session:
    """Open until `close()`. One thread uses it.

    `placement` holds for all arms, or is given for each: an arm that reserves less may keep more resident.
    """

    def __init__(
        self,
        model: Model,
        placement: Placement | Mapping[str, Placement],
        arms: Sequence[str],
        options: SessionOptions,
    ) -> None:
        self.model, self.options = model, options
        self.placements = _placements(placement, arms)
        self.warnings: list[str] = []
        self.last_logits: torch.Tensor | None = None
        """Of the pass that ran last: float32 (n_logits, vocab), on its device."""
        self.policies = {arm: make_policy(arm, options.policy) for arm in dict.fromkeys(arms)}
        self.load_mode = self._effective_load_mode()
        self.devices: list[Device] = []
        try:
            with told_plainly("memory was reserved and weights were loaded", self._memory_advice):
                self.devices = make_devices(options.device)
                self._placed = self._place_model()
                self._host_flags = self._reserve_flags()
                self._streamers = {arm: self._make_streamers(policy) for arm, policy in self.policies.items()}
        except BaseException:
            self.close()
            raise

    def run_pass(self, job: PassJob, *, record: bool = True) -> PassResult:
        """Run one pass of `job.arm`; with `record` False only its totals are kept.

        Raises ValueError for a pass larger than the session was opened for: it would read and write beside its memory.
        """
        self._check_size(job)
        policy = self.policies[job.arm]
        policy.begin_pass(warmup_number=job.repetition if job.warmup else None)
        placed = self._placed.with_splits(self._splits_of(job.arm))
        with told_plainly(f"a pass of arm '{job.arm}' ran", self._memory_advice):
            # warm-ups are recorded whatever is asked: arms that learn, learn from their intervals
            marks = record or job.warmup
            run = PassRun(placed, policy, self._streamers[job.arm], job, self._host_flags, record=marks)
            result = run.run()
        self.last_logits = run.logits
        policy.learn(result)
        if not record:
            result = replace(result, events=[], ubatches=[], experts=[])
        vram = self.vram(job.arm)
        return replace(
            result,
            vram_peak=sum(vram.values()) + self._working_bytes(result.vram_peak),
            vram_resident=vram["vram_resident"],
            vram_slots=vram["vram_slots"],
            vram_bank=vram["vram_bank"],
        )

    def _check_size(self, job: PassJob) -> None:
        options = self.options
        largest = min(job.n_ubatch, job.n_prompt)
        for size, limit, what in (
            (job.n_positions, options.max_positions, "positions"),
            (largest, options.max_ubatch, "tokens in a ubatch"),
            (len(job.ubatches()), options.max_ubatches, "ubatches"),
        ):
            if size > limit:
                raise ValueError(f"a pass of {size:,} {what} does not fit in a session opened for {limit:,}")

    def _working_bytes(self, measured_peak: int | None) -> int:
        """What a pass holds besides what its arm reserves: states and activations.

        The session reserves for all its arms at once, so the measured peak counts what other arms need too.
        """
        if measured_peak is None:
            return sum(lane.fixed_bytes for lane in self._placed.lanes)
        return max(0, measured_peak - sum(device.reserved_bytes for device in self.devices))

    def vram(self, arm: str) -> dict[str, int]:
        """What an arm reserves, in bytes: weights that stay, slots, and the cache's bank."""
        policy = self.policies[arm]
        host = self.placements[arm].host
        lane_of, n_lanes = self._placed.lane_of, len(self._placed.lanes)
        resident = sum(
            t.n_bytes * len(self._homes(t, lane_of, n_lanes)) for t in self.model.tensors.values() if t.name not in host
        )
        return {
            "vram_resident": resident,
            "vram_slots": policy.n_slots * sum(sum(sizes.values()) for sizes in self._slot_bytes(self._splits_of(arm))),
            "vram_bank": sum(streamer.bank_bytes for streamer in self._streamers[arm]),
        }

    def describe_arms(self) -> list[dict[str, Any]]:
        """Requested and effective policy of each arm, for the manifest."""
        return [
            {
                "name": arm,
                "requested": {
                    "arm": arm,
                    "load_mode": self.options.load_mode,
                    "slots": self.options.policy.slots,
                    "op_offload_min_batch": self.options.policy.op_offload_min_batch,
                },
                "effective": {
                    "load_mode": None if self.options.device.kind == "sim" else self.load_mode,
                    "slots": 0 if arm == FULL else policy.n_slots,
                    "streams_ahead": policy.streams_ahead and bool(self._splits_of(arm)),
                    "host_bytes": sum(split.n_bytes for split in self._splits_of(arm)),
                    "host_layers": self.placements[arm].host_layers(),
                    "host_products": self._host_products(arm),
                    **self.vram(arm),
                },
            }
            for arm, policy in self.policies.items()
        ]

    def _host_products(self, arm: str) -> dict[str, str] | None:
        """How each quant type is multiplied on the host; None where nothing is."""
        if not self.options.computes_on_host or self.options.device.kind == "sim":
            return None
        return dict(host_products(self.model, self._splits_of(arm), self._placed.host.dtype)) or None

    @property
    def lanes(self) -> Sequence[Lane]:
        """What is held on each device."""
        return self._placed.lanes

    @property
    def splits(self) -> Sequence[Split]:
        """What any arm streams, where its bytes are."""
        return self._placed.splits

    @property
    def split_bytes(self) -> int:
        """Bytes that a ubatch streams when everything is copied whole."""
        return sum(split.n_bytes for split in self._placed.splits)

    def close(self) -> None:
        for device in self.devices:
            device.close()

    def _effective_load_mode(self) -> LoadMode:
        """Prefetch needs memory that the copy engine reads by itself: pageable copies would serialise."""
        mode = self.options.load_mode
        ahead = [arm for arm, policy in self.policies.items() if policy.streams_ahead or policy.cache_bytes]
        if mode != "mmap" or not ahead:
            return mode
        kind = "pinned" if self.options.device.kind == "cuda" else "copied"
        self.warnings.append(
            f"--load-mode mmap leaves weights in pageable memory, from which copies serialise with compute; "
            f"arm {ahead[0]} prefetches, so all arms use {kind} host memory (--load-mode none)"
        )
        return "none"

    def _place_model(self) -> PlacedModel:
        options, model = self.options, self.model
        lane_of = layers_to_devices(len(model.shape.layers), options.tensor_split or (1.0,) * len(self.devices))
        lanes = [
            self._lane(device, [layer for layer, lane in enumerate(lane_of) if lane == number])
            for number, device in enumerate(self.devices)
        ]
        self._place_resident(lanes, lane_of)
        streamed = frozenset().union(*(placement.host for placement in self.placements.values()))
        if options.madvise:
            for name in streamed:
                model.source.will_need(name)
        splits = self._load(Placement(streamed, "what any arm streams"))
        host = HostWeights(model, host_dtype(options.dtype), splits)
        if options.computes_on_host and options.device.kind != "sim":
            host.prepare(splits)
        routing = options.routing
        return PlacedModel(
            model,
            lanes,
            lane_of,
            splits,
            host,
            routing,
            options.dtype,
            options.seed,
            options.prompt,
        )

    def _load(self, streamed: Placement) -> list[Split]:
        try:
            return build_splits(self.model, streamed, self.devices[0], self.load_mode)
        except PinningRefusedError as refused:
            n_layers, n_bytes = len(self.model.shape.layers), sum(self.model.tensors[n].n_bytes for n in streamed.host)
            fitting = n_layers * refused.pinned_bytes // n_bytes
            slice_ = f", or --layers {fitting}, which would fit" if 0 < fitting < n_layers else ""
            raise HprofError(f"{refused}{slice_}") from None

    def _memory_advice(self, memory: Memory) -> str:
        options, n_layers = self.options, len(self.model.shape.layers)
        tokens = f"fewer than {options.max_positions:,} tokens of -d, -p and -n"
        if options.device.kind == "sim":  # holds no weights: what grows is rotary tables and routes
            return f"use {tokens}"
        if memory == "host":
            return f"use --layers below {n_layers}, {tokens}, a smaller --quant, or more resident layers"
        return (
            f"use -ub below {options.max_ubatch}, {tokens}, --layers below {n_layers}, or fewer resident layers "
            "(-ot, -ncmoe, -ngl)"
        )

    def _lane(self, device: Device, layers: Sequence[int]) -> Lane:
        options = self.options
        return make_lane(
            self.model,
            device,
            layers,
            options.dtype,
            max_tokens=options.max_positions,
            max_ubatch=options.max_ubatch,
        )

    def _place_resident(self, lanes: Sequence[Lane], lane_of: Sequence[int]) -> None:
        """Upload what any arm keeps on each device; the ends of the model go to the first and last."""
        on_host_for_all = frozenset.intersection(*(placement.host for placement in self.placements.values()))
        for number, lane in enumerate(lanes):
            names = [
                t.name
                for t in self.model.tensors.values()
                if t.name not in on_host_for_all and number in self._homes(t, lane_of, len(lanes))
            ]
            lane.store.ensure(names)

    def _homes(self, tensor: TensorInfo, lane_of: Sequence[int], n_lanes: int) -> set[int]:
        """The devices that read a tensor: the embedding is the first's, what follows the last layer the last's."""
        if tensor.layer is not None:
            return {lane_of[tensor.layer]}
        if tensor.name != "token_embd.weight":
            return {n_lanes - 1}
        return {0, n_lanes - 1} if self.model.shape.tied_embeddings else {0}

    def _splits_of(self, arm: str) -> list[Split]:
        """The splits that an arm streams: those whose tensors it has in host memory."""
        host = self.placements[arm].host
        return [split for split in self._placed.splits if split.parts[0].info.name in host]

    def _slot_bytes(self, splits: Sequence[Split]) -> list[dict[StepKind, int]]:
        """The largest split of each kind of step, for each lane."""
        sizes: list[dict[StepKind, int]] = [{} for _ in self._placed.lanes]
        for split in splits:
            of_lane = sizes[self._placed.lane_of[split.layer]]
            of_lane[split.what] = max(of_lane.get(split.what, 0), split.n_bytes)
        return sizes

    def _make_streamers(self, policy: Policy) -> list[Streamer]:
        streamers = []
        most = max(p.n_slots for p in self.policies.values())
        for lane, sizes in zip(self._placed.lanes, self._slot_bytes(self._placed.splits), strict=True):
            for kind, n_bytes in sizes.items():
                lane.reserve_slots(kind, most, n_bytes)
            slots = {kind: buffers[: policy.n_slots] for kind, buffers in lane.slots.items()}
            streamers.append(Streamer(lane.device, policy, slots, self._make_banks(policy, lane)))
        return streamers

    def _make_banks(self, policy: Policy, lane: Lane) -> dict[int, Bank]:
        if not policy.cache_bytes:
            return {}
        if lane.device.kind == "cuda" and not has_fused():
            raise HprofError(
                f"arm '{policy.name}' is refused: without Triton this GPU has no kernel for products with cached "
                "experts, and copying the bank for each ubatch would cost more than it saves; install triton"
            )
        splits = [split for split in self._splits_of(policy.name) if split.layer in lane.layers]
        budget = policy.cache_bytes // len(self._placed.lanes)
        moe = {split.layer: self._placed.moe(split.layer) for split in splits}
        n_used = {layer: ffn.n_used for layer, ffn in moe.items() if ffn is not None}
        return build_banks(lane.device, splits, budget, self.options.policy.cache_policy, n_used)

    def _reserve_flags(self) -> torch.Tensor | None:
        """Host memory for every router's choice in a pass."""
        shapes = self.model.shape.layers
        n_experts = max((s.ffn.n_experts for s in shapes if isinstance(s.ffn, MoeFfn)), default=0)
        if not n_experts or self.options.device.kind == "sim":
            return None
        shape = (self.options.max_ubatches, len(shapes), n_experts)
        return self.devices[0].host_slab(torch.Size(shape).numel(), pinned=True).view(shape)


def _placements(placement: Placement | Mapping[str, Placement], arms: Sequence[str]) -> dict[str, Placement]:
    """Each arm's placement; `full` keeps everything resident whatever is asked of the others."""
    given = dict.fromkeys(arms, placement) if isinstance(placement, Placement) else dict(placement)
    return {arm: EVERYTHING_RESIDENT if arm == FULL else given[arm] for arm in arms}


__all__ = ["PolicyOptions", "Session", "SessionOptions", "Split"]
