"""Runs one pass of a model under a policy: ubatch after ubatch, then token after token.

The host thread only issues. It waits for the router's flags when a copy depends on them, and for the sampled
token; everything else is ordered by events on the devices. Embedding, logits and sampling are issued here, a
layer's steps in `engine.steps`; the pass's figures are read from its marks when it is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from executor.devices.base import Device, Event
from executor.engine.ends import EmbeddingAndHead
from executor.engine.recorded_tokens import RecordedTokens, records_tokens
from executor.engine.routed import RoutedFlags
from executor.engine.steps import StepRunner
from executor.engine.token_replay import ReplayedDecode
from executor.engine.via_host import transfer_activations
from executor.output_rows import behind_mixer
from executor.passes import PassJob, PassResult, Ubatch, UbatchRecord
from executor.placed_model import DeviceShard, PlacedModel
from executor.policies.base import Item, Policy
from executor.streaming.streamer import Streamer
from executor.tracing.pass_trace import PassTrace, pass_range, ubatch_range
from executor.weights.transfer_units import TransferUnit


class PassRun:
    """One pass. Use once: `PassRun(...).run()`.

    `streamers`: one a device. `host_flags`: (ubatches, layers, experts) uint8 on the host, where routers' choices
    land; None where nothing is computed or nothing routed. `recorded`: the session's recorded tokens, None where
    devices record none.
    """

    def __init__(
        self,
        placed: PlacedModel,
        policy: Policy,
        streamers: Sequence[Streamer],
        job: PassJob,
        host_flags: torch.Tensor | None,
        recorded: RecordedTokens | None = None,
        *,
        record: bool,
    ) -> None:
        self._placed, self._policy, self._streamers, self._job = placed, policy, streamers, job
        self._trace = PassTrace(enabled=record)
        self._ubatches = job.ubatches()
        self._routed = RoutedFlags(placed, self._ubatches, job.token_set, host_flags)
        self._items = plan_items(placed, policy, self._ubatches)
        self._recorded = recorded if recorded is not None and records_tokens(placed) else None
        self._steps = self._steps_of(self._trace)
        self._first, self._last = placed.shards[0], placed.shards[-1]
        self._ends = EmbeddingAndHead(placed, job, self._trace)
        self._prompt = self._prompt_ids()
        self._marks: list[UbatchMarks] = []
        self._replayed: ReplayedDecode | None = None

    def run(self) -> PassResult:
        """Run the pass and give its figures, tokens and records."""
        self._prepare_states()
        for shard in self._placed.shards:
            shard.device.begin_pass()
        host = self._first.device
        t_start = host.now_ns()
        with torch.inference_mode(), pass_range(self._job):
            for streamer, items in zip(self._streamers, self._items, strict=True):
                streamer.begin(items, self._trace)
            t_first = self._run_prompt()
            self._run_decode()
            t_end = host.now_ns()
            for shard in self._placed.shards:
                shard.device.drain()
        result = self._result(t_start, t_first, t_end)
        for shard in self._placed.shards:
            shard.device.recycle()
        return result

    @property
    def logits(self) -> torch.Tensor:
        """Float32 logits (n_logits, vocab) of `PassJob.n_logits` tokens: the prompt's, then one a decode step."""
        return self._ends.logits

    def _run_prompt(self) -> int | None:
        """When the first token is known on the host, in ns; None without a prompt."""
        prefill = [u for u in self._ubatches if u.phase == "prefill"]
        for ubatch in prefill:
            start = ubatch.n_past - self._job.n_depth
            ids = self._prompt[start : start + ubatch.n_tokens]
            self._run_ubatch(ubatch, ids)
        return self._ends.take_token() if prefill else None

    def _run_decode(self) -> None:
        decode = [ubatch for ubatch in self._ubatches if ubatch.phase == "decode"]
        if self._recorded is None:
            for ubatch in decode:
                self._run_token(ubatch)
            return
        first = self._job.n_depth
        parts = (self._placed, self._policy, self._recorded, self._ends, self._steps, self._routed, self._trace, first)
        self._replayed = ReplayedDecode(*parts)
        self._replayed.run(decode, self._steps_of, self._run_token)

    def _run_token(self, ubatch: Ubatch) -> None:
        self._run_ubatch(ubatch, self._first.on_device.token)
        self._ends.take_token()

    def _steps_of(self, trace: PassTrace) -> StepRunner:
        """What issues the layers, with its marks in `trace`."""
        by_step = {(item.ubatch.number, item.unit.number): item for shard in self._items for item in shard}
        recorded = self._recorded is not None
        return StepRunner(
            self._placed, self._policy, self._streamers, by_step, self._routed, trace, records_tokens=recorded
        )

    def _run_ubatch(self, ubatch: Ubatch, ids: torch.Tensor) -> None:
        start = self._trace.mark(self._first.device, "compute")
        with ubatch_range(ubatch):
            self._ends.embed(ubatch, ids)
            left, shard = self._run_layers(ubatch)
            if left is not None:
                self._ends.head(left)
        self._marks.append(UbatchMarks(ubatch, start, self._trace.mark(shard.device, "compute"), shard.device))

    def _run_layers(self, ubatch: Ubatch) -> tuple[Ubatch | None, DeviceShard]:
        """The rows that leave the last layer, None where none do, and where the ubatch ends: they on the last shard."""
        shard, left = self._first, None
        for layer in range(len(self._placed.layers)):
            shard = self._move(ubatch, shard, self._placed.shard(layer))
            left = self._steps.layer(ubatch, layer)
        if left is not None:
            shard = self._move(left, shard, self._last)  # which may hold the output alone
        return left, shard

    def _move(self, ubatch: Ubatch, here: DeviceShard, there: DeviceShard) -> DeviceShard:
        """Bring the ubatch's rows to the shard `there`; gives it."""
        if there is not here:
            transfer_activations(ubatch, here, there, ubatch.n_past - self._job.n_depth, self._trace)
        return there

    def _prepare_states(self) -> None:
        for shard in self._placed.shards:
            for layer, state in shard.states.items():
                state.reset()
                if self._job.n_depth and not self._placed.is_simulated:
                    state.fill_noise(self._job.n_depth, self._placed.seed + layer)

    def _prompt_ids(self) -> torch.Tensor:
        """(n_prompt,) int64 on the first device."""
        ids = self._placed.prompt_ids(self._job.token_set, max(1, self._job.n_prompt))
        if self._placed.is_simulated:
            return ids
        self._first.on_device.token.copy_(ids[:1])
        return ids.to(self._first.device.torch_device)

    def _result(self, t_start: int, t_first: int | None, t_end: int) -> PassResult:
        is_simulated, first, last = self._placed.is_simulated, self._first.device, self._last.device
        replayed = [] if self._replayed is None else self._replayed.finish()
        ubatches = [*ubatch_records(self._marks, self._policy, self._placed.units, first), *replayed]
        at_logits = self._ends.prompt_logits
        times = PassTimes(t_start, None if at_logits is None else last.time_ns(at_logits), t_first, t_end)
        return PassResult(
            t_start=t_start,
            t_end=t_end,
            ttft_ns=times.ttft_ns,
            prefill_ns=times.prefill_ns,
            decode_ns=times.decode_ns if self._job.n_decode else None,
            sampling_ns=times.sampling_ns,
            tokens=[] if is_simulated else list(self._ends.tokens),
            bytes_h2d=self._trace.bytes_h2d,
            vram_peak=sum_known(shard.device.peak_bytes() for shard in self._placed.shards),
            vram_resident=None,
            vram_slots=None,
            vram_bank=None,
            logits_digest=None if is_simulated else logits_digest(self._ends.logits),
            events=self._trace.records(),
            ubatches=sorted(ubatches, key=lambda record: record.ubatch),
            experts=self._routed.records() if self._trace.enabled else [],
        )


