"""Activations that cross the bus: through host memory to the next device, or to the CPU and back.

In the `cpu` regime a step's weights stay in host memory and the CPU computes it there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from executor.devices.base import Event, ReplayKey, Touched, Touches, Work, whole_copy_range
from executor.host.steps import HostStepWeights, begin_host_experts, host_experts, host_ffn
from executor.layers.moe import combine
from executor.layers.router import Routed
from executor.model import DenseFfn, MoeFfn
from executor.passes import Ubatch
from executor.placed_model import DeviceShard, PlacedModel
from executor.policies.base import Flags
from executor.tracing.pass_trace import PassTrace, compute_range, copy_range

_WHAT = "activations"
_NAME = f"copy {_WHAT}"
Pair = tuple[torch.Tensor, torch.Tensor]
"""The same rows on the device and on the host."""


def transfer_activations(
    ubatch: Ubatch, source: DeviceShard, target: DeviceShard, begin: int, trace: PassTrace
) -> None:
    """Carry a ubatch's residual stream to the next shard; the ubatch begins at token `begin` of the pass."""
    send_activations(ubatch, source, trace)
    sent = source.device.event()
    source.device.record("compute", sent)
    target.device.wait("compute", sent)
    receive_activations(ubatch, source, target, trace, lambda: target.set_begin(begin, ubatch.n_past))
    received = target.device.event()
    target.device.record("compute", received)
    source.device.wait("compute", received)  # its next ubatch overwrites the rows in host memory


def send_activations(ubatch: Ubatch, source: DeviceShard, trace: PassTrace) -> None:
    """Queue the copy of a ubatch's residual stream to host memory."""
    on_source, on_host = (a.rows(ubatch.n_tokens).x for a in (source.on_device, source.on_host))
    start = trace.mark(source.device, "compute")
    with copy_range(None, None, _WHAT, on_source.nbytes):
        source.device.copy_out("compute", on_source, on_host)
    end = trace.mark(source.device, "compute")
    trace.add(source.device, "compute", "d2h", _NAME, ubatch, start, end, bytes=on_source.nbytes)


def receive_activations(
    ubatch: Ubatch, source: DeviceShard, target: DeviceShard, trace: PassTrace, set_begin: Callable[[], None]
) -> None:
    """Queue the copy of what `source` sent to the next shard; `set_begin` tells that one where the ubatch begins."""
    on_host, on_target = source.on_host.rows(ubatch.n_tokens).x, target.on_device.rows(ubatch.n_tokens).x
    start = trace.mark(target.device, "compute")
    with copy_range(None, None, _WHAT, on_host.nbytes):
        target.device.copy_in("compute", [whole_copy_range(on_host, on_target)])
    end = trace.mark(target.device, "compute")
    trace.count_h2d(on_host.nbytes)
    trace.add(target.device, "compute", "h2d", _NAME, ubatch, start, end, bytes=on_host.nbytes)
    target.device.launch("compute", set_begin, Work())


def ffn_on_host(placed: PlacedModel, ubatch: Ubatch, layer: int, ffn: DenseFfn, work: Work, trace: PassTrace) -> None:
    """A dense FFN on the host: the hidden rows go out, the rows after the residual come back."""
    shard, eps, scale = placed.shard(layer), placed.model.shape.norm_eps, placed.layers[layer].residual_scale
    device, host = shard.on_device.rows(ubatch.n_tokens), shard.on_host.rows(ubatch.n_tokens)
    weights = HostStepWeights(placed.host, layer)

    def compute() -> None:
        products = placed.host.products(layer, "ffn")
        host.x.copy_(host_ffn(host.x.to(placed.host.dtype), products, weights, ffn, eps, scale))

    trip = _HostRoundTrip(shard, ubatch, layer, "ffn", trace)
    trip.send((device.x, host.x))
    trip.begin(compute, work, lambda: Touched(reads=[host.x], writes=[host.x]))
    trip.receive((device.x, host.x), trip.end())


