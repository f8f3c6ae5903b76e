"""A run's lasting part: places a model's weights once, keeps one policy an arm, and runs passes of any arm."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from executor.devices.base import Device
from executor.devices.factory import make_devices
from executor.devices.faults import FAULTS
from executor.devices.out_of_memory import Memory, explain_oom
from executor.devices.recording import OrderingLog, RecordingDevice
from executor.engine.pass_run import PassRun
from executor.engine.recorded_tokens import RecordedTokens
from executor.errors import HprofError, PinningRefusedError
from executor.host.steps import HostWeights, host_dtype
from executor.model import Model, ModelShape
from executor.passes import PassJob, PassResult
from executor.placed_model import DeviceShard, PlacedModel, make_device_shard
from executor.placement.place import EVERYTHING_RESIDENT, Placement, devices_of, layers_to_devices
from executor.policies import arm_traits, make_policy
from executor.quants.product_choice import Way, agree_on_products, used_products
from executor.session.arms import describe_arm, make_arms
from executor.session.options import SessionOptions, check_size, effective_load_mode, memory_advice
from executor.weights.transfer_units import LoadMode, TransferUnit, build_transfer_units


class Session:
    """Open until `close()`. One thread uses it.

    `placement` holds for all arms, or is given for each: an arm that reserves less may keep more resident.
    Raises HprofError where an arm is unknown or refused, a device is missing, or memory runs out.
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
        self.last_logits: torch.Tensor | None = None
        """Of the pass that ran last: float32 (n_logits, vocab), on its device."""
        self.policies = {arm: make_policy(arm, options.policy) for arm in dict.fromkeys(arms)}
        self.load_mode, self.warnings = effective_load_mode(options, self.policies.values())
        """`warnings`: sentences; more may come while passes run."""
        self.devices: list[Device] = []
        self._ordering = OrderingLog() if options.record_ordering else None
        try:
            with explain_oom("memory was reserved and weights were loaded", self._memory_advice):
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        model, options = self.model, self.options
        self.devices = make_devices(options.device)
        if self._ordering is not None:
            self.devices = [RecordingDevice(device, self._ordering) for device in self.devices]
            if options.inject is not None:
                faulty = FAULTS[options.inject]
                self.devices = [faulty(device, self._ordering) for device in self.devices]
        self._placed = place_model(model, self.placements.values(), self.devices, options, self.load_mode)
        if self._ordering is not None:
            _name_weights(self._ordering, self._placed.units)
        self._host_flags = reserve_flags(self.devices[0], model.shape, options.max_ubatches)
        records = all(device.records_work for device in self.devices)
        tell = self.warnings.append
        self._recorded = RecordedTokens(self._placed, options.max_ubatches, tell) if records else None
        self._arms = make_arms(self._placed, self.policies, self.placements)

    def run_pass(self, job: PassJob, *, record: bool = True) -> PassResult:
        """Run one pass of `job.arm`; with `record` False only its totals are kept.

        Raises ValueError for a pass larger than the session was opened for, HprofError where memory runs out.
        """
        check_size(job, self.options)
        arm = self._arms[job.arm]
        arm.policy.begin_pass(warmup_number=job.repetition if job.warmup else None)
        if self._ordering is not None:
            self._ordering.begin_pass()
        with explain_oom(f"a pass of arm '{job.arm}' ran", self._memory_advice):
            # warm-ups are recorded whatever is asked: arms that learn, learn from their intervals
            marks = record or job.warmup
            run = PassRun(arm.placed, arm.policy, arm.streamers, job, self._host_flags, self._recorded, record=marks)
            result = run.run()
        self.last_logits = run.logits
        arm.policy.learn(result)
        if not record:
            result = replace(result, events=[], ubatches=[], experts=[])
        vram = arm.vram()
        return replace(
            result,
            ordering=[] if self._ordering is None else self._ordering.take(),
            vram_peak=sum(vram.values()) + self._working_bytes(result.vram_peak),
            vram_resident=vram["vram_resident"],
            vram_slots=vram["vram_slots"],
            vram_bank=vram["vram_bank"],
        )

    def describe_arms(self) -> list[dict[str, Any]]:
        """Requested and effective policy of each arm, for the manifest."""
        return [describe_arm(name, arm, self.options, self.load_mode) for name, arm in self._arms.items()]

    def device_products(self) -> dict[str, Way]:
        """How products of few rows were computed on the GPU so far: by shape and rows, one way for all arms."""
        return used_products() if self.options.device.kind == "cuda" else {}

    def agree_on_products(self, ways: object) -> None:
        """Compute such products as another process did, of which a manifest tells."""
        if self.options.device.kind == "cuda":
            agree_on_products(ways)

    @property
    def shards(self) -> Sequence[DeviceShard]:
        """What is held on each device."""
        return self._placed.shards

    @property
    def units(self) -> Sequence[TransferUnit]:
        """What any arm streams, where its bytes are."""
        return self._placed.units

    def close(self) -> None:
        """Stop the devices' threads and free their memory."""
        for device in self.devices:
            device.close()

    def _working_bytes(self, measured_peak: int | None) -> int:
        """What a pass holds besides what its arm reserves: states and activations.

        The session reserves for all its arms at once, so the measured peak counts what other arms need too.
        """
        if measured_peak is None:
            return sum(shard.fixed_bytes for shard in self._placed.shards)
        return max(0, measured_peak - sum(device.reserved_bytes for device in self.devices))

    def _memory_advice(self, memory: Memory) -> str:
        return memory_advice(memory, self.options, len(self.model.shape.layers))


