"""Activations that cross the bus: through host memory to the next device, or to the CPU and back.

In the `cpu` regime a step's weights stay in host memory and the CPU computes it there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from executor.arrays import Flags, Int64, flags_of
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

    def __init__(self, placed: PlacedModel, n_tokens: int, layer: int, ffn: DenseFfn, trace: PassTrace) -> None:
        self._placed, self._layer, self._ffn = placed, layer, ffn
        shard = placed.shard(layer)
        self._device, self._host = shard.on_device.rows(n_tokens), shard.on_host.rows(n_tokens)
        self._trip = _HostRoundTrip(shard, layer, "ffn", trace)

    def send(self, ubatch: Ubatch) -> None:
        """Send the rows."""
        self._trip.send(ubatch, self._device.x, self._host.x)

    def begin(self, sent: Event, work: Work) -> None:
        """The host computes once they are there; `end` gives the event that it has."""
        placed, layer, host = self._placed, self._layer, self._host
        weights, ffn = HostStepWeights(placed.host, layer), self._ffn
        eps, scale = placed.model.shape.norm_eps, placed.layers[layer].residual_scale

        def compute() -> None:
            products = placed.host.products(layer, "ffn")
            host.x.copy_(host_ffn(host.x.to(weights.dtype), products, weights, ffn, eps, scale))

        self._trip.begin(sent, compute, work, lambda: Touched(reads=[host.x], writes=[host.x]))

    def end(self) -> Event:
        """Wait for it."""
        return self._trip.end()

    def note(self, ubatch: Ubatch) -> None:
        """Keep when the host computed."""
        self._trip.note(ubatch)

    def take_in(self, ubatch: Ubatch) -> None:
        """Bring the rows back."""
        self._trip.receive(ubatch, self._device.x, self._host.x)


class ExpertsOnHost:
    """A layer's experts on the host: normed rows and the router's choice go out, the weighted sums come back.

    Where the device takes others of them, the host computes beside what is issued between `begin_only` and `end`. One
    serves all ubatches of `n_tokens` in a pass: what it prepares lies where they all do.
    """

    def __init__(self, placed: PlacedModel, n_tokens: int, layer: int, moe: MoeFfn, trace: PassTrace) -> None:
        self._placed, self._layer, self._moe, self._n_tokens = placed, layer, moe, n_tokens
        self._shard = shard = placed.shard(layer)
        self._on_device, self._on_host = shard.on_device.rows(n_tokens), shard.on_host.rows(n_tokens)
        self._trip = _HostRoundTrip(shard, layer, "experts", trace)
        self._all: HostExperts | None = None
        self._some: HostExperts | None = None
        self._only = np.zeros(moe.n_experts, dtype=np.bool_)
        self._chosen = _first_row(self._on_host.routed(moe.n_used).ids)
        self._complete: Callable[[], None] | None = None
        self._n_begun: int | None = None

    def send(self, ubatch: Ubatch) -> None:
        """Send the activations, behind the router on the compute stream."""
        n_used = self._moe.n_used
        self._trip.send(ubatch, self._on_device.sent(n_used), self._on_host.sent(n_used))

    def begin(self, sent: Event, work: Work) -> None:
        """The host computes all that were chosen, once the activations are there; `end` gives the event that it has."""
        added = self._on_host.added
        if self._all is None:
            self._all = self._experts()
        self._complete = self._n_begun = None
        self._shard.has_no_sums = False
        self._trip.begin(sent, self._all, work, lambda: Touched(reads=self._read(), writes=[added]))

    def begin_last_ranked(self, sent: Event, work: Work, n_begun: int) -> None:
        """The host computes those `n_begun` that a lone token's router ranked last, beside what is issued until `end`.

        Nothing is asked between the router's choice and the host's work: `chosen` tells which they were.
        """
        prepared, chosen = self.prepare(), self._chosen
        self._n_begun, self._complete, self._shard.has_no_sums = n_begun, prepared.end, False

        def compute() -> None:
            self._only[:] = flags_of(chosen[-n_begun:], self._only.size)
            prepared.begin()

        self._trip.begin(sent, compute, work, lambda: Touched(reads=self._read()))

    def chosen(self, sent: Event, n_last: int) -> tuple[Flags, Flags]:
        """All experts of a lone token and the `n_last` that its router ranked last, (n_experts,), once they are known
        here."""
        device, ids = self._shard.device, self._on_host.routed(self._moe.n_used).ids
        device.synchronize(sent)
        device.on_thread("read the router's choice", lambda: Touched(reads=[ids]))
        return flags_of(self._chosen, self._only.size), flags_of(self._chosen[-n_last:], self._only.size)

    def prepare(self) -> HostExperts:
        """Whatever `begin_only` can do before it is known which experts: once."""
        if self._some is None:
            self._some = self._experts(self._only)
        return self._some

    def begin_only(self, sent: Event, work: Work, only: Flags, n_begun: int) -> None:
        """The host computes `only` these `n_begun` (n_experts,), beside what is issued until `end`."""
        prepared = self.prepare()
        self._only[:], self._n_begun, self._complete = only, n_begun, prepared.end
        self._shard.has_no_sums = False
        self._trip.begin(sent, prepared.begin, work, lambda: Touched(reads=self._read()))

    def end(self) -> Event:
        """Wait for what was begun."""
        added = self._on_host.added
        return self._trip.end(self._complete, lambda: Touched(writes=[added]))

    def note(self, ubatch: Ubatch) -> None:
        """Keep when the host computed."""
        self._trip.note(ubatch, self._n_begun)

    def skip(self, sent: Event) -> None:
        """The host computes none of a lone token's: its sums are zero for what the device takes in next."""
        if self._shard.has_no_sums:
            return
        device, added, done = self._shard.device, self._on_host.added, self._shard.device.event()
        device.wait("host", sent)  # what came before has read them
        device.launch("host", partial(_clear, added), Work(), touches=lambda: Touched(writes=[added]))
        device.record("host", done)
        device.wait("compute", done)
        self._shard.has_no_sums = True

    def take_in(self, ubatch: Ubatch) -> None:
        """Bring the sums back and add them to the residual stream, and then what a shared expert adds."""
        self._trip.receive(ubatch, self._on_device.added, self._on_host.added)
        device, moe = self._on_device, self._moe
        scale, shared = self._placed.layers[self._layer].residual_scale, device.shared if moe.n_ff_shared else None

        def touched() -> Touched:
            reads = [device.x, device.added, *([] if shared is None else [shared])]
            return Touched(reads=reads, writes=[device.x])

        add = partial(combine, device.x, device.added, shared, scale)
        key = ReplayKey((self._layer, "add", self._n_tokens), None)
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


def _first_row(ids: torch.Tensor) -> Int64:
    """What memory holds now and later, (n_used,); nothing in a simulation, which has none."""
    return np.empty(0, dtype=np.int64) if ids.is_meta else ids[0].numpy()


def _clear(sums: torch.Tensor) -> None:
    sums.zero_()


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
        device = self._device
        self._done = device.event()
        device.wait("host", sent)
        self._begun = self._trace.mark(device, "host")
        with compute_range(self._layer, f"{self._name} on host"):
            device.launch("host", compute, work, touches=touches)

    def end(self, complete: Callable[[], None] | None = None, touches: Touches = Touched) -> Event:
        """Queue what brings the work to its end, if it needs more; returns the event that it is done."""
        if complete is not None:  # a part of what was begun, whose range it has
            self._device.launch("host", complete, Work(), touches=touches)
        self._device.record("host", self._done)
        return self._done

    def note(self, ubatch: Ubatch, n_experts: int | None = None) -> None:
        """Keep the interval from `begin` to `end`."""
        fields = {"layer": self._layer, "n_experts": n_experts}
        self._trace.add(self._device, "host", "cpu_compute", self._name, ubatch, self._begun, self._done, **fields)

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
