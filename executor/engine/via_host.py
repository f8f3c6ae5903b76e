"""Activations that cross the bus: through host memory to the next device, or to the CPU and back.

In the `cpu` regime a step's weights stay in host memory and the CPU computes it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from executor.devices.base import ReplayKey, Work, whole_copy_range
from executor.host.steps import HostStepWeights, host_experts, host_ffn
from executor.layers.moe import Routed, combine
from executor.model import MoeFfn
from executor.passes import Ubatch
from executor.placed_model import DeviceShard, PlacedModel
from executor.tracing.pass_trace import PassTrace, compute_range

_NAME = "copy activations"


def transfer_activations(
    ubatch: Ubatch, source: DeviceShard, target: DeviceShard, begin: int, trace: PassTrace
) -> None:
    """Carry a ubatch's residual stream to the next shard; the ubatch begins at token `begin` of the pass."""
    on_source, on_host = (a.rows(ubatch.n_tokens).x for a in (source.on_device, source.on_host))
    start = trace.mark(source.device, "compute")
    source.device.copy_out("compute", on_source, on_host)
    sent = source.device.event()
    source.device.record("compute", sent)
    n_bytes = on_source.numel() * on_source.element_size()
    trace.add(source.device, "compute", "d2h", _NAME, ubatch, start, sent, bytes=n_bytes)
    target.device.wait("compute", sent)
    start = trace.mark(target.device, "compute")
    target.device.copy_in("compute", [whole_copy_range(on_host, target.on_device.rows(ubatch.n_tokens).x)])
    end = trace.mark(target.device, "compute")
    target.device.launch("compute", lambda: target.set_begin(begin, ubatch.n_past), Work())
    received = target.device.event()
    target.device.record("compute", received)
    source.device.wait("compute", received)  # its next ubatch overwrites the rows in host memory
    trace.count_h2d(n_bytes)
    trace.add(target.device, "compute", "h2d", _NAME, ubatch, start, end, bytes=n_bytes)


Pair = tuple[torch.Tensor, torch.Tensor]
"""The same rows on the device and on the host."""


def ffn_on_host(placed: PlacedModel, ubatch: Ubatch, layer: int, work: Work, trace: PassTrace) -> None:
    """A dense FFN on the host: the hidden rows go out, the rows after the residual come back."""
    shard, eps = placed.shard(layer), placed.model.shape.norm_eps
    device, host = shard.on_device.rows(ubatch.n_tokens), shard.on_host.rows(ubatch.n_tokens)
    weights = HostStepWeights(placed.host, layer)

    def compute() -> None:
        products = placed.host.products(layer, "ffn")
        host.x.copy_(host_ffn(host.x.to(placed.host.dtype), products, weights, eps))

    trip = _HostRoundTrip(shard, ubatch, layer, "ffn", trace)
    trip.send([(device.x, host.x)])
    trip.compute(compute, work)
    trip.receive((device.x, host.x))


def experts_on_host(placed: PlacedModel, ubatch: Ubatch, layer: int, moe: MoeFfn, work: Work, trace: PassTrace) -> None:
    """Experts on the host: normed rows and the router's choice go out, the weighted sums come back."""
    shard = placed.shard(layer)
    device, host = shard.on_device.rows(ubatch.n_tokens), shard.on_host.rows(ubatch.n_tokens)
    weights, dtype = HostStepWeights(placed.host, layer), placed.host.dtype
    on_device, on_host = device.routed(moe.n_used), host.routed(moe.n_used)

    def compute() -> None:
        routed = Routed(on_host.h.to(dtype), on_host.ids, on_host.weights)
        products = placed.host.products(layer, "experts")
        host.added.copy_(host_experts(routed, products, moe, weights))

    def add() -> None:
        device.x.copy_(combine(device.x, device.added, device.shared if moe.n_ff_shared else None))

    trip = _HostRoundTrip(shard, ubatch, layer, "experts", trace)
    trip.send([(on_device.h, on_host.h), (on_device.ids, on_host.ids), (on_device.weights, on_host.weights)])
    trip.compute(compute, work)
    trip.receive((device.added, host.added))
    shard.device.launch("compute", add, Work(), ReplayKey((layer, "add", ubatch.n_tokens), None))


class _HostRoundTrip:
    """Out over the bus, computed on the host's stream, and back."""

    def __init__(self, shard: DeviceShard, ubatch: Ubatch, layer: int, name: str, trace: PassTrace) -> None:
        self._device, self._ubatch, self._layer = shard.device, ubatch, layer
        self._name, self._trace = name, trace

    def send(self, pairs: Sequence[Pair]) -> None:
        device, n_bytes = self._device, 0
        start = self._trace.mark(device, "compute")
        for on_device, on_host in pairs:
            device.copy_out("compute", on_device, on_host)
            n_bytes += on_device.numel() * on_device.element_size()
        sent = device.event()
        device.record("compute", sent)
        fields = {"layer": self._layer, "bytes": n_bytes}
        self._trace.add(device, "compute", "d2h", "copy activations", self._ubatch, start, sent, **fields)
        device.wait("host", sent)

    def compute(self, compute: Callable[[], None], work: Work) -> None:
        device = self._device
        start = self._trace.mark(device, "host")
        with compute_range(self._layer, f"{self._name} on host"):
            device.launch("host", compute, work)
        done = device.event()
        device.record("host", done)
        fields = {"layer": self._layer}
        self._trace.add(device, "host", "cpu_compute", self._name, self._ubatch, start, done, **fields)
        device.wait("compute", done)

    def receive(self, pair: Pair) -> None:
        piece = whole_copy_range(pair[1], pair[0])
        start = self._trace.mark(self._device, "compute")
        self._device.copy_in("compute", [piece])
        end = self._trace.mark(self._device, "compute")
        self._trace.count_h2d(piece.n_bytes)
        fields = {"layer": self._layer, "bytes": piece.n_bytes}
        self._trace.add(self._device, "compute", "h2d", "copy activations", self._ubatch, start, end, **fields)
