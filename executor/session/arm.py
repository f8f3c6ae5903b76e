"""One arm of a session: its policy, its splits of the placed model, and what it reserves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executor.placed.model import PlacedModel
from executor.placement.devices import devices_of
from executor.placement.place import Placement
from executor.policies.base import Policy
from executor.streaming.streamer import Streamer
from executor.weights.splits import Split, StepKind


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm, ready to run passes."""

    policy: Policy
    placement: Placement
    placed: PlacedModel
    """The session's, with the splits that this arm streams."""
    streamers: Sequence[Streamer]
    """One a lane."""

    @property
    def host_bytes(self) -> int:
        """Bytes of weights that the arm keeps in host memory."""
        return sum(split.n_bytes for split in self.placed.splits)

    def vram(self) -> dict[str, int]:
        """Device memory in bytes: `vram_resident` weights, `vram_slots`, and the cache's `vram_bank`."""
        return {part: sum(n_bytes) for part, n_bytes in self.vram_by_device().items()}

    def vram_by_device(self) -> dict[str, list[int]]:
        """The same, on each device in their order."""
        slot_bytes = [sum(sizes.values()) for sizes in largest_splits(self.placed, self.placed.splits)]
        return {
            "vram_resident": self._resident_bytes(),
            "vram_slots": [self.policy.n_slots * n_bytes for n_bytes in slot_bytes],
            "vram_bank": [streamer.bank_bytes for streamer in self.streamers],
        }

    def _resident_bytes(self) -> list[int]:
        """On each device; what two devices read lies on both."""
        placed, is_tied = self.placed, self.placed.model.shape.tied_embeddings
        n_bytes = [0] * len(placed.lanes)
        for tensor in placed.model.tensors.values():
            if tensor.name not in self.placement.host:
                for device in devices_of(tensor, placed.lane_of, tied_embeddings=is_tied):
                    n_bytes[device] += tensor.n_bytes
        return n_bytes


def largest_splits(placed: PlacedModel, splits: Sequence[Split]) -> list[dict[StepKind, int]]:
    """The bytes of the largest split of each kind of step, for each lane: what a slot must hold."""
    sizes: list[dict[StepKind, int]] = [{} for _ in placed.lanes]
    for split in splits:
        of_lane = sizes[placed.lane_of[split.layer]]
        of_lane[split.what] = max(of_lane.get(split.what, 0), split.n_bytes)
    return sizes