def plan_items(placed: PlacedModel, policy: Policy, ubatches: Sequence[Ubatch]) -> list[list[Item]]:
    """The streamed items of each shard, numbered from 0 in the order in which its steps reach them."""
    shards: list[list[Item]] = [[] for _ in placed.shards]
    for ubatch in ubatches:
        for unit in placed.units:
            rows = ubatch if unit.what == "mix" else behind_mixer(placed.model.shape, unit.layer, ubatch)
            if rows is not None and policy.streams(rows.n_tokens, unit):
                shard = shards[placed.shard_of[unit.layer]]
                shard.append(Item(len(shard), rows, unit))
    return shards


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Moments of a pass in ns; None: there was none."""

    start: int
    prompt_logits: int | None
    first_token: int | None  # known on the host
    end: int

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token: from the pass's start, before its first copy, to its being known on the host."""
        return None if self.first_token is None else self.first_token - self.start

    @property
    def prefill_ns(self) -> int | None:
        """Up to the prompt's logits: the time to the first token without sampling."""
        return None if self.prompt_logits is None else self.prompt_logits - self.start

    @property
    def sampling_ns(self) -> int | None:
        """From the prompt's logits to the first token being known on the host."""
        if self.prompt_logits is None or self.first_token is None:
            return None
        return self.first_token - self.prompt_logits

    @property
    def decode_ns(self) -> int:
        """What comes after the first token; after the start, where there was no prompt."""
        return self.end - (self.first_token or self.start)


@dataclass(frozen=True, slots=True)
class UbatchMarks:
    """A ubatch's first and last moment: marks on the first device and where it ends; None when recording is off."""

    ubatch: Ubatch
    start: Event | None
    end: Event | None
    ends_on: Device


def ubatch_records(
    marks: Iterable[UbatchMarks], policy: Policy, units: Sequence[TransferUnit], first: Device
) -> list[UbatchRecord]:
    """One record for each ubatch that was marked; all begin on the `first` device. `units`: what the arm streams."""
    return [
        UbatchRecord(
            phase=one.ubatch.phase,
            ubatch=one.ubatch.number,
            n_tokens=one.ubatch.n_tokens,
            n_past=one.ubatch.n_past,
            policy=policy.in_effect(one.ubatch, units),
            t_start=first.time_ns(one.start),
            t_end=one.ends_on.time_ns(one.end),
        )
        for one in marks
        if one.start is not None and one.end is not None
    ]


def sum_known(values: Iterable[int | None]) -> int | None:
    """The sum of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def logits_digest(logits: torch.Tensor) -> str:
    """sha256 of the float32 logits (n_logits, vocab), row after row."""
    return hashlib.sha256(logits.cpu().contiguous().numpy().tobytes()).hexdigest()
