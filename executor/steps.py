"""The steps of a layer, issued to streams: mixer, dense FFN, router, shared expert, experts.

Each step's function runs later, on a compute stream; what it needs at issue time is sizes and where its
weights will be. `Flow` carries the activations from step to step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from executor.devices.base import Work
from executor.host_steps import experts_on_host, ffn_on_host
from executor.layers.ffn import dense_ffn
from executor.layers.mixer import mix
from executor.layers.moe import Routed, combine, experts, route, route_given, shared_expert, used_flags
from executor.layers.weights import ExpertStack, Weights
from executor.nvtx_ranges import compute_range
from executor.plant import Plant
from executor.policies.base import Item, Policy, Ubatch
from executor.routed import RoutedFlags
from executor.shape import MoeFfn
from executor.splits import StepKind
from executor.streamer import Fetched, Streamer
from executor.trace import PassTrace
from executor.weights import SlotExperts, StepWeights
from executor.work import dense_work, experts_work, mix_work


@dataclass(slots=True)
class Flow:
    """What a ubatch carries through the layers. Written only by functions on compute streams, in order."""

    x: torch.Tensor
    routed: Routed | None = None
    shared: torch.Tensor | None = None


class StepRunner:
    """Issues the layers of one pass."""

    def __init__(
        self,
        plant: Plant,
        policy: Policy,
        streamers: list[Streamer],
        items: dict[tuple[int, int], Item],
        routed: RoutedFlags,
        trace: PassTrace,
    ) -> None:
        self._plant, self._policy, self._streamers = plant, policy, streamers
        self._items, self._routed, self._trace = items, routed, trace
        self._eps = plant.model.shape.norm_eps

    def layer(self, ubatch: Ubatch, layer: int, flow: Flow) -> None:
        """Issue one layer of one ubatch."""
        self._mix(ubatch, layer, flow)
        moe = self._plant.moe(layer)
        if moe is None:
            self._ffn(ubatch, layer, flow)
            return
        self._route(ubatch, layer, flow, moe)
        if moe.n_ff_shared:
            self._shared(ubatch, layer, flow, moe)
        self._experts(ubatch, layer, flow, moe)

    def _mix(self, ubatch: Ubatch, layer: int, flow: Flow) -> None:
        plant, lane = self._plant, self._plant.lane(layer)
        shape, state = plant.layers[layer], lane.states[layer]
        work = mix_work(shape, plant.tensors(layer, "mix"), ubatch.n_tokens, ubatch.n_past)

        def compute(w: Weights) -> None:
            flow.x = mix(flow.x, w, shape, state, ubatch.n_past, self._eps)

        self._with_weights(ubatch, layer, "mix", "attn", compute, work)

    def _ffn(self, ubatch: Ubatch, layer: int, flow: Flow) -> None:
        work = dense_work(self._plant.tensors(layer, "ffn"), ubatch.n_tokens)
        if self._is_on_host(ubatch, layer, "ffn"):
            ffn_on_host(self._plant, ubatch, layer, flow, work, self._trace)
            return

        def compute(w: Weights) -> None:
            flow.x = dense_ffn(flow.x, w, self._eps)

        self._with_weights(ubatch, layer, "ffn", "ffn", compute, work)

    def _route(self, ubatch: Ubatch, layer: int, flow: Flow, moe: MoeFfn) -> None:
        flags = self._plant.lane(layer).flags[layer][: moe.n_experts]
        given = self._routed.ids(ubatch, layer)

        def compute(w: Weights) -> None:
            if given is None:
                flow.routed = route(flow.x, w, moe, self._eps)
            else:
                flow.routed = route_given(flow.x, w, moe, given, self._eps)
            flags.copy_(used_flags(flow.routed.ids, moe.n_experts))

        work = dense_work(self._plant.tensors(layer, "router"), ubatch.n_tokens)
        self._with_weights(ubatch, layer, "router", "router", compute, work)
        self._routed.read_back(ubatch, layer, self._trace)

    def _shared(self, ubatch: Ubatch, layer: int, flow: Flow, moe: MoeFfn) -> None:
        def compute(w: Weights) -> None:
            assert flow.routed is not None
            flow.shared = shared_expert(flow.routed.h, w, moe)

        work = dense_work(self._plant.tensors(layer, "shared"), ubatch.n_tokens)
        self._with_weights(ubatch, layer, "shared", "shared", compute, work)

    def _experts(self, ubatch: Ubatch, layer: int, flow: Flow, moe: MoeFfn) -> None:
        plant = self._plant
        distinct = self._routed.distinct(ubatch, layer) or moe.n_experts
        work = experts_work(plant.tensors(layer, "experts"), moe, ubatch.n_tokens, distinct)
        if self._is_on_host(ubatch, layer, "experts"):
            experts_on_host(plant, ubatch, layer, flow, moe, work, self._trace)
            return
        item = self._items.get((ubatch.number, self._split_number(layer, "experts")))
        streamer = self._streamers[plant.lane_of[layer]]
        fetched = None
        if item is not None:
            used = self._routed.wait(ubatch, layer) if streamer.needs_routing(item) else None
            fetched = streamer.fetch(item, used)
            self._routed.note_copied(ubatch, layer, fetched.n_copied, fetched.n_hits, fetched.n_misses)
        self._launch_experts(ubatch, layer, flow, moe, work, fetched)
        if item is not None:
            streamer.release(item)

    def _launch_experts(
        self, ubatch: Ubatch, layer: int, flow: Flow, moe: MoeFfn, work: Work, fetched: Fetched | None
    ) -> None:
        plant, lane = self._plant, self._plant.lane(layer)
        split = plant.split_of.get((layer, "experts"))
        stack: ExpertStack = SlotExperts(
            plant.model,
            lane.store,
            layer,
            split if fetched is not None else None,
            fetched.buffer if fetched is not None else None,
            fetched.place_of if fetched is not None else None,
        )
        biases = StepWeights(plant.model, lane.store, layer, None, None)

        def compute() -> None:
            assert flow.routed is not None
            y = experts(flow.routed, stack, moe, biases)
            flow.x = combine(flow.x, y, flow.shared)
            flow.routed = flow.shared = None

        self._launch(ubatch, layer, "experts", compute, work, fetched)

    def _with_weights(
        self,
        ubatch: Ubatch,
        layer: int,
        kind: StepKind,
        name: str,
        compute: Callable[[Weights], None],
        work: Work,
    ) -> None:
        """Launch a dense step, streaming its split first where it has one in this ubatch."""
        plant, lane = self._plant, self._plant.lane(layer)
        item = self._items.get((ubatch.number, self._split_number(layer, kind)))
        streamer = self._streamers[plant.lane_of[layer]]
        fetched = streamer.fetch(item, None) if item is not None else None
        split = item.split if item is not None else None
        weights = StepWeights(plant.model, lane.store, layer, split, fetched.buffer if fetched else None)
        self._launch(ubatch, layer, name, lambda: compute(weights), work, fetched)
        if item is not None:
            streamer.release(item)

    def _launch(
        self,
        ubatch: Ubatch,
        layer: int,
        name: str,
        compute: Callable[[], None],
        work: Work,
        fetched: Fetched | None,
    ) -> None:
        device = self._plant.lane(layer).device
        start = self._trace.mark(device, "compute")
        with compute_range(layer, name):
            device.launch("compute", compute, work)
        end = self._trace.mark(device, "compute")
        waits_for = fetched.waits_for if fetched is not None else None
        self._trace.add(device, "compute", "compute", name, ubatch, start, end, layer=layer, waits_for=waits_for)

    def _split_number(self, layer: int, kind: StepKind) -> int:
        split = self._plant.split_of.get((layer, kind))
        return -1 if split is None else split.number

    def _is_on_host(self, ubatch: Ubatch, layer: int, kind: StepKind) -> bool:
        split = self._plant.split_of.get((layer, kind))
        return split is not None and self._policy.regime(ubatch.n_tokens, split) == "cpu"
