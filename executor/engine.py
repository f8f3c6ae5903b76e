"""Runs one pass of a model under a policy: ubatch after ubatch, then token after token.

The host thread only issues. It waits for the router's flags when a copy depends on them, and for the sampled
token; everything else is ordered by events on the devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from executor.devices.base import Event, Work, whole_copy
from executor.job import PassJob, Ubatch
from executor.lane import Lane
from executor.layers import head
from executor.plant import Plant
from executor.policies.base import Item, Policy
from executor.records import PassResult, UbatchRecord
from executor.routed import RoutedFlags
from executor.steps import StepRunner
from executor.streaming.streamer import Streamer
from executor.tracing.nvtx_ranges import compute_range, pass_range, ubatch_range
from executor.tracing.pass_trace import PassTrace
from executor.weights.splits import Split
from executor.weights.step_weights import StepWeights
from executor.work import dense_work


@dataclass(slots=True)
class _Marks:
    """Events that a pass's figures are made of."""

    prompt_logits: Event | None = None
    first_token_ns: int | None = None


class PassRun:
    """One pass. Use once: `PassRun(...).run()`."""

    def __init__(
        self,
        plant: Plant,
        policy: Policy,
        streamers: list[Streamer],
        job: PassJob,
        host_flags: torch.Tensor | None,
        *,
        record: bool,
    ) -> None:
        self._plant, self._policy, self._streamers, self._job = plant, policy, streamers, job
        self._trace = PassTrace(enabled=record)
        self._ubatches = job.ubatches()
        self._routed = RoutedFlags(plant, self._ubatches, job.token_set, host_flags)
        self._items = self._plan_items()
        by_step = {(item.ubatch.number, item.split.number): item for lane in self._items for item in lane}
        self._steps = StepRunner(plant, policy, streamers, by_step, self._routed, self._trace)
        self._first, self._last = plant.lanes[0], plant.lanes[-1]
        self._logits = self._zeros((job.n_logits, plant.model.shape.n_vocab), torch.float32)
        self._prompt = self._prompt_ids()
        self._tokens: list[int] = []
        self._marks = _Marks()
        self._ubatch_marks: list[tuple[Ubatch, Event | None, Event | None]] = []

    def run(self) -> PassResult:
        """Run the pass and give its figures, tokens and records."""
        self._prepare_states()
        for lane in self._plant.lanes:
            lane.device.begin_pass()
        host = self._first.device
        t_start = host.now_ns()
        with torch.inference_mode(), pass_range(self._job):
            for streamer, items in zip(self._streamers, self._items, strict=True):
                streamer.begin(items, self._trace)
            self._run_prompt()
            t_first = self._marks.first_token_ns
            self._run_decode()
            t_end = host.now_ns()
            for lane in self._plant.lanes:
                lane.device.drain()
        return self._result(t_start, t_first, t_end)

    @property
    def logits(self) -> torch.Tensor:
        """Float32 logits (n_logits, vocab): after the prompt, then after each decode step."""
        return self._logits

    def _run_prompt(self) -> None:
        prefill = [u for u in self._ubatches if u.phase == "prefill"]
        for ubatch in prefill:
            start = ubatch.n_past - self._job.n_depth
            ids = self._prompt[start : start + ubatch.n_tokens]
            self._run_ubatch(ubatch, ids, wants_logits=ubatch is prefill[-1])
        if prefill:
            self._marks.first_token_ns = self._take_token()

    def _run_decode(self) -> None:
        for ubatch in self._ubatches:
            if ubatch.phase == "decode":
                self._run_ubatch(ubatch, self._first.on_device.token, wants_logits=True)
                self._take_token()

    def _run_ubatch(self, ubatch: Ubatch, ids: torch.Tensor, *, wants_logits: bool) -> None:
        start = self._trace.mark(self._first.device, "compute")
        with ubatch_range(ubatch):
            self._embed(ubatch, ids)
            lane = self._first
            for layer in range(len(self._plant.layers)):
                if self._plant.lane(layer) is not lane:
                    self._hop(ubatch, lane, self._plant.lane(layer))
                    lane = self._plant.lane(layer)
                self._steps.layer(ubatch, layer)
            if wants_logits:
                self._head(ubatch)
        self._ubatch_marks.append((ubatch, start, self._trace.mark(self._last.device, "compute")))

    def _embed(self, ubatch: Ubatch, ids: torch.Tensor) -> None:
        plant = self._plant
        weights = StepWeights(plant.model, self._first.store, None, None, None)
        x = self._first.on_device.rows(ubatch.n_tokens).x

        def compute() -> None:
            self._first.set_begin(ubatch.n_past - self._job.n_depth)
            x.copy_(head.embed(ids, weights, plant.model.shape))

        self._launch(self._first, ubatch, "embed", compute, Work())

    def _head(self, ubatch: Ubatch) -> None:
        """Logits of the ubatch's last token, and the likeliest next token."""
        plant, lane = self._plant, self._last
        weights = StepWeights(plant.model, lane.store, None, None, None)
        x, token = lane.on_device.rows(ubatch.n_tokens).x, lane.on_device.token
        row = self._logits[len(self._tokens)]

        def compute() -> None:
            row.copy_(head.logits(x[-1:], weights, plant.model.shape)[0])

        def sample() -> None:
            token.copy_(row.argmax().view(1))

        name = "token_embd.weight" if plant.model.shape.tied_embeddings else "output.weight"
        self._launch(lane, ubatch, "logits", compute, dense_work([plant.model.tensors[name]], 1))
        if ubatch.phase == "prefill":
            self._marks.prompt_logits = lane.device.event()
            lane.device.record("compute", self._marks.prompt_logits)
        self._launch(lane, ubatch, "sample", sample, Work())

    def _take_token(self) -> int:
        """Bring the sampled token to the host (and to the first device); the host's time then."""
        lane = self._last
        lane.device.copy_out("compute", lane.on_device.token, lane.on_host.token)
        known = lane.device.event()
        lane.device.record("compute", known)
        lane.device.synchronize(known)
        at_ns = lane.device.now_ns()
        self._tokens.append(-1 if self._plant.is_simulated else int(lane.on_host.token[0]))
        if lane is not self._first:
            first = self._first
            first.on_host.token.copy_(lane.on_host.token)
            first.device.copy_in("compute", [whole_copy(first.on_host.token, first.on_device.token)])
        return at_ns

    def _hop(self, ubatch: Ubatch, source: Lane, target: Lane) -> None:
        """Carry the activations from one device to the next, through host memory."""
        on_source, on_host = (a.rows(ubatch.n_tokens).x for a in (source.on_device, source.on_host))
        start = self._trace.mark(source.device, "compute")
        source.device.copy_out("compute", on_source, on_host)
        sent = source.device.event()
        source.device.record("compute", sent)
        n_bytes = on_source.numel() * on_source.element_size()
        name = "copy activations"
        self._trace.add(source.device, "compute", "d2h", name, ubatch, start, sent, bytes=n_bytes)
        target.device.wait("compute", sent)
        start = self._trace.mark(target.device, "compute")
        target.device.copy_in("compute", [whole_copy(on_host, target.on_device.rows(ubatch.n_tokens).x)])
        end = self._trace.mark(target.device, "compute")
        target.device.launch("compute", lambda: target.set_begin(ubatch.n_past - self._job.n_depth), Work())
        received = target.device.event()
        target.device.record("compute", received)
        source.device.wait("compute", received)  # its next ubatch overwrites the rows in host memory
        self._trace.count_h2d(n_bytes)
        self._trace.add(target.device, "compute", "h2d", name, ubatch, start, end, bytes=n_bytes)

    def _launch(self, lane: Lane, ubatch: Ubatch, name: str, compute: Callable[[], None], work: Work) -> None:
        start = self._trace.mark(lane.device, "compute")
        with compute_range(None, name):
            lane.device.launch("compute", compute, work)
        end = self._trace.mark(lane.device, "compute")
        self._trace.add(lane.device, "compute", "compute", name, ubatch, start, end)

    def _plan_items(self) -> list[list[Item]]:
        """The streamed items of each lane, in order."""
        lanes: list[list[Item]] = [[] for _ in self._plant.lanes]
        for ubatch in self._ubatches:
            for split in self._plant.splits:
                if self._is_on_device(ubatch, split):
                    lane = lanes[self._plant.lane_of[split.layer]]
                    lane.append(Item(len(lane), ubatch, split))
        return lanes

    def _is_on_device(self, ubatch: Ubatch, split: Split) -> bool:
        """Mixers and shared experts work beside what is on the device: their weights stream whatever the regime."""
        return split.what not in ("ffn", "experts") or self._policy.regime(ubatch.n_tokens, split) == "stream"

    def _prepare_states(self) -> None:
        for lane in self._plant.lanes:
            for layer, state in lane.states.items():
                state.reset()
                if self._job.n_depth and not self._plant.is_simulated:
                    state.fill_noise(self._job.n_depth, self._plant.seed + layer)

    def _prompt_ids(self) -> torch.Tensor:
        ids = self._plant.prompt_ids(self._job.token_set, max(1, self._job.n_prompt))
        if self._plant.is_simulated:
            return ids
        self._first.on_device.token.copy_(ids[:1])
        return ids.to(self._first.device.torch_device)

    def _zeros(self, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._last.device.torch_device)

    def _result(self, t_start: int, t_first: int | None, t_end: int) -> PassResult:
        logits_ns = None
        if self._marks.prompt_logits is not None:
            logits_ns = self._last.device.time_ns(self._marks.prompt_logits)
        result = PassResult(
            t_start=t_start,
            t_end=t_end,
            ttft_ns=None if t_first is None else t_first - t_start,
            prefill_ns=None if logits_ns is None else logits_ns - t_start,
            decode_ns=(t_end - (t_first or t_start)) if self._job.n_decode else None,
            sampling_ns=None if logits_ns is None or t_first is None else t_first - logits_ns,
            tokens=[] if self._plant.is_simulated else list(self._tokens),
            bytes_h2d=self._trace.bytes_h2d,
            vram_peak=_sum(lane.device.peak_bytes() for lane in self._plant.lanes),
            vram_resident=None,
            vram_slots=None,
            vram_bank=None,
            logits_digest=None if self._plant.is_simulated else _digest(self._logits),
            events=self._trace.records(),
            ubatches=self._ubatch_records(),
            experts=self._routed.records() if self._trace.enabled else [],
        )
        for lane in self._plant.lanes:
            lane.device.recycle()
        return result

    def _ubatch_records(self) -> list[UbatchRecord]:
        return [
            UbatchRecord(
                phase=ubatch.phase,
                ubatch=ubatch.number,
                n_tokens=ubatch.n_tokens,
                n_past=ubatch.n_past,
                policy=self._policy.describe(ubatch),
                t_start=self._first.device.time_ns(start),
                t_end=self._last.device.time_ns(end),
            )
            for ubatch, start, end in self._ubatch_marks
            if start is not None and end is not None
        ]


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _digest(logits: torch.Tensor) -> str:
    """sha256 of the float32 logits, row after row."""
    return hashlib.sha256(logits.cpu().contiguous().numpy().tobytes()).hexdigest()
