"""A session's decoded tokens as recordings, one for each power of two of cache rows that a context reaches.

All that a token asks of a device is recorded: embedding, layers, logits, sampling, with stamps of the device's clock
between the steps. Where weights are all resident it is one piece. Layers whose FFN or experts the host copies or
computes (`steps.host_part`) end one: it closes with the copy of what the host needs, and the next begins with the copy
of what the host computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from executor.devices.base import Device, RecordedWork
from executor.devices.out_of_memory import what_ran_out
from executor.engine.ends import RecordedEnds
from executor.engine.routed import RoutedFlags
from executor.engine.steps import HostPart, StepRunner
from executor.engine.via_host import receive_activations, send_activations
from executor.layers.attention_kernels import rows_for
from executor.layers.state import DeltaNetState
from executor.passes import Ubatch
from executor.placed_model import DeviceShard, PlacedModel
from executor.token_report import report_bytes
from executor.tracing.token_trace import TokenTrace

_MOST_RECORDED = 32  # a graph of some hundred kernels each
_NO_ROOM = (
    "GPU memory had no room for the recording of a whole token, so that some run step by step, which takes longer: "
    "keep fewer layers resident (-ot, -ncmoe, -ngl), or use a smaller -ub."
)

HostParts = tuple[HostPart, ...]
"""The host's hand in each layer of a token."""
StepsOf = Callable[[TokenTrace], StepRunner]
"""Makes what issues a pass's layers, with the marks that it is given."""


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """What a device does for a token without the host."""

    recording: RecordedWork
    host_layer: int | None
    """The layer at whose FFN or experts the host comes in behind it; None: the device has done its part."""


@dataclass(frozen=True, slots=True)
class DevicePart:
    """What one device has to do for a token."""

    shard: DeviceShard
    pieces: Sequence[TokenPiece]
    n_stamps: int


@dataclass(frozen=True, slots=True)
class RecordedToken:
    """One token, by the devices that it passes in turn."""

    parts: Sequence[DevicePart]
    logits: torch.Tensor  # (1, vocab) float32 on the last device, until the next token
    trace: TokenTrace


class RecordedTokens:
    """All of a session's, shared by its arms."""

    def __init__(self, placed: PlacedModel, max_ubatches: int, tell: Callable[[str], None]) -> None:
        """`tell` takes a sentence where memory has no room for a recording."""
        self._tell = tell
        self._refused: set[tuple[int, HostParts, bool]] = set()
        self._max_tokens = placed.shards[0].max_tokens
        self._shards = _path(placed)
        self._seen: set[tuple[int, HostParts]] = set()
        self._recorded: dict[tuple[int, HostParts, bool], RecordedToken] = {}
        size = report_bytes(placed.model.shape)
        slabs = [shard.device.host_slab(max_ubatches * size, pinned=True) for shard in self._shards]
        self.reports = [slab.view(max_ubatches, size) for slab in slabs]
        """Where the tokens of a pass are reported, (ubatches, bytes) of each device, in host memory."""

    def find(
        self,
        placed: PlacedModel,
        host_parts: HostParts,
        ubatch: Ubatch,
        routed: RoutedFlags,
        steps_of: StepsOf,
        *,
        marked: bool,
    ) -> RecordedToken | None:
        """A recording for the position of `ubatch`; None where the token has to run step by step.

        So it has the first time for each number of rows, in which libraries initialise and kernels are compiled.
        """
        n_rows = rows_for(ubatch.n_past, self._max_tokens)
        key = n_rows, host_parts, marked
        known = self._recorded.get(key)
        # what the first position alone and the number of rows decide is not asked again for every token
        if (known is None or not ubatch.n_past) and not is_recordable(placed, ubatch.n_past):
            return None
        is_due = key[:2] in self._seen and key not in self._refused
        if known is None and is_due and len(self._recorded) < _MOST_RECORDED:
            with routed.sent_by_others():
                known = self._recorded_if_room(placed, host_parts, ubatch, steps_of, marked=marked)
            if known is None:
                self._refused.add(key)
            else:
                self._recorded[key] = known
        self._seen.add(key[:2])
        return known

    def _recorded_if_room(
        self, placed: PlacedModel, host_parts: HostParts, ubatch: Ubatch, steps_of: StepsOf, *, marked: bool
    ) -> RecordedToken | None:
        """None where device memory ran out, twice: a device that finds none gives back what it keeps for later."""
        for _ in range(2):
            try:
                return self._record(placed, host_parts, ubatch, steps_of, marked=marked)
            except RuntimeError as error:
                if what_ran_out(error) != "device":
                    raise
        if not self._refused:
            self._tell(_NO_ROOM)
        return None

    def _record(
        self, placed: PlacedModel, host_parts: HostParts, ubatch: Ubatch, steps_of: StepsOf, *, marked: bool
    ) -> RecordedToken:
        trace = TokenTrace(enabled=marked)
        ends, steps = RecordedEnds(placed, trace), steps_of(trace)
        parts = []
        for number, shard in enumerate(self._shards):
            before = self._shards[number - 1] if number else None
            after = self._shards[number + 1] if number + 1 < len(self._shards) else None
            trace.begin_piece(shard.report.stamps)
            recorder = _PartRecorder(ubatch, before, shard, after, ends, steps, trace)
            parts.append(DevicePart(shard, recorder.pieces(host_parts), trace.n_stamps))
        return RecordedToken(parts, ends.logits, trace)


