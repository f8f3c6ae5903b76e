"""The steps of a layer, issued to streams: mixer, dense FFN, router, shared expert, experts.

A step's function runs later, on a compute stream, and works in place on the lane's fixed buffers. Its `key`
names everything that it depends on, so that a device may record the launches once and replay them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from executor.devices.base import ReplayKey, Work
from executor.host_steps import experts_on_host, ffn_on_host
from executor.job import Ubatch
from executor.layers.ffn import dense_ffn
from executor.layers.mixer import mix
from executor.layers.moe import combine, experts, route, route_given, shared_expert, used_flags
from executor.layers.weights import Weights
from executor.plant import Plant
from executor.policies.base import Item, Policy
from executor.routed import RoutedFlags
from executor.shape import DeltaNetShape, Mixer, MoeFfn
from executor.streaming.flight import Fetched
from executor.streaming.streamer import Streamer
from executor.tracing.nvtx_ranges import compute_range
from executor.tracing.pass_trace import PassTrace
from executor.weights.splits import StepKind
from executor.weights.step_weights import SlotExperts, StepWeights
from executor.work import dense_work, experts_work, mix_work

NOT_REPLAYABLE = object()


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

    def layer(self, ubatch: Ubatch, layer: int) -> None:
        """Issue one layer of one ubatch."""
        self._mix(ubatch, layer)
        moe = self._plant.moe(layer)
        if moe is None:
            self._ffn(ubatch, layer)
            return
        self._route(ubatch, layer, moe)
        if moe.n_ff_shared:
            self._shared(ubatch, layer, moe)
        self._experts(ubatch, layer, moe)

    def _mix(self, ubatch: Ubatch, layer: int) -> None:
        plant, lane = self._plant, self._plant.lane(layer)
        shape, state = plant.layers[layer], lane.states[layer]
        a = lane.on_device.rows(ubatch.n_tokens)

        def compute(w: Weights) -> None:
            a.x.copy_(mix(a.x, w, shape, state, ubatch.n_past, self._eps))

        work = mix_work(shape, plant.tensors(layer, "mix"), ubatch.n_tokens, ubatch.n_past)
        self._with_weights(ubatch, layer, "mix", "attn", compute, work, _position_key(shape.mixer, ubatch.n_past))

    def _ffn(self, ubatch: Ubatch, layer: int) -> None:
        plant = self._plant
        work = dense_work(plant.tensors(layer, "ffn"), ubatch.n_tokens)
        if self._is_on_host(ubatch, layer, "ffn"):
            ffn_on_host(plant, ubatch, layer, work, self._trace)
            return
        a = plant.lane(layer).on_device.rows(ubatch.n_tokens)

        def compute(w: Weights) -> None:
            a.x.copy_(dense_ffn(a.x, w, self._eps))

        self._with_weights(ubatch, layer, "ffn", "ffn", compute, work)

    def _route(self, ubatch: Ubatch, layer: int, moe: MoeFfn) -> None:
        lane = self._plant.lane(layer)
        flags = lane.flags[layer][: moe.n_experts]
        given = self._routed.ids(ubatch, layer)
        a = lane.on_device.rows(ubatch.n_tokens)
        kept = a.routed(moe.n_used)

        def compute(w: Weights) -> None:
            if given is None:
                routed = route(a.x, w, moe, self._eps)
            else:
                routed = route_given(a.x, w, moe, lane.given_rows(layer, ubatch.n_tokens), self._eps)
            kept.h.copy_(routed.h)
            kept.ids.copy_(routed.ids)
            kept.weights.copy_(routed.weights)
            flags.copy_(used_flags(routed.ids, moe.n_experts))

        work = dense_work(self._plant.tensors(layer, "router"), ubatch.n_tokens)
        self._with_weights(ubatch, layer, "router", "router", compute, work)
        self._routed.read_back(ubatch, layer, self._trace)

    def _shared(self, ubatch: Ubatch, layer: int, moe: MoeFfn) -> None:
        a = self._plant.lane(layer).on_device.rows(ubatch.n_tokens)

        def compute(w: Weights) -> None:
            a.shared.copy_(shared_expert(a.h, w, moe))

        work = dense_work(self._plant.tensors(layer, "shared"), ubatch.n_tokens)
        self._with_weights(ubatch, layer, "shared", "shared", compute, work)

    def _experts(self, ubatch: Ubatch, layer: int, moe: MoeFfn) -> None:
        plant = self._plant
        distinct = self._routed.distinct(ubatch, layer) or moe.n_experts
        work = experts_work(plant.tensors(layer, "experts"), moe, ubatch.n_tokens, distinct)
        if self._is_on_host(ubatch, layer, "experts"):
            experts_on_host(plant, ubatch, layer, moe, work, self._trace)
            return
        item = self._item(ubatch, layer, "experts")
        if item is None:
            self._launch_experts(ubatch, layer, moe, work, None)
            return
        streamer = self._streamers[plant.lane_of[layer]]
        used = self._routed.wait(ubatch, layer) if streamer.needs_routing(item) else None
        fetched = streamer.fetch(item, used)
        self._routed.note_copied(ubatch, layer, fetched.n_copied, fetched.n_hits, fetched.n_misses)
        self._launch_experts(ubatch, layer, moe, work, fetched)
        streamer.release(item)

    def _launch_experts(self, ubatch: Ubatch, layer: int, moe: MoeFfn, work: Work, fetched: Fetched | None) -> None:
        plant, lane = self._plant, self._plant.lane(layer)
        split = fetched.layout if fetched is not None else None
        buffer = fetched.buffer if fetched is not None else None
        place_of = fetched.place_of if fetched is not None else None
        stack = SlotExperts(plant.model, lane.store, layer, split, buffer, place_of)
        biases = StepWeights(plant.model, lane.store, layer, None, None)
        a = lane.on_device.rows(ubatch.n_tokens)

        def compute() -> None:
            added = experts(a.routed(moe.n_used), stack, moe, biases)
            a.x.copy_(combine(a.x, added, a.shared if moe.n_ff_shared else None))

        # outside bf16 torch's grouped GEMM asks the host for the group sizes, which no replay can do
        key = place_of is not None if plant.dtype == torch.bfloat16 else NOT_REPLAYABLE
        self._launch(ubatch, layer, "experts", compute, work, fetched, key)

    def _with_weights(
        self,
        ubatch: Ubatch,
        layer: int,
        kind: StepKind,
        name: str,
        compute: Callable[[Weights], None],
        work: Work,
        key: Hashable = None,
    ) -> None:
        """Launch a dense step, streaming its split first where it has one in this ubatch."""
        plant, lane = self._plant, self._plant.lane(layer)
        item = self._item(ubatch, layer, kind)
        streamer = self._streamers[plant.lane_of[layer]]
        fetched = streamer.fetch(item, None) if item is not None else None
        split = item.split if item is not None else None
        weights = StepWeights(plant.model, lane.store, layer, split, fetched.buffer if fetched else None)
        self._launch(ubatch, layer, name, lambda: compute(weights), work, fetched, key)
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
        key: Hashable,
    ) -> None:
        device = self._plant.lane(layer).device
        buffer = None if fetched is None else fetched.buffer.data_ptr()
        start = self._trace.mark(device, "compute")
        replay = None if key is NOT_REPLAYABLE else ReplayKey((layer, name, ubatch.n_tokens), (buffer, key))
        with compute_range(layer, name):
            device.launch("compute", compute, work, replay)
        end = self._trace.mark(device, "compute")
        waits_for = fetched.waits_for if fetched is not None else None
        self._trace.add(device, "compute", "compute", name, ubatch, start, end, layer=layer, waits_for=waits_for)

    def _item(self, ubatch: Ubatch, layer: int, kind: StepKind) -> Item | None:
        split = self._plant.split_of.get((layer, kind))
        return None if split is None else self._items.get((ubatch.number, split.number))

    def _is_on_host(self, ubatch: Ubatch, layer: int, kind: StepKind) -> bool:
        split = self._plant.split_of.get((layer, kind))
        return split is not None and self._policy.regime(ubatch.n_tokens, split) == "cpu"


def _position_key(mixer: Mixer, n_past: int) -> Hashable:
    """What a mixer's launches depend on besides its tokens: attention on all positions, a delta net on none but 0."""
    return n_past == 0 if isinstance(mixer, DeltaNetShape) else n_past
