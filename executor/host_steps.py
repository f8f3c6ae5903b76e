"""The `cpu` regime: a step whose weights stay in host memory is computed there, and activations cross the bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from executor.devices.base import Work
from executor.lane import Lane
from executor.layers.ffn import dense_ffn
from executor.layers.moe import Routed, combine, experts
from executor.nvtx_ranges import compute_range
from executor.plant import Plant
from executor.policies.base import Ubatch
from executor.shape import MoeFfn
from executor.trace import PassTrace
from executor.weights import HostStepWeights, whole_copy

if TYPE_CHECKING:
    from executor.steps import Flow

Pair = tuple[torch.Tensor, torch.Tensor]


def ffn_on_host(plant: Plant, ubatch: Ubatch, layer: int, flow: Flow, work: Work, trace: PassTrace) -> None:
    """A dense FFN on the host: the hidden rows go out, the rows after the residual come back."""
    lane, n = plant.lane(layer), ubatch.n_tokens
    host = HostStepWeights(plant.host, layer)
    hidden, result = _rows(lane.exchange.hidden, n), _rows(lane.exchange.result, n)

    def send() -> None:
        hidden[0].copy_(flow.x)

    def compute() -> None:
        result[1].copy_(dense_ffn(hidden[1].to(plant.host.dtype), host, plant.model.shape.norm_eps))

    def receive() -> None:
        flow.x = result[0].clone()

    trip = _Trip(lane, ubatch, layer, "ffn", trace)
    trip.run(send, [hidden], compute, work, result, receive)


def experts_on_host(
    plant: Plant, ubatch: Ubatch, layer: int, flow: Flow, moe: MoeFfn, work: Work, trace: PassTrace
) -> None:
    """Experts on the host: normed rows and the router's choice go out, the weighted sums come back."""
    lane, n = plant.lane(layer), ubatch.n_tokens
    host = HostStepWeights(plant.host, layer)
    exchange = lane.exchange
    hidden, result = _rows(exchange.hidden, n), _rows(exchange.result, n)
    # the choice fills the buffers from the start: their rows are as wide as the widest layer's
    ids = _shaped(exchange.ids, n, moe.n_used)
    shares = _shaped(exchange.weights, n, moe.n_used)

    def send() -> None:
        assert flow.routed is not None
        hidden[0].copy_(flow.routed.h)
        ids[0].copy_(flow.routed.ids)
        shares[0].copy_(flow.routed.weights)

    def compute() -> None:
        dtype = plant.host.dtype
        routed = Routed(hidden[1].to(dtype), ids[1], shares[1].to(dtype))
        result[1].copy_(experts(routed, host, moe, host))

    def receive() -> None:
        flow.x = combine(flow.x, result[0], flow.shared)
        flow.routed = flow.shared = None

    trip = _Trip(lane, ubatch, layer, "experts", trace)
    trip.run(send, [hidden, ids, shares], compute, work, result, receive)


def _rows(pair: Pair, n: int) -> Pair:
    return pair[0][:n], pair[1][:n]


def _shaped(pair: Pair, n: int, width: int) -> Pair:
    return pair[0].flatten()[: n * width].view(n, width), pair[1].flatten()[: n * width].view(n, width)


class _Trip:
    """Out over the bus, computed on the host's stream, and back."""

    def __init__(self, lane: Lane, ubatch: Ubatch, layer: int, name: str, trace: PassTrace) -> None:
        self._device, self._ubatch, self._layer = lane.device, ubatch, layer
        self._name, self._trace = name, trace

    def run(
        self,
        send: Callable[[], None],
        outgoing: list[Pair],
        compute: Callable[[], None],
        work: Work,
        result: Pair,
        receive: Callable[[], None],
    ) -> None:
        device = self._device
        device.launch("compute", send, Work())
        self._send(outgoing)
        start = self._trace.mark(device, "host")
        with compute_range(self._layer, f"{self._name} on host"):
            device.launch("host", compute, work)
        done = device.event()
        device.record("host", done)
        fields = {"layer": self._layer}
        self._trace.add(device, "host", "cpu_compute", self._name, self._ubatch, start, done, **fields)
        device.wait("compute", done)
        self._receive(result)
        device.launch("compute", receive, Work())

    def _send(self, outgoing: list[Pair]) -> None:
        device, n_bytes = self._device, 0
        start = self._trace.mark(device, "compute")
        for on_device, on_host in outgoing:
            device.copy_out("compute", on_device, on_host)
            n_bytes += on_device.numel() * on_device.element_size()
        sent = device.event()
        device.record("compute", sent)
        self._trace.add(
            device, "compute", "d2h", "copy activations", self._ubatch, start, sent, layer=self._layer, bytes=n_bytes
        )
        device.wait("host", sent)

    def _receive(self, result: Pair) -> None:
        piece = whole_copy(result[1], result[0])
        start = self._trace.mark(self._device, "compute")
        self._device.copy_in("compute", [piece])
        end = self._trace.mark(self._device, "compute")
        self._trace.count_h2d(piece.n_bytes)
        self._trace.add(
            self._device,
            "compute",
            "h2d",
            "copy activations",
            self._ubatch,
            start,
            end,
            layer=self._layer,
            bytes=piece.n_bytes,
        )