class ExpertsOnHost:
    """A layer's experts on the host: normed rows and the router's choice go out, the weighted sums come back.

    Where the device takes others of them, the host computes beside what is issued between `begin` and `finish`.
    """

    def __init__(self, placed: PlacedModel, ubatch: Ubatch, layer: int, moe: MoeFfn, trace: PassTrace) -> None:
        self._placed, self._layer, self._moe = placed, layer, moe
        self._shard = shard = placed.shard(layer)
        self._n_tokens = ubatch.n_tokens
        self._on_device, self._on_host = shard.on_device.rows(ubatch.n_tokens), shard.on_host.rows(ubatch.n_tokens)
        self._trip = _HostRoundTrip(shard, ubatch, layer, "experts", trace)

    def send(self) -> None:
        """Send the activations, behind the router on the compute stream."""
        n_used = self._moe.n_used
        self._trip.send((self._on_device.sent(n_used), self._on_host.sent(n_used)))

    def begin(self, work: Work, only: Flags | None = None) -> None:
        """The host computes once the activations are there; `only` (n_experts,) these, None: all chosen ones."""
        host, dtype = self._on_host.routed(self._moe.n_used), self._placed.host.dtype
        weights = HostStepWeights(self._placed.host, self._layer)
        chosen = None if only is None else torch.from_numpy(only)
        running: list[Callable[[], torch.Tensor]] = []

        def begin() -> None:
            products = self._placed.host.products(self._layer, "experts")
            routed = Routed(host.h.to(dtype), host.ids, host.weights)
            if chosen is None:
                self._on_host.added.copy_(host_experts(routed, products, self._moe, weights))
            else:
                running.append(begin_host_experts(routed, products, self._moe, weights, chosen))

        def finish() -> None:
            self._on_host.added.copy_(running.pop()())

        reads = [*_tensors_of(host)]
        if only is None:
            self._trip.begin(begin, work, lambda: Touched(reads=reads, writes=[self._on_host.added]))
            self._end = self._trip.end
        else:
            self._trip.begin(begin, work, lambda: Touched(reads=reads))
            self._end = partial(self._trip.end, finish, int(only.sum()), lambda: Touched(writes=[self._on_host.added]))

    def finish(self, *, is_first: bool) -> None:
        """Add the sums to the residual stream; `is_first`: no experts of the device have, nor the shared one."""
        device, moe = self._on_device, self._moe
        scale = self._placed.layers[self._layer].residual_scale

        def add() -> None:
            shared = device.shared if is_first and moe.n_ff_shared else None
            combine(device.x, device.added, shared, scale)

        self._trip.receive((device.added, self._on_host.added), self._end())
        key = ReplayKey((self._layer, "add", self._n_tokens), None if is_first else "to the device's")
        added = [device.x, device.added, *([device.shared] if is_first and moe.n_ff_shared else [])]
        self._shard.device.launch("compute", add, Work(), key, lambda: Touched(reads=added, writes=[device.x]))


def _tensors_of(routed: Routed) -> tuple[torch.Tensor, ...]:
    return routed.h, routed.ids, routed.weights


class _HostRoundTrip:
    """Out over the bus, computed on the host's stream, and back."""

    def __init__(self, shard: DeviceShard, ubatch: Ubatch, layer: int, name: str, trace: PassTrace) -> None:
        self._device, self._ubatch, self._layer = shard.device, ubatch, layer
        self._name, self._trace = name, trace

    def send(self, *pairs: Pair) -> None:
        """One copy to the host for each pair."""
        device, n_bytes = self._device, sum(on_device.nbytes for on_device, _ in pairs)
        start = self._trace.mark(device, "compute")
        with copy_range(self._layer, None, _WHAT, n_bytes):
            for on_device, on_host in pairs:
                device.copy_out("compute", on_device, on_host)
        self._sent = device.event()
        device.record("compute", self._sent)
        fields = {"layer": self._layer, "bytes": n_bytes}
        self._trace.add(device, "compute", "d2h", _NAME, self._ubatch, start, self._sent, **fields)

    def begin(self, compute: Callable[[], None], work: Work, touches: Touches) -> None:
        """Queue the work behind what was sent."""
        self._device.wait("host", self._sent)
        self._begun = self._trace.mark(self._device, "host")
        with compute_range(self._layer, f"{self._name} on host"):
            self._device.launch("host", compute, work, touches=touches)

    def end(
        self, complete: Callable[[], None] | None = None, n_experts: int | None = None, touches: Touches = Touched
    ) -> Event:
        """Queue what brings the work to its end, if it needs more; returns the event that it is done."""
        device = self._device
        if complete is not None:  # a part of what was begun, whose range it has
            device.launch("host", complete, Work(), touches=touches)
        done = device.event()
        device.record("host", done)
        fields = {"layer": self._layer, "n_experts": n_experts}
        self._trace.add(device, "host", "cpu_compute", self._name, self._ubatch, self._begun, done, **fields)
        return done

    def receive(self, pair: Pair, done: Event) -> None:
        """Bring the results back to the device once they are `done`."""
        self._device.wait("compute", done)
        piece = whole_copy_range(pair[1], pair[0])
        start = self._trace.mark(self._device, "compute")
        with copy_range(self._layer, None, _WHAT, piece.n_bytes):
            self._device.copy_in("compute", [piece])
        end = self._trace.mark(self._device, "compute")
        self._trace.count_h2d(piece.n_bytes)
        fields = {"layer": self._layer, "bytes": piece.n_bytes}
        self._trace.add(self._device, "compute", "h2d", _NAME, self._ubatch, start, end, **fields)
