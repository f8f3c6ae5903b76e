"""A run's lasting part: places a model's weights once, keeps one policy an arm, and runs passes of any arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from executor.devices.base import Device
from executor.devices.factory import make_devices
from executor.devices.out_of_memory import Memory, told_plainly
from executor.engine.pass_run import PassRun
from executor.job import PassJob
from executor.model import Model
from executor.placed.lane import Lane
from executor.placement.place import EVERYTHING_RESIDENT, Placement
from executor.policies import FULL, make_policy
from executor.records import PassResult
from executor.session.describe import describe_arm
from executor.session.limits import check_size, memory_advice
from executor.session.load_mode import effective_load_mode
from executor.session.make_arms import make_arms
from executor.session.opening import place_model, reserve_flags
from executor.session.options import SessionOptions
from executor.weights.splits import Split


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
        self.devices: list[Device] = []
        try:
            with told_plainly("memory was reserved and weights were loaded", self._memory_advice):
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        model, options = self.model, self.options
        self.devices = make_devices(options.device)
        self._placed = place_model(model, self.placements.values(), self.devices, options, self.load_mode)
        self._host_flags = reserve_flags(self.devices[0], model.shape.layers, options.max_ubatches)
        self._arms = make_arms(self._placed, self.policies, self.placements)

    def run_pass(self, job: PassJob, *, record: bool = True) -> PassResult:
        """Run one pass of `job.arm`; with `record` False only its totals are kept.

        Raises ValueError for a pass larger than the session was opened for, HprofError where memory runs out.
        """
        check_size(job, self.options)
        arm = self._arms[job.arm]
        arm.policy.begin_pass(warmup_number=job.repetition if job.warmup else None)
        with told_plainly(f"a pass of arm '{job.arm}' ran", self._memory_advice):
            # warm-ups are recorded whatever is asked: arms that learn, learn from their intervals
            marks = record or job.warmup
            run = PassRun(arm.placed, arm.policy, arm.streamers, job, self._host_flags, record=marks)
            result = run.run()
        self.last_logits = run.logits
        arm.policy.learn(result)
        if not record:
            result = replace(result, events=[], ubatches=[], experts=[])
        vram = arm.vram()
        return replace(
            result,
            vram_peak=sum(vram.values()) + self._working_bytes(result.vram_peak),
            vram_resident=vram["vram_resident"],
            vram_slots=vram["vram_slots"],
            vram_bank=vram["vram_bank"],
        )

    def vram(self, arm: str) -> dict[str, int]:
        """What an arm reserves, in bytes: weights that stay, slots, and the cache's bank."""
        return self._arms[arm].vram()

    def describe_arms(self) -> list[dict[str, Any]]:
        """Requested and effective policy of each arm, for the manifest."""
        return [describe_arm(name, arm, self.options, self.load_mode) for name, arm in self._arms.items()]

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
        """Stop the devices' threads and free their memory."""
        for device in self.devices:
            device.close()

    def _working_bytes(self, measured_peak: int | None) -> int:
        """What a pass holds besides what its arm reserves: states and activations.

        The session reserves for all its arms at once, so the measured peak counts what other arms need too.
        """
        if measured_peak is None:
            return sum(lane.fixed_bytes for lane in self._placed.lanes)
        return max(0, measured_peak - sum(device.reserved_bytes for device in self.devices))

    def _memory_advice(self, memory: Memory) -> str:
        return memory_advice(memory, self.options, len(self.model.shape.layers))


def _placements(placement: Placement | Mapping[str, Placement], arms: Sequence[str]) -> dict[str, Placement]:
    """Each arm's placement; `full` keeps everything resident whatever is asked of the others."""
    given = dict.fromkeys(arms, placement) if isinstance(placement, Placement) else dict(placement)
    return {arm: EVERYTHING_RESIDENT if arm == FULL else given[arm] for arm in arms}
