"""A model's two ends, issued to streams: embeddings in; logits and the next token out."""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor.devices.base import Event, Work, whole_copy
from executor.engine.work import dense_work
from executor.job import PassJob, Ubatch
from executor.layers import head
from executor.placed.lane import Lane
from executor.placed.model import PlacedModel
from executor.tracing.nvtx_ranges import compute_range
from executor.tracing.pass_trace import PassTrace
from executor.weights.step_weights import StepWeights


class ModelEnds:
    """The ends of one pass: what goes in lies on the first lane, what comes out on the last."""

    def __init__(self, placed: PlacedModel, job: PassJob, trace: PassTrace) -> None:
        self._placed, self._job, self._trace = placed, job, trace
        self._first, self._last = placed.lanes[0], placed.lanes[-1]
        shape = (job.n_logits, placed.model.shape.n_vocab)
        self.logits = torch.zeros(shape, dtype=torch.float32, device=self._last.device.torch_device)
        """(n_logits, vocab) float32 on the last device: after the prompt, then after each decode step."""
        self.prompt_logits: Event | None = None
        """When the prompt's logits are known on the last device; None without a prompt."""
        self.tokens: list[int] = []
        """The sampled ids so far; on `sim`, which computes none, -1 each."""

    def embed(self, ubatch: Ubatch, ids: torch.Tensor) -> None:
        """Token ids (n_tokens,), on the first device, to the rows of its residual stream."""
        placed = self._placed
        weights = StepWeights(placed.model, self._first.store, None, None, None)
        x = self._first.on_device.rows(ubatch.n_tokens).x

        def compute() -> None:
            self._first.set_begin(ubatch.n_past - self._job.n_depth, ubatch.n_past)
            x.copy_(head.embed(ids, weights, placed.model.shape))

        self._launch(self._first, ubatch, "embed", compute, Work())

    def head(self, ubatch: Ubatch) -> None:
        """Logits of the ubatch's last token, and the likeliest next token."""
        placed, lane = self._placed, self._last
        weights = StepWeights(placed.model, lane.store, None, None, None)
        x, token = lane.on_device.rows(ubatch.n_tokens).x, lane.on_device.token
        row = self.logits[len(self.tokens)]

        def compute() -> None:
            row.copy_(head.logits(x[-1:], weights, placed.model.shape)[0])

        def sample() -> None:
            token.copy_(row.argmax().view(1))

        name = "token_embd.weight" if placed.model.shape.tied_embeddings else "output.weight"
        self._launch(lane, ubatch, "logits", compute, dense_work([placed.model.tensors[name]], 1, placed.dtype))
        if ubatch.phase == "prefill":
            self.prompt_logits = lane.device.event()
            lane.device.record("compute", self.prompt_logits)
        self._launch(lane, ubatch, "sample", sample, Work())

    def take_token(self) -> int:
        """Bring the sampled token to the host (and to the first device); the host's time then, in ns."""
        lane = self._last
        lane.device.copy_out("compute", lane.on_device.token, lane.on_host.token)
        known = lane.device.event()
        lane.device.record("compute", known)
        lane.device.synchronize(known)
        at_ns = lane.device.now_ns()
        self.tokens.append(-1 if self._placed.is_simulated else int(lane.on_host.token[0]))
        if lane is not self._first:
            first = self._first
            first.on_host.token.copy_(lane.on_host.token)
            first.device.copy_in("compute", [whole_copy(first.on_host.token, first.on_device.token)])
        return at_ns

    def _launch(self, lane: Lane, ubatch: Ubatch, name: str, compute: Callable[[], None], work: Work) -> None:
        start = self._trace.mark(lane.device, "compute")
        with compute_range(None, name):
            lane.device.launch("compute", compute, work)
        end = self._trace.mark(lane.device, "compute")
        self._trace.add(lane.device, "compute", "compute", name, ubatch, start, end)
