"""What stands before a model's layers and after them: the embedding, the logits, the sampled token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from executor.devices.base import Event, Touched, Touches, Work, whole_copy_range
from executor.engine.work import dense_work
from executor.layers.dense import embed, logits
from executor.layers.one_token import arg_max, norm_serves
from executor.passes import PassJob, Ubatch
from executor.placed_model import DeviceShard, PlacedModel
from executor.tracing.pass_trace import Inside, PassTrace, compute_range, copy_range
from executor.weights.device_weights import StepWeights

_ROW_MULTIPLE: Final = 4  # numbers


class EmbeddingAndHead:
    """The ends of one pass: what goes in lies on the first shard, what comes out on the last."""

    def __init__(self, placed: PlacedModel, job: PassJob, trace: PassTrace) -> None:
        self._placed, self._job, self._trace = placed, job, trace
        self._first, self._last = placed.shards[0], placed.shards[-1]
        self.logits = _rows_of_logits(job.n_logits, placed.model.shape.n_vocab, self._last.device.torch_device)
        """(n_logits, vocab) float32 on the last device: of the prompt's tokens, then one a decode step."""
        self._n_rows = 0  # of logits so far
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
            self._set_begin(ubatch)
            x.copy_(embed(ids, weights, placed.model.shape))

        self._launch(self._first, ubatch, "embed", compute, Work(), lambda: Touched(reads=[ids], writes=[x]))

    def head(self, left: Ubatch) -> None:
        """The logits that are wanted of the rows that are left, and the likeliest token after them."""
        ubatch = left.outputs()
        if ubatch is None:
            return
        placed, shard = self._placed, self._last
        weights = StepWeights(placed.model, shard.store, None, None, None)
        x, token = shard.on_device.rows(left.n_tokens).x[-ubatch.n_tokens :], shard.on_device.token
        rows = self.next_rows(ubatch.n_tokens)

        def compute() -> None:
            rows.copy_(logits(x, weights, placed.model.shape))

        def sample() -> None:
            arg_max(rows[-1], token)

        work = dense_work([placed.model.tensors[placed.model.shape.output_tensor]], ubatch.n_tokens, placed.dtype)
        inside: Inside = "begin" if norm_serves(x) else "nothing"
        self._launch(shard, ubatch, "logits", compute, work, lambda: Touched(reads=[x], writes=[rows]), inside)
        if ubatch.phase == "prefill":
            self.prompt_logits = shard.device.event()
            shard.device.record("compute", self.prompt_logits)
        self._launch(shard, ubatch, "sample", sample, Work(), lambda: Touched(reads=[rows], writes=[token]))

    def next_rows(self, n: int) -> torch.Tensor:
        """Where the next n tokens' logits belong, (n, vocab)."""
        self._n_rows += n
        return self.logits[self._n_rows - n : self._n_rows]

    def take_token(self) -> int:
        """Bring the sampled token to the host (and to the first device); the host's time then, in ns."""
        shard = self._last
        n_bytes = shard.on_device.token.nbytes
        with copy_range(None, None, "token", n_bytes):
            shard.device.copy_out("compute", shard.on_device.token, shard.on_host.token)
        known = shard.device.event()
        shard.device.record("compute", known)
        shard.device.synchronize(known)
        at_ns = shard.device.now_ns()
        shard.device.on_thread("read the token", lambda: Touched(reads=[shard.on_host.token]))
        self.tokens.append(-1 if self._placed.is_simulated else int(shard.on_host.token[0]))
        if shard is not self._first:
            first = self._first
            first.device.on_thread("hand the token on", lambda: Touched(writes=[first.on_host.token]))
            first.on_host.token.copy_(shard.on_host.token)
            with copy_range(None, None, "token", n_bytes):
                first.device.copy_in("compute", [whole_copy_range(first.on_host.token, first.on_device.token)])
        return at_ns

    def _set_begin(self, ubatch: Ubatch) -> None:
        """Tell the first shard where the ubatch begins; part of the embedding."""
        self._first.set_begin(ubatch.n_past - self._job.n_depth, ubatch.n_past)

    def _launch(
        self,
        shard: DeviceShard,
        ubatch: Ubatch,
        name: str,
        compute: Callable[[], None],
        work: Work,
        touches: Touches,
        inside: Inside = "nothing",
    ) -> None:
        start = self._trace.mark(shard.device, "compute", inside)
        with compute_range(None, name):
            shard.device.launch("compute", compute, work, touches=touches)
        end = self._trace.mark(shard.device, "compute")
        self._trace.add(shard.device, "compute", "compute", name, ubatch, start, end)


def _rows_of_logits(n: int, n_vocab: int, device: torch.device) -> torch.Tensor:
    """(n, vocab) float32, each row from a multiple of 16 bytes: a kernel that reads one is compiled for that alone.

    Nothing is written there, on a stream that steps may not wait for: every row is before it is read.
    """
    width = -(-n_vocab // _ROW_MULTIPLE) * _ROW_MULTIPLE
    return torch.empty((n, width), dtype=torch.float32, device=device)[:, :n_vocab]


class RecordedEnds(EmbeddingAndHead):
    """The ends of a token that is recorded for all positions: it stands behind the one before it.

    Its logits (1, vocab) stay where they are until the next token.
    """

    def __init__(self, placed: PlacedModel, trace: PassTrace) -> None:
        super().__init__(placed, PassJob(0, "", n_prompt=0, n_gen=1, n_ubatch=1, n_depth=0, repetition=0), trace)

    def _set_begin(self, ubatch: Ubatch) -> None:
        self._first.advance()