def _name_weights(log: OrderingLog, units: Sequence[TransferUnit]) -> None:
    for unit in units:
        for number, segment in enumerate(unit.segments):
            part = f" part {number}" if len(unit.segments) > 1 else ""
            log.name(segment.source, f"blk.{unit.layer}.{unit.label}{part}")


def _placements(placement: Placement | Mapping[str, Placement], arms: Sequence[str]) -> dict[str, Placement]:
    """Each arm's placement; one that is resident by design stays so whatever is asked of the others."""
    given = dict.fromkeys(arms, placement) if isinstance(placement, Placement) else dict(placement)
    return {arm: EVERYTHING_RESIDENT if arm_traits(arm).is_resident else given[arm] for arm in arms}


def place_model(
    model: Model,
    placements: Collection[Placement],
    devices: Sequence[Device],
    options: SessionOptions,
    load_mode: LoadMode,
) -> PlacedModel:
    """The model placed: resident what any of `placements` keeps on a device, in units what any of them streams.

    Raises HprofError where memory runs out or cannot be pinned.
    """
    shares = options.tensor_split or (1.0,) * len(devices)
    first_split = max(placement.first_split_layer for placement in placements)
    shard_of = layers_to_devices(len(model.shape.layers), shares, first_split)
    shards = _make_shards(model, devices, shard_of, options)
    _place_resident(model, placements, shards, shard_of)
    streamed = Placement(frozenset().union(*(placement.host for placement in placements)), "what any arm streams")
    if options.madvise:
        for name in streamed.host:
            model.source.will_need(name)
    units = _load(model, streamed, devices[0], load_mode)
    host = HostWeights(model, host_dtype(options.dtype), units)
    if options.device.kind != "sim":
        host.prepare(unit for unit in units if unit.layer in options.layers_on_host)
    return PlacedModel(
        model, shards, shard_of, units, host, options.routing, options.dtype, options.seed, options.prompt
    )


def reserve_flags(device: Device, model: ModelShape, max_ubatches: int) -> torch.Tensor | None:
    """Pinned host memory (max_ubatches, layers, experts) uint8 for every router's choice in a pass: rows by expert.

    None where no layer has experts, or the device computes nothing.
    """
    if not model.most_experts or device.kind == "sim":
        return None
    shape = (max_ubatches, len(model.layers), model.most_experts)
    return device.host_slab(torch.Size(shape).numel(), pinned=True).view(shape)


def _make_shards(
    model: Model, devices: Sequence[Device], shard_of: Sequence[int], options: SessionOptions
) -> list[DeviceShard]:
    return [
        make_device_shard(
            model,
            device,
            [layer for layer, shard in enumerate(shard_of[:-1]) if shard == number],
            options.dtype,
            max_tokens=options.max_positions,
            max_ubatch=options.max_ubatch,
        )
        for number, device in enumerate(devices)
    ]


def _place_resident(
    model: Model, placements: Collection[Placement], shards: Sequence[DeviceShard], shard_of: Sequence[int]
) -> None:
    """Upload what any arm keeps on each device."""
    on_host_for_all = frozenset.intersection(*(placement.host for placement in placements))
    for number, shard in enumerate(shards):
        shard.store.ensure(
            tensor.name
            for tensor in model.tensors.values()
            if tensor.name not in on_host_for_all
            and number in devices_of(tensor, shard_of, tied_embeddings=model.shape.tied_embeddings)
        )


def _load(model: Model, streamed: Placement, device: Device, load_mode: LoadMode) -> list[TransferUnit]:
    try:
        return build_transfer_units(model, streamed, device, load_mode)
    except PinningRefusedError as refused:
        n_layers, n_bytes = len(model.shape.layers), sum(model.tensors[name].n_bytes for name in streamed.host)
        fitting = n_layers * refused.pinned_bytes // n_bytes
        slice_ = f", or --layers {fitting}, which would fit" if 0 < fitting < n_layers else ""
        raise HprofError(f"{refused}{slice_}") from None
