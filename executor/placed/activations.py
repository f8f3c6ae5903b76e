"""The fixed buffers that a ubatch lies in on its way through the layers.

Steps read and write these buffers in place, so nothing is allocated between steps and a device may replay a
step's launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.devices.base import Device
from executor.layers.moe import Routed
from executor.model import Model
from executor.shape import MoeFfn


@dataclass(slots=True)
class Activations:
    """A ubatch on its way through the layers; rows are tokens. On the device, or (pinned) on the host."""

    x: torch.Tensor  # (n, hidden), the residual stream
    h: torch.Tensor  # (n, hidden), normed for the experts
    ids: torch.Tensor  # (n * n_used,) int64, the router's choice
    shares: torch.Tensor  # (n * n_used,) float32, what each chosen expert counts
    added: torch.Tensor  # (n, hidden), what routed experts add
    shared: torch.Tensor  # (n, hidden), what the shared expert adds
    token: torch.Tensor  # (1,) int64, the sampled token

    @property
    def n_bytes(self) -> int:
        """Memory of all buffers."""
        buffers = (self.x, self.h, self.ids, self.shares, self.added, self.shared, self.token)
        return sum(buffer.nbytes for buffer in buffers)

    def rows(self, n: int) -> Activations:
        """Views of the first n rows; `ids` and `shares` stay whole, as their width is a layer's."""
        return Activations(self.x[:n], self.h[:n], self.ids, self.shares, self.added[:n], self.shared[:n], self.token)

    def routed(self, n_used: int) -> Routed:
        """The rows as the experts take them."""
        n = self.h.shape[0]
        return Routed(self.h, self.ids[: n * n_used].view(n, n_used), self.shares[: n * n_used].view(n, n_used))


def new_activations(model: Model, device: Device, dtype: torch.dtype, n: int, *, host: bool) -> Activations:
    """Zeroed buffers for ubatches of up to `n` tokens, on the device or (`host`) in its pinned host memory.

    A model without experts gets rows for none.
    """

    def buffer(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        if not host:
            return torch.zeros(shape, dtype=dtype, device=device.torch_device)
        n_bytes = torch.Size(shape).numel() * dtype.itemsize
        return device.host_slab(n_bytes, pinned=True).view(dtype).view(shape)

    moe = [s.ffn for s in model.shape.layers if isinstance(s.ffn, MoeFfn)]
    n_moe = n if moe else 0
    n_shared = n if any(ffn.n_ff_shared for ffn in moe) else 0
    n_used = max((ffn.n_used for ffn in moe), default=0)
    hidden = model.shape.hidden
    return Activations(
        x=buffer(dtype, n, hidden),
        h=buffer(dtype, n_moe, hidden),
        ids=buffer(torch.int64, n_moe * n_used),
        shares=buffer(torch.float32, n_moe * n_used),
        added=buffer(dtype, n_moe, hidden),
        shared=buffer(dtype, n_shared, hidden),
        token=buffer(torch.int64, 1),
    )
