"""What the host wants to know of a decoded token, in one piece of memory, so that one copy brings it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from executor.model import ModelShape

_NUMBER_BYTES = 8
_STEPS_OF_A_LAYER = 8  # mixer, router, shared expert, experts; copies to the host and back, and where two pieces meet
_OTHER_STEPS = 8  # embedding, logits, sampling, copies between devices, and where each device begins


@dataclass(frozen=True, slots=True)
class TokenReport:
    """Views of one buffer, on a device or where it was copied to."""

    raw: torch.Tensor  # (report_bytes,) uint8
    token: torch.Tensor  # (1,) int64, the sampled token
    stamps: torch.Tensor  # (n,) int64, readings of the device's clock at the ends of steps
    flags: torch.Tensor  # (layers, experts) uint8, the routers' choice: 1 for each expert in use

    @property
    def n_bytes(self) -> int:
        """Its memory."""
        return self.raw.nbytes


def _n_stamps(model: ModelShape) -> int:
    return len(model.layers) * _STEPS_OF_A_LAYER + _OTHER_STEPS


def report_bytes(model: ModelShape) -> int:
    """The size of a report: whole numbers of 8 bytes, so that reports in a row are all aligned."""
    n_flags = len(model.layers) * max(model.most_experts, 1)
    return (1 + _n_stamps(model) + math.ceil(n_flags / _NUMBER_BYTES)) * _NUMBER_BYTES


def token_report(model: ModelShape, raw: torch.Tensor) -> TokenReport:
    """The report in `raw` (report_bytes,) uint8."""
    n_stamps, n_experts = _n_stamps(model), max(model.most_experts, 1)
    end = (1 + n_stamps) * _NUMBER_BYTES
    token, stamps = raw[:end].view(torch.int64).split([1, n_stamps])
    flags = raw[end : end + len(model.layers) * n_experts]
    return TokenReport(raw, token, stamps, flags.view(len(model.layers), n_experts))


def reported_token(raw: torch.Tensor) -> int:
    """The token alone of a report in host memory."""
    return int(raw[:_NUMBER_BYTES].view(torch.int64).item())
