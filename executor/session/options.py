"""How to run a model: what a session is opened with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from executor.devices.factory import DeviceOptions
from executor.policies.base import PolicyOptions
from executor.weights.host_memory import LoadMode

if TYPE_CHECKING:
    from executor.routing.kinds import Routing


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to run a model. `max_*` bound every pass of the session: memory is reserved for them up front."""

    device: DeviceOptions
    max_positions: int
    """Positions of the KV cache: depth, prompt and decoded tokens."""
    max_ubatch: int
    """Tokens in a ubatch."""
    max_ubatches: int
    """Ubatches in a pass; a decode step is one."""
    dtype: torch.dtype = torch.float32
    """What devices compute in."""
    load_mode: LoadMode = "none"
    madvise: bool = False
    """Whether the system is asked to read mapped pages before they are needed."""
    tensor_split: tuple[float, ...] = ()
    """Each device's share of the layers; empty: equal shares."""
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    seed: int = 0
    routing: Routing | None = None
    """Who chooses experts; None: the model's own router."""
    prompt: Sequence[int] | None = None
    """Token ids that every prompt repeats; None: seeded random ones."""
    computes_on_host: bool = False
    """Whether passes will compute host tensors on the host, so that their products are made when the session opens."""
