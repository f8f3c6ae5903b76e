"""A session's decoded tokens as recordings, one for each power of two of cache rows that a context reaches.

A token whose weights are all resident waits for nothing on the host, so all that it asks of a device is recorded in
one piece: embedding, layers, logits, sampling, with stamps of the device's clock between the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from executor.devices.base import Device, RecordedWork
from executor.engine.ends import RecordedEnds
from executor.engine.routed import RoutedFlags
from executor.engine.steps import StepRunner
from executor.engine.via_host import receive_activations, send_activations
from executor.layers.attention_kernels import rows_for
from executor.layers.state import DeltaNetState
from executor.passes import Ubatch
from executor.placed_model import DeviceShard, PlacedModel
from executor.token_report import report_bytes
from executor.tracing.token_trace import TokenTrace

_MOST_RECORDED = 32  # a graph of some hundred kernels each

StepsOf = Callable[[TokenTrace], StepRunner]
"""Makes what issues a pass's layers, with the marks that it is given."""


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """What one device has to do for a token."""

    shard: DeviceShard
    recording: RecordedWork
    n_stamps: int


@dataclass(frozen=True, slots=True)
class RecordedToken:
    """One token, a piece for each device that it passes in turn."""

    pieces: Sequence[TokenPiece]
    logits: torch.Tensor  # (1, vocab) float32 on the last device, until the next token
    trace: TokenTrace


class RecordedTokens:
    """All of a session's, shared by its arms."""

    def __init__(self, placed: PlacedModel, max_ubatches: int) -> None:
        self._max_tokens = placed.shards[0].max_tokens
        self._shards = _path(placed)
        self._seen: set[int] = set()
        self._recorded: dict[tuple[int, bool], RecordedToken] = {}
        size = report_bytes(placed.model.shape)
        slabs = [shard.device.host_slab(max_ubatches * size, pinned=True) for shard in self._shards]
        self.reports = [slab.view(max_ubatches, size) for slab in slabs]
        """Where the tokens of a pass are reported, (ubatches, bytes) of each device, in host memory."""

    def find(
        self, placed: PlacedModel, ubatch: Ubatch, routed: RoutedFlags, steps_of: StepsOf, *, marked: bool
    ) -> RecordedToken | None:
        """A recording for the position of `ubatch`; None where the token has to run step by step.

        So it has the first time for each number of rows, in which libraries initialise and kernels are compiled.
        """
        n_rows = rows_for(ubatch.n_past, self._max_tokens)
        key = n_rows, marked
        known = self._recorded.get(key)
        # what the first position alone and the number of rows decide is not asked again for every token
        if (known is None or not ubatch.n_past) and not is_recordable(placed, ubatch.n_past):
            return None
        if known is None and n_rows in self._seen and len(self._recorded) < _MOST_RECORDED:
            with routed.left_on_device():
                known = self._recorded[key] = self._record(placed, ubatch, steps_of, marked=marked)
        self._seen.add(n_rows)
        return known

    def _record(self, placed: PlacedModel, ubatch: Ubatch, steps_of: StepsOf, *, marked: bool) -> RecordedToken:
        trace = TokenTrace(enabled=marked)
        ends, steps = RecordedEnds(placed, trace), steps_of(trace)
        pieces = []
        for number, shard in enumerate(self._shards):
            before = self._shards[number - 1] if number else None
            after = self._shards[number + 1] if number + 1 < len(self._shards) else None
            trace.begin_piece(shard.report.stamps)
            issue = partial(_issue_piece, ubatch, before, shard, after, ends, steps, trace)
            pieces.append(TokenPiece(shard, shard.device.record_work("compute", issue), trace.n_stamps))
        return RecordedToken(pieces, ends.logits, trace)


def _issue_piece(
    ubatch: Ubatch,
    before: DeviceShard | None,
    shard: DeviceShard,
    after: DeviceShard | None,
    ends: RecordedEnds,
    steps: StepRunner,
    trace: TokenTrace,
) -> None:
    """A device's part of a token, between the devices before and after it."""
    if before is None:
        ends.embed(ubatch, shard.on_device.token)
    else:
        receive_activations(ubatch, before, shard, trace, shard.advance)
    for layer in shard.layers:
        steps.layer(ubatch, layer)
    if after is None:
        ends.head(ubatch)
    else:
        send_activations(ubatch, shard, trace)
    trace.end_piece(shard.device)


def _path(placed: PlacedModel) -> list[DeviceShard]:
    """The shards that a token passes: the first has the embedding, the last one the output, others their layers."""
    ends = (placed.shards[0], placed.shards[-1])
    return [shard for shard in placed.shards if shard.layers or any(shard is end for end in ends)]


def records_tokens(placed: PlacedModel) -> bool:
    """Whether tokens of this placement are recorded whole: nothing is streamed, and devices can record all of it."""
    devices: list[Device] = [shard.device for shard in placed.shards]
    return not placed.units and all(device.records_work for device in devices) and is_recordable(placed, 1)


def is_recordable(placed: PlacedModel, n_past: int) -> bool:
    """Whether no layer needs the host to know the token's position."""
    return all(_is_recordable(placed.shard(layer), layer, n_past) for layer in range(len(placed.layers)))


def _is_recordable(shard: DeviceShard, layer: int, n_past: int) -> bool:
    if isinstance(shard.states[layer], DeltaNetState):
        return n_past > 0  # the first token clears the state
    return shard.one_token(layer, n_past) is not None
