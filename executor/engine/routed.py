"""The router's choice during a pass: where it comes from, how the host learns it, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from executor.arrays import Flags, Int64, flags_of
from executor.devices.base import Event, Touched
from executor.layers.router import MOST_COUNTED
from executor.passes import ExpertsRecord, Ubatch, pack_flags
from executor.placed_model import PlacedModel
from executor.tracing.pass_trace import PassTrace, copy_range

_STRIDE = 1 << 24  # positions between two token sets in the routing model


@dataclass(slots=True)
class _Copied:
    n_copied: int = 0
    n_hits: int | None = None
    n_misses: int | None = None


@dataclass(frozen=True, slots=True)
class _ReadBack:
    """A router's choice on its way to the host, and the rows that it chose for."""

    ubatch: Ubatch
    event: Event
    ids: torch.Tensor | None = None  # (n, n_used) int64 on the host from then on, where the flags are not


class RoutedFlags:
    """One pass's expert flags: (ubatch, layer, expert), filled by copies from the device as routers run."""

    def __init__(
        self, placed: PlacedModel, ubatches: Sequence[Ubatch], token_set: int, host_flags: torch.Tensor | None
    ) -> None:
        self._placed, self._ubatches = placed, ubatches
        self._first = ubatches[0].n_past if ubatches else 0
        self._position0 = token_set * _STRIDE
        self._host_flags = host_flags
        self._known = None if host_flags is None else host_flags.numpy()
        self._read: dict[tuple[int, int], _ReadBack] = {}
        self._copied: dict[tuple[int, int], _Copied] = {}
        self._given = self._load_given() if placed.routing is not None else {}
        self.is_sent = False
        """Whether choices go to the host with the activations: no flags are read back."""

    def _load_given(self) -> dict[int, torch.Tensor]:
        """Each MoE layer's ids for every token of the pass, on its device, before the clock starts."""
        placed = self._placed
        assert placed.routing is not None
        n = sum(ubatch.n_tokens for ubatch in self._ubatches)
        moe_layers = [layer for layer in range(len(placed.layers)) if placed.moe(layer) is not None]
        ids = {layer: torch.from_numpy(placed.routing.ids(layer, self._position0, n)) for layer in moe_layers}
        if placed.is_simulated:
            return ids
        return {layer: placed.shard(layer).give_ids(layer, choice) for layer, choice in ids.items()}

    def ids(self, ubatch: Ubatch, layer: int) -> torch.Tensor | None:
        """The synthetic choice (n, k) for a ubatch; None where the model's own router decides."""
        given = self._given.get(layer)
        if given is None:
            return None
        start = ubatch.n_past - self._first
        return given[start : start + ubatch.n_tokens]

    def read_back(self, ubatch: Ubatch, layer: int, trace: PassTrace) -> None:
        """Queue the copy of the flags to the host, behind the router on the compute stream."""
        if self.is_sent:
            return
        shard = self._placed.shard(layer)
        device, source = shard.device, shard.flags[layer]
        start = trace.mark(device, "compute")
        target = source if self._host_flags is None else self._host_flags[ubatch.number, layer]
        with copy_range(layer, None, "flags", source.numel()):
            device.copy_out("compute", source, target)
        event = device.event()
        device.record("compute", event)
        self._read[ubatch.number, layer] = _ReadBack(ubatch, event)
        trace.add(device, "compute", "d2h", "copy flags", ubatch, start, event, layer=layer, bytes=source.numel())

    @contextmanager
    def sent_by_others(self) -> Iterator[None]:
        """Inside, flags are not read back: their ubatch is recorded, `note_sent` and `note_flags` will tell them."""
        self.is_sent = True
        try:
            yield
        finally:
            self.is_sent = False

    def note_sent(self, ubatch: Ubatch, layer: int, ids: torch.Tensor, known: Event) -> None:
        """A layer's choice, ids (n, n_used) int64, is on the host since an event, until the next layer's is."""
        self._read[ubatch.number, layer] = _ReadBack(ubatch, known, ids)

    def note_flags(self, ubatch: Ubatch, layer: int, flags: torch.Tensor, known: Event) -> None:
        """A layer's choice, flags (experts,) uint8 on the host, known there since an event."""
        assert self._host_flags is not None
        self._host_flags[ubatch.number, layer].copy_(flags)
        self._read[ubatch.number, layer] = _ReadBack(ubatch, known)

    def wait(self, ubatch: Ubatch, layer: int) -> Flags:
        """Block the host until it knows a layer's choice: the one wait inside a ubatch."""
        device, flags, read = self._placed.shard(layer).device, self._host_flags, self._read[ubatch.number, layer]
        device.synchronize(read.event)
        if self._known is not None and read.ids is not None:
            row = self._known[ubatch.number, layer]
            row[:] = 0
            row[read.ids.numpy()] = 1
        if flags is not None:
            device.on_thread("read the router's flags", lambda: Touched(reads=[flags[ubatch.number, layer]]))
        return self.flags(ubatch, layer)

    def flags(self, ubatch: Ubatch, layer: int) -> Flags:
        """A choice that has reached the host."""
        moe = self._placed.moe(layer)
        assert moe is not None
        if self._known is None:
            ids = self.ids(ubatch, layer)
            assert ids is not None
            return flags_of(ids.numpy().ravel(), moe.n_experts)
        row: NDArray[np.uint8] = self._known[ubatch.number, layer, : moe.n_experts]
        return row.astype(np.bool_)

    def rows(self, ubatch: Ubatch, layer: int) -> Int64:
        """How many of a ubatch's rows chose each expert, (n_experts,), once that has reached the host.

        `layers.router.MOST_COUNTED` stands for more.
        """
        moe = self._placed.moe(layer)
        assert moe is not None
        if self._known is not None:
            return self._known[ubatch.number, layer, : moe.n_experts].astype(np.int64)
        ids = self.ids(ubatch, layer)
        assert ids is not None
        return np.minimum(np.bincount(ids.numpy().ravel(), minlength=moe.n_experts), MOST_COUNTED)

    def note_copied(self, ubatch: Ubatch, layer: int, n_copied: int, hits: int | None, misses: int | None) -> None:
        """Keep how many experts crossed the bus for a step, and what the bank had of them (None: it was not asked)."""
        self._copied[ubatch.number, layer] = _Copied(n_copied, hits, misses)

    def distinct(self, ubatch: Ubatch, layer: int) -> int | None:
        """How many experts are in use, where it is known before the pass runs (the sim's cost model asks)."""
        ids = self.ids(ubatch, layer) if self._placed.is_simulated else None
        return None if ids is None else int(np.unique(ids.numpy()).size)

    def share(self, ubatch: Ubatch, layer: int, experts: Flags) -> float:
        """Which share of the tokens' choices are of these experts, where ids are known (the sim's cost model asks)."""
        ids = self.ids(ubatch, layer) if self._placed.is_simulated else None
        return 1.0 if ids is None else float(experts[ids.numpy()].mean())

    def chosen(self, ubatch: Ubatch, layer: int, n_last: int) -> tuple[Flags, Flags] | None:
        """All experts of a lone token and the `n_last` that it ranks last, (n_experts,), where ids are known before the
        pass runs."""
        ids, moe = self.ids(ubatch, layer) if self._placed.is_simulated else None, self._placed.moe(layer)
        if ids is None or moe is None:
            return None
        row = ids[0].numpy()
        return flags_of(row, moe.n_experts), flags_of(row[-n_last:], moe.n_experts)

    def records(self) -> list[ExpertsRecord]:
        """One record a MoE layer and ubatch that ran. Call after the pass."""
        return [self._record(read.ubatch, layer) for (_, layer), read in self._read.items()]

    def _record(self, ubatch: Ubatch, layer: int) -> ExpertsRecord:
        used = self.flags(ubatch, layer)
        copied = self._copied.get((ubatch.number, layer), _Copied())
        return ExpertsRecord(
            phase=ubatch.phase,
            ubatch=ubatch.number,
            layer=layer,
            n_tokens=ubatch.n_tokens,
            n_experts=used.size,
            distinct=int(used.sum()),
            copied=copied.n_copied,
            hits=copied.n_hits,
            misses=copied.n_misses,
            used=pack_flags(used),
        )
