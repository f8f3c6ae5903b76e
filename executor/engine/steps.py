"""The steps of a layer, issued in order: mixer, dense FFN, router, shared expert, experts.

What each one computes and depends on is said here, how it is launched in `engine.step_launcher`. A step's function runs
later, on a compute stream, and works in place on fixed buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, ParamSpec

import numpy as np
import torch

from executor.arrays import Flags
from executor.devices.base import Event, Touched, Work
from executor.engine.following import Following
from executor.engine.routed import RoutedFlags
from executor.engine.step_launcher import NOT_REPLAYABLE, StepLauncher
from executor.engine.via_host import ExpertsOnHost, FfnOnHost
from executor.engine.work import dense_work, experts_work, host_bytes, mix_work
from executor.layers.attention_kernels import OneToken
from executor.layers.dense import Weights, add_ffn, add_residual
from executor.layers.mixer import add_mixed, mixed
from executor.layers.moe import add_experts, shared_expert
from executor.layers.one_token import norm_serves, router_serves
from executor.layers.router import route, route_given, route_one, rows_by_expert
from executor.model import DeltaNetShape, DenseFfn, Mixer, MoeFfn
from executor.output_rows import behind_mixer
from executor.passes import Ubatch
from executor.placed_model import PlacedModel
from executor.policies.base import Item, Policy
from executor.streaming.streamer import StagedWeights, Streamer
from executor.streaming.substitutes import with_substitutes
from executor.tracing.pass_trace import Inside, PassTrace
from executor.weights.device_weights import SlotExperts, StepWeights

_UNCOUNTED: Final = Work()
P = ParamSpec("P")


class StepRunner:
    """Issues the layers of one pass."""

    def __init__(
        self,
        placed: PlacedModel,
        policy: Policy,
        streamers: Sequence[Streamer],
        items: Mapping[tuple[int, int], Item],
        routed: RoutedFlags,
        trace: PassTrace,
        *,
        records_tokens: bool = False,
    ) -> None:
        """`records_tokens`: decoded tokens are recorded whole, so that their steps need no recording of their own."""
        self._placed, self._policy, self._routed, self._trace = placed, policy, routed, trace
        self._launches = StepLauncher(placed, streamers, items, trace, records_tokens=records_tokens)
        self._eps = placed.model.shape.norm_eps
        self._of_host: dict[tuple[int, int], ExpertsOnHost] = {}

    def layer(self, ubatch: Ubatch, layer: int) -> Ubatch | None:
        """Issue one layer of one ubatch; gives the rows that leave it, None where none do."""
        left = self.before_host(ubatch, layer)
        if left is not None and host_part(self._placed, self._policy, layer, left.n_tokens) != "none":
            device = self._placed.shard(layer).device
            reached = device.event()
            device.record("compute", reached)
            self.at_host(left, layer, reached)
        return left

    def before_host(self, ubatch: Ubatch, layer: int) -> Ubatch | None:
        """The part of a layer that comes before the host has a hand in it (all of it, where it has none)."""
        left = behind_mixer(self._placed.model.shape, layer, ubatch)
        self._mix(ubatch, layer, left)
        if left is None:
            return None
        ffn, part = self._placed.layers[layer].ffn, host_part(self._placed, self._policy, layer, left.n_tokens)
        if isinstance(ffn, DenseFfn):
            if part == "computed":
                self._on_host(left, layer).send(left)
            elif part == "none":
                self._ffn(left, layer, ffn)
            return left
        self._route(left, layer, ffn)
        if ffn.n_ff_shared:
            self._shared(left, layer, ffn)
        if part == "none":
            self._resident_experts(left, layer, ffn)
        elif part == "computed" or self._routed.is_sent or self._may_divide(left, layer):
            self._on_host(left, layer).send(left)
        return left

    def at_host(self, ubatch: Ubatch, layer: int, reached: Event, following: Following | None = None) -> None:
        """The host's part of a layer, from the event that all before it is done, and what the device does behind it.

        That is what `following` queues, which begins with `behind_host`; None: it is issued here.
        """
        placed, ffn = self._placed, self._placed.layers[layer].ffn
        if host_part(placed, self._policy, layer, ubatch.n_tokens) == "computed":
            on_host = self._on_host(ubatch, layer)
            begin = partial(on_host.begin, reached, self._work_of_host(ubatch, layer))
            self._follow(ubatch, layer, following).behind(placed.shard(layer).device, on_host, ubatch, begin)
        elif not isinstance(ffn, DenseFfn):
            self._copied_experts(ubatch, layer, ffn, reached, following)
        else:
            self._ffn(ubatch, layer, ffn)
            if following is not None:
                following.queue()

    def behind_host(self, ubatch: Ubatch, layer: int) -> None:
        """Take in what the host computed for a layer, or may have."""
        if host_part(self._placed, self._policy, layer, ubatch.n_tokens) != "copied":
            self._on_host(ubatch, layer).take_in(ubatch)

    def _follow(self, ubatch: Ubatch, layer: int, following: Following | None) -> Following:
        return following or Following(partial(self.behind_host, ubatch, layer))

    def _work_of_host(self, ubatch: Ubatch, layer: int) -> Work:
        """What the host has to do where it computes a layer's FFN, or all experts."""
        placed, ffn, n, dtype = self._placed, self._placed.layers[layer].ffn, ubatch.n_tokens, self._placed.host.dtype
        if isinstance(ffn, DenseFfn):
            return self._count(dense_work, placed.tensors(layer, "ffn"), n, dtype, host_bytes)
        tensors, distinct = placed.tensors(layer, "experts"), self._distinct(ubatch, layer, ffn)
        return self._count(experts_work, tensors, ffn, n, distinct, dtype, host_bytes)

    def _mix(self, ubatch: Ubatch, layer: int, left: Ubatch | None) -> None:
        """The mixer over all rows; those that are `left` then lie first in the buffers."""
        placed, shard = self._placed, self._placed.shard(layer)
        shape, state = placed.layers[layer], shard.states[layer]
        a = shard.on_device.rows(ubatch.n_tokens)

        one_token = shard.one_token(layer, ubatch.n_past) if ubatch.n_tokens == 1 else None

        n_dropped = ubatch.n_tokens - (0 if left is None else left.n_tokens)

        def compute(w: Weights) -> None:
            if not n_dropped:
                add_mixed(a.x, w, shape, state, ubatch.n_past, self._eps, one_token)
                return
            added = mixed(a.x, w, shape, state, ubatch.n_past, self._eps, one_token)
            if left is None:
                return
            x = a.x[n_dropped:]
            add_residual(x, added[n_dropped:], shape.residual_scale)
            a.x[: left.n_tokens].copy_(x)
            shard.skip_rows(n_dropped)

        work = self._count(mix_work, shape, placed.tensors(layer, "mix"), ubatch.n_tokens, ubatch.n_past, placed.dtype)
        key = _position_key(shape.mixer, ubatch.n_past, one_token)
        key = (key, n_dropped) if n_dropped else key
        inside: Inside = "begin" if norm_serves(a.x) else "nothing"
        self._launches.dense(ubatch, layer, "mix", "attn", compute, work, Touched([a.x], [a.x]), key, inside)

    def _ffn(self, ubatch: Ubatch, layer: int, ffn: DenseFfn) -> None:
        placed = self._placed
        tensors = placed.tensors(layer, "ffn")
        scale = placed.layers[layer].residual_scale
        a = placed.shard(layer).on_device.rows(ubatch.n_tokens)

        def compute(w: Weights) -> None:
            add_ffn(a.x, w, ffn, self._eps, scale)

        work = self._count(dense_work, tensors, ubatch.n_tokens, placed.dtype)
        inside: Inside = "begin" if norm_serves(a.x) else "nothing"
        self._launches.dense(ubatch, layer, "ffn", "ffn", compute, work, Touched([a.x], [a.x]), inside=inside)

    def _route(self, ubatch: Ubatch, layer: int, moe: MoeFfn) -> None:
        shard = self._placed.shard(layer)
        flags = shard.flags[layer][: moe.n_experts]
        given = self._routed.ids(ubatch, layer)
        a = shard.on_device.rows(ubatch.n_tokens)
        kept = a.routed(moe.n_used)

        in_kernels = router_serves(a.x, moe)

        def compute(w: Weights) -> None:
            if in_kernels:
                rows = None if given is None else shard.given_ids[layer]
                route_one(a.x, w, moe, self._eps, kept, flags, rows, shard.begin)
                return
            if given is None:
                routed = route(a.x, w, moe, self._eps)
            else:
                routed = route_given(a.x, w, moe, shard.given_rows(layer, ubatch.n_tokens), self._eps)
            kept.h.copy_(routed.h)
            kept.ids.copy_(routed.ids)
            kept.weights.copy_(routed.weights)
            flags.copy_(rows_by_expert(routed.ids, moe.n_experts))

        work = self._count(dense_work, self._placed.tensors(layer, "router"), ubatch.n_tokens, self._placed.dtype)
        touched = Touched([a.x], [kept.h, kept.ids, kept.weights, flags])
        inside: Inside = "begin and end" if in_kernels else "nothing"
        self._launches.dense(ubatch, layer, "router", "router", compute, work, touched, inside=inside)
        self._routed.read_back(ubatch, layer, self._trace)

    def _shared(self, ubatch: Ubatch, layer: int, moe: MoeFfn) -> None:
        a = self._placed.shard(layer).on_device.rows(ubatch.n_tokens)

        def compute(w: Weights) -> None:
            a.shared.copy_(shared_expert(a.h, w, moe))

        work = self._count(dense_work, self._placed.tensors(layer, "shared"), ubatch.n_tokens, self._placed.dtype)
        self._launches.dense(ubatch, layer, "shared", "shared", compute, work, Touched([a.h], [a.shared]))

    def _resident_experts(self, ubatch: Ubatch, layer: int, moe: MoeFfn) -> None:
        self._launch_experts(ubatch, layer, moe, self._experts_work(ubatch, layer, moe), None)

    def _copied_experts(
        self, ubatch: Ubatch, layer: int, moe: MoeFfn, reached: Event, following: Following | None
    ) -> None:
        """Copied and computed on the device, or divided between device and host."""
        item = self._launches.item(ubatch, layer, "experts")
        assert item is not None
        streamer, used, divided = self._launches.streamer(layer), None, None
        if streamer.may_divide(item):
            used, divided = self._begun_on_host(ubatch, layer, moe, item, reached)
        elif streamer.needs_routing(item):
            used = self._routed.wait(ubatch, layer)
        if used is not None and divided is not None:
            self._beside_host(ubatch, layer, moe, item, used, divided, following)
            return
        takes_in = following is not None and host_part(self._placed, self._policy, layer, ubatch.n_tokens) == "divided"
        work, staged = self._experts_work(ubatch, layer, moe), self._stage_experts(ubatch, layer, item, used)
        self._launch_experts(ubatch, layer, moe, work, staged, closes=not takes_in)
        streamer.release(item)
        if takes_in:
            self._experts_on_host(ubatch, layer, moe).skip(reached)
        if following is not None:
            following.queue()

    def _begun_on_host(
        self, ubatch: Ubatch, layer: int, moe: MoeFfn, item: Item, reached: Event
    ) -> tuple[Flags, Flags | None]:
        """Which experts are in use, and which of them the host has begun to compute; None: none of them.

        The host goes first: its other threads work while this one queues the copies, which takes longer than to begin.
        A lone token's experts are divided by their ranks where that is enough, before anything else is made of them.
        """
        streamer, on_host = self._launches.streamer(layer), self._experts_on_host(ubatch, layer, moe)
        on_host.prepare()  # while the device gets there
        if (n_there := streamer.n_for_host(item, moe.n_used)) > 0:
            work = self._work_beside(ubatch, layer, moe, n_there, n_there / moe.n_used)
            on_host.begin_last_ranked(reached, work, n_there)
            if self._placed.is_simulated:  # whose clock waits
                self._routed.wait(ubatch, layer)
            used, ranked_last = self._routed.chosen(ubatch, layer, n_there) or on_host.chosen(reached, n_there)
            streamer.divide_as(item, ranked_last)
            return used, ranked_last
        used = self._routed.wait(ubatch, layer)
        divided = streamer.divide(item, used, self._routed.rows(ubatch, layer))
        if divided is not None:
            n_there = int(np.count_nonzero(divided))  # all of them are in use
            work = self._work_beside(ubatch, layer, moe, n_there, self._routed.share(ubatch, layer, divided))
            on_host.begin_only(reached, work, divided, n_there)
        return used, divided

    def _work_beside(self, ubatch: Ubatch, layer: int, moe: MoeFfn, n_there: int, share: float) -> Work:
        placed, tensors = self._placed, self._placed.tensors(layer, "experts")
        return self._count(
            experts_work, tensors, moe, ubatch.n_tokens, n_there, placed.host.dtype, host_bytes, share=share
        )

    def _beside_host(
        self,
        ubatch: Ubatch,
        layer: int,
        moe: MoeFfn,
        item: Item,
        used: Flags,
        divided: Flags,
        following: Following | None,
    ) -> None:
        """The host computes the `divided` experts while the others of those in use are copied and computed here."""
        placed, tensors = self._placed, self._placed.tensors(layer, "experts")
        staged = self._stage_experts(ubatch, layer, item, used)
        n_here = int(np.count_nonzero(used)) - int(np.count_nonzero(divided))
        if n_here:
            share = 1 - self._routed.share(ubatch, layer, divided)
            work = self._count(experts_work, tensors, moe, ubatch.n_tokens, n_here, placed.dtype, share=share)
            self._launch_experts(ubatch, layer, moe, work, staged, closes=False)
        self._launches.streamer(layer).release(item)
        on_host = self._experts_on_host(ubatch, layer, moe)
        self._follow(ubatch, layer, following).behind(placed.shard(layer).device, on_host, ubatch)

    def _stage_experts(self, ubatch: Ubatch, layer: int, item: Item, used: Flags | None) -> StagedWeights:
        staged = self._launches.streamer(layer).fetch(item, used)
        self._routed.note_copied(ubatch, layer, staged.n_copied, staged.n_hits, staged.n_misses)
        return staged

    def _launch_experts(
        self, ubatch: Ubatch, layer: int, moe: MoeFfn, work: Work, staged: StagedWeights | None, *, closes: bool = True
    ) -> None:
        """`closes`: nothing of the host's comes before what the shared expert adds."""
        placed, shard = self._placed, self._placed.shard(layer)
        scale = placed.layers[layer].residual_scale
        place_of = staged.place_of if staged is not None else None
        substitutes = staged.substitutes if staged is not None else None
        a = shard.on_device.rows(ubatch.n_tokens)
        adds_shared = closes and moe.n_ff_shared > 0

        def compute() -> None:  # all that a replay need not make again
            unit, buffer = (None, None) if staged is None else (staged.layout, staged.buffer)
            stack = SlotExperts(placed.model, shard.store, layer, unit, buffer, place_of)
            biases = StepWeights(placed.model, shard.store, layer, None, None)
            routed, own = a.routed(moe.n_used), None
            if substitutes is not None:
                routed, own = with_substitutes(routed, substitutes)
            add_experts(a.x, scale, routed, stack, moe, biases, own)
            if adds_shared:
                add_residual(a.x, a.shared, scale)

        # outside bf16 torch's grouped GEMM asks the host for the group sizes, which no replay can do
        from_bank = place_of is not None
        # arms share slots, but each that divides has its own stand-ins
        key: Hashable = from_bank, adds_shared, None if substitutes is None else substitutes.data_ptr()
        key = key if placed.dtype == torch.bfloat16 else NOT_REPLAYABLE

        def touched() -> Touched:
            chosen = a.routed(moe.n_used)
            reads = [a.x, chosen.h, chosen.ids, chosen.weights, *([a.shared] if adds_shared else [])]
            return Touched([*reads, *(row for row in (place_of, substitutes) if row is not None)], [a.x])

        self._launches.step(ubatch, layer, "experts", compute, work, staged, touched, key)

    def _on_host(self, ubatch: Ubatch, layer: int) -> FfnOnHost | ExpertsOnHost:
        ffn = self._placed.layers[layer].ffn
        if isinstance(ffn, DenseFfn):
            return FfnOnHost(self._placed, ubatch.n_tokens, layer, ffn, self._trace)
        return self._experts_on_host(ubatch, layer, ffn)

    def _experts_on_host(self, ubatch: Ubatch, layer: int, moe: MoeFfn) -> ExpertsOnHost:
        key = layer, ubatch.n_tokens
        if key not in self._of_host:
            self._of_host[key] = ExpertsOnHost(self._placed, ubatch.n_tokens, layer, moe, self._trace)
        return self._of_host[key]

    def _count(self, work_of: Callable[P, Work], *args: P.args, **kwargs: P.kwargs) -> Work:
        """A step's work, where the device goes by it: to count it takes longer than to launch a token's step."""
        return work_of(*args, **kwargs) if self._placed.is_simulated else _UNCOUNTED

    def _experts_work(self, ubatch: Ubatch, layer: int, moe: MoeFfn) -> Work:
        placed, distinct = self._placed, self._distinct(ubatch, layer, moe)
        tensors = placed.tensors(layer, "experts")
        return self._count(experts_work, tensors, moe, ubatch.n_tokens, distinct, placed.dtype)

    def _distinct(self, ubatch: Ubatch, layer: int, moe: MoeFfn) -> int:
        return self._routed.distinct(ubatch, layer) or moe.n_experts

    def _may_divide(self, ubatch: Ubatch, layer: int) -> bool:
        item = self._launches.item(ubatch, layer, "experts")
        return item is not None and self._launches.streamer(layer).may_divide(item)


HostPart = Literal["none", "copied", "divided", "computed"]


def host_part(placed: PlacedModel, policy: Policy, layer: int, n_tokens: int) -> HostPart:
    """The host's hand in a layer's FFN or experts: none, it issues their copies, it may also compute some of them, or
    it computes them all."""
    unit = placed.unit_of.get((layer, "ffn" if placed.moe(layer) is None else "experts"))
    if unit is None:
        return "none"
    if policy.regime(n_tokens, unit) == "cpu":
        return "computed"
    return "divided" if unit.n_experts and policy.traits.divides else "copied"


def _position_key(mixer: Mixer, n_past: int, one_token: OneToken | None) -> Hashable:
    """What a mixer's launches depend on besides its tokens: attention on all positions, a delta net on none but 0."""
    if one_token is not None:
        return "rows", one_token.n_rows
    return n_past == 0 if isinstance(mixer, DeltaNetShape) else n_past
