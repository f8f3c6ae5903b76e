"""The decode phase of a pass whose tokens are recorded: each is issued in a few calls and known by one event.

The host stays one token ahead: while it waits for a token the next one is queued already, which finds that token on
the device. Where the host has a hand in layers, it is ahead by what comes before the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch

from executor.devices.base import CopyRange, Event, Work
from executor.engine.ends import EmbeddingAndHead
from executor.engine.following import Following
from executor.engine.recorded_tokens import RecordedToken, RecordedTokens, StepsOf
from executor.engine.routed import RoutedFlags
from executor.engine.steps import StepRunner, host_part
from executor.passes import Ubatch, UbatchRecord
from executor.placed_model import DeviceShard, PlacedModel
from executor.policies.base import Policy
from executor.token_report import TokenReport, reported_token, token_report
from executor.tracing.pass_trace import PassTrace, copy_range, ubatch_range


@dataclass(frozen=True, slots=True)
class _Issued:
    ubatch: Ubatch
    token: RecordedToken
    known: Event


class ReplayedDecode:
    """Use once: `run`, and `finish` when the pass is over."""

    def __init__(
        self,
        placed: PlacedModel,
        policy: Policy,
        recorded: RecordedTokens,
        ends: EmbeddingAndHead,
        steps: StepRunner,
        routed: RoutedFlags,
        trace: PassTrace,
        first_position: int,
    ) -> None:
        self._placed, self._policy, self._recorded = placed, policy, recorded
        self._ends, self._steps, self._routed = ends, steps, routed
        self._trace, self._first_position = trace, first_position
        self._shards = placed.shards
        self._next: int | None = None  # the position behind which devices stand, if they stand behind one
        self._waiting: list[_Issued] = []
        self._done: list[_Issued] = []

    def run(self, ubatches: Sequence[Ubatch], steps_of: StepsOf, run_plainly: Callable[[Ubatch], None]) -> None:
        """Decode; `run_plainly` runs a token step by step and takes it."""
        layers = range(len(self._placed.layers))
        host_parts = tuple(host_part(self._placed, self._policy, layer, 1) for layer in layers)
        for ubatch in ubatches:
            token = self._recorded.find(
                self._placed, host_parts, ubatch, self._routed, steps_of, marked=self._trace.enabled
            )
            if token is None:
                self._hand_token_on()
                self._learn(0)
                run_plainly(ubatch)
                self._next = None
            else:
                self._issue(token, ubatch)
                self._learn(1)
        self._learn(0)

    def finish(self) -> list[UbatchRecord]:
        """Bring what was stamped and routed to the pass's records; gives those of the tokens."""
        return [record for issued in self._done for record in self._finish(issued)]

    def _issue(self, token: RecordedToken, ubatch: Ubatch) -> None:
        row = self._ends.next_rows(1)
        was_replayed = bool(self._waiting) and self._waiting[-1].token is token
        with ubatch_range(ubatch):
            if self._next != ubatch.n_past:
                self._stand_before(ubatch)
            self._hand_token_on()
            reached: Event | None = None
            for number, part in enumerate(token.parts):
                device = part.shard.device
                if reached is not None:
                    device.wait("compute", reached)
                device.replay("compute", part.pieces[0].recording)
                for piece, after in pairwise(part.pieces):
                    assert piece.host_layer is not None
                    replay = partial(device.replay, "compute", after.recording)
                    self._at_host(ubatch, part.shard, piece.host_layer, Following(replay, may_be_held=was_replayed))
                report, target = part.shard.report.raw, self._recorded.reports[number][ubatch.number]
                with copy_range(None, None, "token", report.numel()):
                    device.copy_out("compute", report, target)
                reached = device.event()
                device.record("compute", reached)
            assert reached is not None
            device.launch("compute", partial(_keep, token.logits, row), Work())
        self._next = ubatch.n_past + 1
        self._waiting.append(_Issued(ubatch, token, reached))

    def _at_host(self, ubatch: Ubatch, shard: DeviceShard, layer: int, following: Following) -> None:
        """What the host does for a layer, between two pieces."""
        device, moe = shard.device, self._placed.moe(layer)
        reached = device.event()
        device.record("compute", reached)
        if moe is not None:
            self._routed.note_sent(ubatch, layer, shard.on_host.rows(1).routed(moe.n_used).ids, reached)
        self._steps.at_host(ubatch, layer, reached, following)

    def _stand_before(self, ubatch: Ubatch) -> None:
        """Let the next replay begin at the ubatch, one behind where devices stand."""
        row = ubatch.n_past - self._first_position
        for shard in self._shards:
            shard.device.launch("compute", partial(shard.set_begin, row - 1, ubatch.n_past - 1), Work())

    def _hand_token_on(self) -> None:
        """From the last device to the first, where they are two, by way of the token's report."""
        if not self._waiting or len(self._shards) == 1:
            return
        first, before = self._shards[0], self._waiting[-1]
        first.device.wait("compute", before.known)
        n_bytes = first.on_device.token.nbytes
        report = self._recorded.reports[-1][before.ubatch.number]
        target = first.on_device.token.view(torch.uint8)
        with copy_range(None, None, "token", n_bytes):
            first.device.copy_in("compute", [CopyRange(report, 0, target, 0, n_bytes)])

    def _learn(self, n_ahead: int) -> None:
        """Wait for tokens until `n_ahead` are left to know."""
        while len(self._waiting) > n_ahead:
            issued = self._waiting.pop(0)
            self._shards[-1].device.synchronize(issued.known)
            self._ends.tokens.append(reported_token(self._recorded.reports[-1][issued.ubatch.number]))
            self._done.append(issued)

    def _report(self, issued: _Issued, number: int) -> TokenReport:
        return token_report(self._placed.model.shape, self._recorded.reports[number][issued.ubatch.number])

    def _finish(self, issued: _Issued) -> Iterator[UbatchRecord]:
        token, ubatch = issued.token, issued.ubatch
        stamps_ns = []
        for number, part in enumerate(token.parts):
            report = self._report(issued, number)
            stamps = report.stamps[: part.n_stamps].tolist()
            stamps_ns.append([part.shard.device.stamped_ns(stamp) for stamp in stamps])
            for layer in part.shard.layers:
                if self._placed.moe(layer) is not None:
                    self._routed.note_flags(ubatch, layer, report.flags[layer], issued.known)
        self._trace.count_h2d(token.trace.bytes_h2d)
        if not self._trace.enabled:
            return
        self._trace.add_known(token.trace.event_records(ubatch, stamps_ns))
        yield UbatchRecord(
            phase=ubatch.phase,
            ubatch=ubatch.number,
            n_tokens=ubatch.n_tokens,
            n_past=ubatch.n_past,
            policy=self._policy.in_effect(ubatch, self._placed.units),
            t_start=stamps_ns[0][0],
            t_end=stamps_ns[-1][-1],
        )


def _keep(logits: torch.Tensor, row: torch.Tensor) -> None:
    row.copy_(logits)
