"""Activations that cross the bus: through host memory to the next device, or to the CPU and back.

In the `cpu` regime a step's weights stay in host memory and the CPU computes it there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from executor.arrays import Flags
from executor.devices.base import CopyRange, Event, ReplayKey, Touched, Touches, Work, whole_copy_range
from executor.host.steps import HostExperts, HostStepWeights, host_ffn, prepare_host_experts
from executor.layers.moe import combine
from executor.model import DenseFfn, MoeFfn
from executor.passes import Ubatch
from executor.placed_model import DeviceShard, PlacedModel
from executor.tracing.pass_trace import PassTrace, compute_range, copy_range

_WHAT = "activations"
_NAME = f"copy {_WHAT}"


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


class FfnOnHost:
    """A dense FFN on the host: the hidden rows go out, the rows after the residual come back."""

    def __init__(self, placed: PlacedModel, ubatch: Ubatch, layer: int, ffn: DenseFfn, trace: PassTrace) -> None:
        self._placed, self._layer, self._ffn = placed, layer, ffn
        shard = placed.shard(layer)
        self._device, self._host = shard.on_device.rows(ubatch.n_tokens), shard.on_host.rows(ubatch.n_tokens)
        self._ubatch = ubatch
        self._trip = _HostRoundTrip(shard, layer, "ffn", trace)

    def send(self) -> None:
        """Send the rows."""
        self._trip.send(self._ubatch, self._device.x, self._host.x)

    def compute(self, sent: Event, work: Work) -> Event:
        """The host computes once they are there; gives the event that it has."""
        placed, layer, host = self._placed, self._layer, self._host
        weights, ffn = HostStepWeights(placed.host, layer), self._ffn
        eps, scale = placed.model.shape.norm_eps, placed.layers[layer].residual_scale

        def compute() -> None:
            products = placed.host.products(layer, "ffn")
            host.x.copy_(host_ffn(host.x.to(weights.dtype), products, weights, ffn, eps, scale))

        self._trip.begin(sent, compute, work, lambda: Touched(reads=[host.x], writes=[host.x]))
        return self._trip.end(self._ubatch)

    def receive(self) -> None:
        """Bring the rows back."""
        self._trip.receive(self._ubatch, self._device.x, self._host.x)


class ExpertsOnHost:
    """A layer's experts on the host: normed rows and the router's choice go out, the weighted sums come back.

    Where the device takes others of them, the host computes beside what is issued between `begin` and `end`. One serves
    all ubatches of `n_tokens` in a pass: what it prepares lies where they all do.
    """

    def __init__(self, placed: PlacedModel, n_tokens: int, layer: int, moe: MoeFfn, trace: PassTrace) -> None:
        self._placed, self._layer, self._moe, self._n_tokens = placed, layer, moe, n_tokens
        self._shard = shard = placed.shard(layer)
        self._on_device, self._on_host = shard.on_device.rows(n_tokens), shard.on_host.rows(n_tokens)
        self._trip = _HostRoundTrip(shard, layer, "experts", trace)
        self._all: HostExperts | None = None
        self._some: HostExperts | None = None
        self._only, self._n_begun = np.zeros(moe.n_experts, dtype=np.bool_), 0

    def send(self, ubatch: Ubatch) -> None:
        """Send the activations, behind the router on the compute stream."""
        n_used = self._moe.n_used
        self._trip.send(ubatch, self._on_device.sent(n_used), self._on_host.sent(n_used))

    def compute(self, ubatch: Ubatch, sent: Event, work: Work) -> Event:
        """The host computes all that were chosen once the activations are there; gives the event that it has."""
        added = self._on_host.added
        if self._all is None:
            self._all = self._experts()
        self._trip.begin(sent, self._all, work, lambda: Touched(reads=self._read(), writes=[added]))
        return self._trip.end(ubatch)

    def prepare(self) -> HostExperts:
        """Whatever `begin` can do before it is known which experts: once."""
        if self._some is None:
            self._some = self._experts(self._only)
        return self._some

    def begin(self, sent: Event, work: Work, only: Flags) -> None:
        """The host computes `only` these (n_experts,), once the activations are there; `end` gives the event."""
        self._only[:], self._n_begun = only, int(np.count_nonzero(only))
        self._trip.begin(sent, self.prepare().begin, work, lambda: Touched(reads=self._read()))

    def end(self, ubatch: Ubatch) -> Event:
        """Wait for what was begun."""
        added = self._on_host.added
        return self._trip.end(ubatch, self.prepare().end, self._n_begun, lambda: Touched(writes=[added]))

    def receive(self, ubatch: Ubatch) -> None:
        """Bring the sums back."""
        self._trip.receive(ubatch, self._on_device.added, self._on_host.added)

    def add(self, *, is_first: bool) -> None:
        """Add the sums to the residual stream; `is_first`: no experts of the device have, nor the shared one."""
        device, moe = self._on_device, self._moe
        scale = self._placed.layers[self._layer].residual_scale

        def add() -> None:
            shared = device.shared if is_first and moe.n_ff_shared else None
            combine(device.x, device.added, shared, scale)

        def touched() -> Touched:
            added = [device.x, device.added, *([device.shared] if is_first and moe.n_ff_shared else [])]
            return Touched(reads=added, writes=[device.x])

        key = ReplayKey((self._layer, "add", self._n_tokens), None if is_first else "to the device's")
        self._shard.device.launch("compute", add, Work(), key, touched)

    def _experts(self, only: Flags | None = None) -> HostExperts:
        placed, layer, moe = self._placed, self._layer, self._moe
        if placed.is_simulated:
            return _NoExperts()
        weights, chosen = HostStepWeights(placed.host, layer), None if only is None else torch.from_numpy(only)
        routed, products = self._on_host.routed(moe.n_used), placed.host.products(layer, "experts")
        return prepare_host_experts(self._on_host.added, routed, products, moe, weights, chosen)

    def _read(self) -> list[torch.Tensor]:
        routed = self._on_host.routed(self._moe.n_used)
        return [routed.h, routed.ids, routed.weights]


class _NoExperts:
    """What a simulated host computes."""

    def __call__(self) -> None:
        """Nothing."""

    begin = end = __call__


class _HostRoundTrip:
    """Out over the bus, computed on the host's stream, and back."""

    def __init__(self, shard: DeviceShard, layer: int, name: str, trace: PassTrace) -> None:
        self._device, self._layer, self._name, self._trace = shard.device, layer, name, trace
        self._back: CopyRange | None = None

    def send(self, ubatch: Ubatch, on_device: torch.Tensor, on_host: torch.Tensor) -> None:
        """The copy to the host."""
        device = self._device
        start = self._trace.mark(device, "compute")
        with copy_range(self._layer, None, _WHAT, on_device.nbytes):
            device.copy_out("compute", on_device, on_host)
        end = self._trace.mark(device, "compute")
        fields = {"layer": self._layer, "bytes": on_device.nbytes}
        self._trace.add(device, "compute", "d2h", _NAME, ubatch, start, end, **fields)

    def begin(self, sent: Event, compute: Callable[[], None], work: Work, touches: Touches) -> None:
        """Queue the work behind what was sent."""
        self._device.wait("host", sent)
        self._begun = self._trace.mark(self._device, "host")
        with compute_range(self._layer, f"{self._name} on host"):
            self._device.launch("host", compute, work, touches=touches)

    def end(
        self,
        ubatch: Ubatch,
        complete: Callable[[], None] | None = None,
        n_experts: int | None = None,
        touches: Touches = Touched,
    ) -> Event:
        """Queue what brings the work to its end, if it needs more; returns the event that it is done."""
        device = self._device
        if complete is not None:  # a part of what was begun, whose range it has
            device.launch("host", complete, Work(), touches=touches)
        done = device.event()
        device.record("host", done)
        fields = {"layer": self._layer, "n_experts": n_experts}
        self._trace.add(device, "host", "cpu_compute", self._name, ubatch, self._begun, done, **fields)
        return done

    def receive(self, ubatch: Ubatch, on_device: torch.Tensor, on_host: torch.Tensor) -> None:
        """The copy of the results to the device, which are in the same place each time."""
        if self._back is None:
            self._back = whole_copy_range(on_host, on_device)
        piece = self._back
        start = self._trace.mark(self._device, "compute")
        with copy_range(self._layer, None, _WHAT, piece.n_bytes):
            self._device.copy_in("compute", [piece])
        end = self._trace.mark(self._device, "compute")
        self._trace.count_h2d(piece.n_bytes)
        fields = {"layer": self._layer, "bytes": piece.n_bytes}
        self._trace.add(self._device, "compute", "h2d", _NAME, ubatch, start, end, **fields)