@dataclass(frozen=True, slots=True)
class _PartRecorder:
    """Records a device's part of a token, between the devices before and after it."""

    ubatch: Ubatch
    before: DeviceShard | None
    shard: DeviceShard
    after: DeviceShard | None
    ends: RecordedEnds
    steps: StepRunner
    trace: TokenTrace

    def pieces(self, host_parts: HostParts) -> list[TokenPiece]:
        """One up to each layer at which the host comes in, and one behind the last of them."""
        pieces, layers, behind = [], list[int](), None
        for layer in self.shard.layers:
            layers.append(layer)
            if host_parts[layer] != "none":
                pieces.append(self._piece(behind, layers, layer))
                layers, behind = [], layer
        pieces.append(self._piece(behind, layers, None))
        return pieces

    def _piece(self, behind: int | None, layers: Sequence[int], host_layer: int | None) -> TokenPiece:
        issue = partial(self._issue, behind, layers, host_layer)
        return TokenPiece(self.shard.device.record_work("compute", issue), host_layer)

    def _issue(self, behind: int | None, layers: Sequence[int], host_layer: int | None) -> None:
        """What follows the host's hand in the layer `behind` (None: what the device begins with), then `layers`."""
        if behind is not None:
            self.trace.go_on()
            self.steps.behind_host(self.ubatch, behind)
        elif self.before is None:
            self.ends.embed(self.ubatch, self.shard.on_device.token)
        else:
            receive_activations(self.ubatch, self.before, self.shard, self.trace, self.shard.advance)
        for layer in layers:
            self.steps.before_host(self.ubatch, layer)
        if host_layer is None and self.after is None:
            self.ends.head(self.ubatch)
        elif host_layer is None:
            send_activations(self.ubatch, self.shard, self.trace)
        self.trace.end_piece(self.shard.device)


def _path(placed: PlacedModel) -> list[DeviceShard]:
    """The shards that a token passes: the first has the embedding, the last one the output, others their layers."""
    ends = (placed.shards[0], placed.shards[-1])
    return [shard for shard in placed.shards if shard.layers or any(shard is end for end in ends)]


def records_tokens(placed: PlacedModel) -> bool:
    """Whether tokens of this placement are recorded: mixers, routers and shared experts lie on devices that can."""
    devices: list[Device] = [shard.device for shard in placed.shards]
    is_resident = all(unit.what in ("ffn", "experts") for unit in placed.units)
    return is_resident and all(device.records_work for device in devices) and is_recordable(placed, 1)


def is_recordable(placed: PlacedModel, n_past: int) -> bool:
    """Whether no layer needs the host to know the token's position."""
    return all(_is_recordable(placed.shard(layer), layer, n_past) for layer in range(len(placed.layers)))


def _is_recordable(shard: DeviceShard, layer: int, n_past: int) -> bool:
    if isinstance(shard.states[layer], DeltaNetState):
        return n_past > 0  # the first token clears the state
    return shard.one_token(layer, n_past) is not None
