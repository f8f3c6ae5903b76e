"""A finished pass's figures, read from its marks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from executor.devices.base import Device, Event
from executor.job import Ubatch
from executor.policies.base import Policy
from executor.records import UbatchRecord


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Moments of a pass in ns; None: there was none."""

    start: int
    prompt_logits: int | None
    first_token: int | None  # known on the host
    end: int

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token: from the start to its being known on the host."""
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
    """A ubatch's first and last moment: marks on the first and the last device; None when recording is off."""

    ubatch: Ubatch
    start: Event | None
    end: Event | None


def ubatch_records(marks: Iterable[UbatchMarks], policy: Policy, first: Device, last: Device) -> list[UbatchRecord]:
    """One record for each ubatch that was marked."""
    return [
        UbatchRecord(
            phase=one.ubatch.phase,
            ubatch=one.ubatch.number,
            n_tokens=one.ubatch.n_tokens,
            n_past=one.ubatch.n_past,
            policy=policy.describe(one.ubatch),
            t_start=first.time_ns(one.start),
            t_end=last.time_ns(one.end),
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
