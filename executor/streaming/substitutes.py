"""Stand-ins on the device for experts that the host computes, where one layer's experts are divided between both.

A kernel runs over all choices of a router. Those that the host takes are pointed at an expert that is on the device,
and their outputs left out of the sum.
"""

from __future__ import annotations

import numpy as np
import torch

from executor.arrays import Flags
from executor.devices.base import CopyRange, Device, Touched, whole_copy_range
from executor.layers.router import Routed
from executor.tracing.pass_trace import copy_range


class Substitutes:
    """For each layer a row (n_experts,) int64 on the device: each expert's own number, or its stand-in's.

    The host writes a layer's row once it knows the router's choice, so a whole ubatch after the row's last use.
    """

    def __init__(self, device: Device, n_layers: int, n_experts: int) -> None:
        shape = (n_layers, n_experts)
        n_bytes = n_layers * n_experts * torch.int64.itemsize
        self._device = device
        self._on_host = device.host_slab(n_bytes, pinned=True).view(torch.int64).view(shape)
        self._written = None if self._on_host.device.type == "meta" else self._on_host.numpy()
        self._on_device = torch.zeros(shape, dtype=torch.int64, device=device.torch_device)
        self._numbers = np.arange(n_experts)
        self._rows: dict[tuple[int, int], CopyRange] = {}

    def send(self, layer: int, used: Flags, on_host: Flags) -> torch.Tensor:
        """Queue the copy of a layer's row to the device; returns it there, (n_experts,).

        `used` are the experts in use, `on_host` those of them that the host computes; at least one is on the device.
        """
        row = self._on_host[layer, : used.size]
        self._device.on_thread("write the stand-ins", lambda: Touched(writes=[row]))
        if self._written is not None:
            written = self._written[layer, : used.size]
            written[:] = self._numbers[: used.size]
            written[on_host] = (used > on_host).argmax()
        target = self._on_device[layer, : used.size]
        key = layer, used.size
        if key not in self._rows:
            self._rows[key] = whole_copy_range(row, target)
        piece = self._rows[key]
        with copy_range(layer, None, "stand-ins", piece.n_bytes):
            self._device.copy_in("compute", [piece])
        return target


def with_substitutes(routed: Routed, row: torch.Tensor) -> tuple[Routed, torch.Tensor]:
    """The choices with stand-ins, and which of them (n, n_used) bool are the device's own."""
    ids = row[routed.ids]
    return Routed(routed.h, ids, routed.weights), ids == routed.ids
