"""What one pass is asked to do, and how its tokens are cut into ubatches."""

from __future__ import annotations

from dataclasses import dataclass

from executor.records import Phase

_WARMUP_TOKENS = 500_000  # repetitions are fewer


@dataclass(frozen=True, slots=True)
class Ubatch:
    """Tokens that go through the layers together."""

    number: int  # from 0 in each pass
    phase: Phase
    n_tokens: int
    n_past: int  # positions before it: the depth, and the ubatches that came earlier


@dataclass(frozen=True, slots=True)
class PassJob:
    """One pass of one arm. Arms get the same tokens and the same routing in passes of the same `repetition`."""

    pass_id: int
    arm: str
    n_prompt: int
    n_gen: int
    n_ubatch: int
    n_depth: int
    repetition: int
    warmup: bool = False

    @property
    def token_set(self) -> int:
        """Numbers the pass's tokens (and synthetic routing): warm-ups never see what is measured later."""
        return self.repetition + (_WARMUP_TOKENS if self.warmup else 0)

    @property
    def n_decode(self) -> int:
        """Decode steps: the first generated token comes from the prompt's logits, if there is a prompt."""
        return max(0, self.n_gen - 1) if self.n_prompt else self.n_gen

    @property
    def n_positions(self) -> int:
        """Positions that the KV cache must hold."""
        return self.n_depth + self.n_prompt + self.n_decode

    @property
    def n_logits(self) -> int:
        """How often logits are computed: after the prompt, and after each decode step."""
        return self.n_decode + (1 if self.n_prompt else 0)

    def ubatches(self) -> list[Ubatch]:
        """The prompt's ubatches (the last may be shorter), then one a decode step."""
        prefill = [
            Ubatch(number, "prefill", min(self.n_ubatch, self.n_prompt - start), self.n_depth + start)
            for number, start in enumerate(range(0, self.n_prompt, self.n_ubatch))
        ]
        first = self.n_depth + self.n_prompt
        decode = [Ubatch(len(prefill) + i, "decode", 1, first + i) for i in range(self.n_decode)]
        return prefill + decode
