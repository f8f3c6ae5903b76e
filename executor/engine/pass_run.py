"""Runs one pass of a model under a policy: ubatch after ubatch, then token after token.

The host thread only issues. It waits for the router's flags when a copy depends on them, and for the sampled
token; everything else is ordered by events on the devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.engine.ends import ModelEnds
from executor.engine.figures import PassTimes, UbatchMarks, logits_digest, sum_known, ubatch_records
from executor.engine.hop import hop
from executor.engine.items import plan_items
from executor.engine.routed import RoutedFlags
from executor.engine.steps import StepRunner
from executor.job import PassJob, Ubatch
from executor.placed.model import PlacedModel
from executor.policies.base import Policy
from executor.records import PassResult
from executor.streaming.streamer import Streamer
from executor.tracing.nvtx_ranges import pass_range, ubatch_range
from executor.tracing.pass_trace import PassTrace


class PassRun:
    """One pass. Use once: `PassRun(...).run()`.

    `streamers`: one a lane. `host_flags`: (ubatches, layers, experts) uint8 on the host, where routers' choices
    land; None where nothing is computed or nothing routed.
    """

    def __init__(
        self,
        placed: PlacedModel,
        policy: Policy,
        streamers: Sequence[Streamer],
        job: PassJob,
        host_flags: torch.Tensor | None,
        *,
        record: bool,
    ) -> None:
        self._placed, self._policy, self._streamers, self._job = placed, policy, streamers, job
        self._trace = PassTrace(enabled=record)
        self._ubatches = job.ubatches()
        self._routed = RoutedFlags(placed, self._ubatches, job.token_set, host_flags)
        self._items = plan_items(placed, policy, self._ubatches)
        by_step = {(item.ubatch.number, item.split.number): item for lane in self._items for item in lane}
        self._steps = StepRunner(placed, policy, streamers, by_step, self._routed, self._trace)
        self._first, self._last = placed.lanes[0], placed.lanes[-1]
        self._ends = ModelEnds(placed, job, self._trace)
        self._prompt = self._prompt_ids()
        self._marks: list[UbatchMarks] = []

    def run(self) -> PassResult:
        """Run the pass and give its figures, tokens and records."""
        self._prepare_states()
        for lane in self._placed.lanes:
            lane.device.begin_pass()
        host = self._first.device
        t_start = host.now_ns()
        with torch.inference_mode(), pass_range(self._job):
            for streamer, items in zip(self._streamers, self._items, strict=True):
                streamer.begin(items, self._trace)
            t_first = self._run_prompt()
            self._run_decode()
            t_end = host.now_ns()
            for lane in self._placed.lanes:
                lane.device.drain()
        result = self._result(t_start, t_first, t_end)
        for lane in self._placed.lanes:
            lane.device.recycle()
        return result

    @property
    def logits(self) -> torch.Tensor:
        """Float32 logits (n_logits, vocab): after the prompt, then after each decode step."""
        return self._ends.logits

    def _run_prompt(self) -> int | None:
        """When the first token is known on the host, in ns; None without a prompt."""
        prefill = [u for u in self._ubatches if u.phase == "prefill"]
        for ubatch in prefill:
            start = ubatch.n_past - self._job.n_depth
            ids = self._prompt[start : start + ubatch.n_tokens]
            self._run_ubatch(ubatch, ids, wants_logits=ubatch is prefill[-1])
        return self._ends.take_token() if prefill else None

    def _run_decode(self) -> None:
        for ubatch in self._ubatches:
            if ubatch.phase == "decode":
                self._run_ubatch(ubatch, self._first.on_device.token, wants_logits=True)
                self._ends.take_token()

    def _run_ubatch(self, ubatch: Ubatch, ids: torch.Tensor, *, wants_logits: bool) -> None:
        start = self._trace.mark(self._first.device, "compute")
        with ubatch_range(ubatch):
            self._ends.embed(ubatch, ids)
            self._run_layers(ubatch)
            if wants_logits:
                self._ends.head(ubatch)
        self._marks.append(UbatchMarks(ubatch, start, self._trace.mark(self._last.device, "compute")))

    def _run_layers(self, ubatch: Ubatch) -> None:
        lane = self._first
        for layer in range(len(self._placed.layers)):
            if self._placed.lane(layer) is not lane:
                hop(ubatch, lane, self._placed.lane(layer), ubatch.n_past - self._job.n_depth, self._trace)
                lane = self._placed.lane(layer)
            self._steps.layer(ubatch, layer)

    def _prepare_states(self) -> None:
        for lane in self._placed.lanes:
            for layer, state in lane.states.items():
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
        is_simulated, last = self._placed.is_simulated, self._last.device
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
            vram_peak=sum_known(lane.device.peak_bytes() for lane in self._placed.lanes),
            vram_resident=None,
            vram_slots=None,
            vram_bank=None,
            logits_digest=None if is_simulated else logits_digest(self._ends.logits),
            events=self._trace.records(),
            ubatches=ubatch_records(self._marks, self._policy, self._first.device, last),
            experts=self._routed.records() if self._trace.enabled else [],
        )
