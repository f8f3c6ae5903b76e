"""The expert cache's bookkeeping against a model that is too plain to be wrong. Banks: which bytes lie where, in
both layouts of the host's bytes, and how the budget is shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from executor.arrays import Flags
from executor.devices.cpu import CpuDevice
from executor.devices.sim import SimDevice
from executor.errors import HprofError
from executor.model import TensorInfo
from executor.policies.base import Eviction
from executor.streaming.expert_cache import ExpertCacheBuffer, ExpertCacheIndex, build_banks, merge_places
from executor.weights.transfer_units import HostSegment, TensorLayout, TransferUnit

ORDERS: list[Eviction] = ["lru", "frequency"]
N_PLACES = 5

batches = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 6), unique=True, max_size=N_PLACES)), max_size=60
)


class PlainCache:
    """The rule, spelled out: every decision looks at the whole history."""

    def __init__(self, n_places: int, eviction: Eviction) -> None:
        self.n_places, self.eviction = n_places, eviction
        self.history: list[tuple[int, int]] = []
        self.held: set[tuple[int, int]] = set()

    def admit(self, layer: int, experts: list[int]) -> list[bool]:
        """Which of the experts were missed."""
        batch = [(layer, expert) for expert in experts]
        missed = [key not in self.held for key in batch]
        self.history += [key for key in batch if key in self.held]
        for key, is_missed in zip(batch, missed, strict=True):
            if is_missed:
                if len(self.held) == self.n_places:
                    self.held.remove(min(self.held - set(batch), key=self._worth))
                self.held.add(key)
                self.history.append(key)
        return missed

    def _worth(self, key: tuple[int, int]) -> tuple[int, int]:
        last_use = len(self.history) - self.history[::-1].index(key)
        return (0 if self.eviction == "lru" else self.history.count(key), last_use)


def held(cache: ExpertCacheIndex) -> dict[tuple[int, int], int]:
    """What is cached, and where."""
    return {(layer, e): place for layer in range(3) for e, place in cache.lookup(layer, range(200)).items()}


@pytest.mark.parametrize("eviction", ORDERS)
@settings(deadline=None)
@given(batches=batches)
def test_it_keeps_what_the_plain_rule_keeps(eviction: Eviction, batches: list[tuple[int, list[int]]]) -> None:
    cache, plain = ExpertCacheIndex(N_PLACES, eviction), PlainCache(N_PLACES, eviction)
    for layer, experts in batches:
        before = held(cache)
        admission = cache.admit(layer, experts)
        after = held(cache)
        assert admission.missed == plain.admit(layer, experts)
        assert set(after) == plain.held
        assert len(after) <= N_PLACES
        assert admission.experts == experts
        assert admission.places == [after[layer, expert] for expert in experts]
        assert len(set(after.values())) == len(after)
        assert set(after.values()) <= set(range(N_PLACES))
        assert all(before[key] == after[key] for key in before.keys() & after.keys())  # nothing moves


@pytest.mark.parametrize("eviction", ORDERS)
@settings(deadline=None)
@given(batches=batches)
def test_what_the_batch_uses_is_never_evicted(eviction: Eviction, batches: list[tuple[int, list[int]]]) -> None:
    cache = ExpertCacheIndex(N_PLACES, eviction)
    for layer, experts in batches:
        hits = cache.lookup(layer, experts)
        admission = cache.admit(layer, experts)
        places = dict(zip(admission.experts, admission.places, strict=True))
        assert hits.items() <= places.items()
        assert cache.lookup(layer, experts) == places


@settings(deadline=None)
@given(batches=batches)
def test_a_look_up_changes_nothing(batches: list[tuple[int, list[int]]]) -> None:
    cache, untouched = ExpertCacheIndex(3, "lru"), ExpertCacheIndex(3, "lru")
    for layer, experts in batches:
        if len(experts) > 3:
            cache.lookup(layer, experts)
            continue
        assert cache.admit(layer, experts) == untouched.admit(layer, experts)
    assert held(cache) == held(untouched)


def test_lru_and_frequency_part_where_one_expert_is_old_and_popular() -> None:
    kept = {}
    for eviction in ORDERS:
        cache = ExpertCacheIndex(2, eviction)
        for expert in (7, 7, 7, 1, 2):  # 7 is popular, 1 is recent when 2 comes
            cache.admit(0, [expert])
        kept[eviction] = sorted(cache.lookup(0, range(10)))
    assert kept == {"lru": [1, 2], "frequency": [2, 7]}


def test_frequency_remembers_what_it_evicted() -> None:
    cache = ExpertCacheIndex(2, "frequency")
    for expert in (4, 4, 4, 5, 5, 5, 5, 6, 4):  # 6 evicts 4, which comes back: its fourth use
        cache.admit(0, [expert])
    assert sorted(cache.lookup(0, range(10))) == [4, 5]
    cache.admit(0, [6])
    assert sorted(cache.lookup(0, range(10))) == [4, 6]  # four uses each, and 5's were longer ago


@pytest.mark.parametrize("eviction", ORDERS)
def test_more_than_fits_is_told_before(eviction: Eviction) -> None:
    cache = ExpertCacheIndex(3, eviction)
    assert [cache.can_hold(n) for n in (0, 3, 4)] == [True, True, False]


def test_the_ranking_does_not_grow_with_every_use() -> None:
    cache = ExpertCacheIndex(8, "frequency")
    for step in range(5000):
        cache.admit(0, [step % 8])
    order: Any = cache._order
    assert len(order._heap) <= 4 * 8 + 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), unique_by=(lambda t: t[0], lambda t: t[1])))
def test_merged_uploads_cover_each_expert_once(pairs: list[tuple[int, int]]) -> None:
    runs = merge_places(pairs)
    assert sorted((e + i, p + i) for e, p, count in runs for i in range(count)) == sorted(pairs)
    ends = {(e + count, p + count) for e, p, count in runs}
    assert not ends & {(e, p) for e, p, _ in runs}  # no two runs could be one


MIB = 1 << 20
WIDTHS = (16, 8, 24)  # bytes of one expert's gate, up and down
EXPERT_BYTES = sum(WIDTHS)
N_EXPERTS = 8


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(link_gb_s=1000.0, link_latency_us=0.0, n_threads=1)
    yield device
    device.close()


def make_unit(number: int, *, in_place: bool = False, n_experts: int = N_EXPERTS, meta: bool = False) -> TransferUnit:
    """A layer's experts: byte b of expert e's part p holds a number that tells all four."""
    infos = [
        TensorInfo(f"blk.{number}.ffn_{name}_exps.weight", "Q8_0", (n_experts, 1, width), n_experts * width)
        for name, width in zip(("gate", "up", "down"), WIDTHS, strict=True)
    ]
    bytes_of = [content(number, part, n_experts) for part in range(3)]
    if in_place:
        offsets = np.cumsum([0, *(n_experts * width for width in WIDTHS)])[:3].tolist()
        parts = tuple(TensorLayout(i, offset, width) for i, offset, width in zip(infos, offsets, WIDTHS, strict=True))
        segments = tuple(
            HostSegment(torch.from_numpy(data.reshape(-1)), offset, width)
            for data, offset, width in zip(bytes_of, offsets, WIDTHS, strict=True)
        )
    else:
        offsets = np.cumsum([0, *WIDTHS])[:3].tolist()
        parts = tuple(TensorLayout(i, offset, EXPERT_BYTES) for i, offset in zip(infos, offsets, strict=True))
        slab = torch.from_numpy(np.concatenate(bytes_of, axis=1).reshape(-1))
        segments = (HostSegment(slab.to("meta") if meta else slab, 0, EXPERT_BYTES),)
    return TransferUnit(number, number, "experts", parts, n_experts * EXPERT_BYTES, n_experts, segments)


def content(number: int, part: int, n_experts: int = N_EXPERTS) -> NDArray[np.uint8]:
    """(n_experts, width): what a layer's tensor holds."""
    rng = np.random.default_rng((number, part))
    return rng.integers(0, 256, (n_experts, WIDTHS[part]), dtype=np.uint8)


def flags(*experts: int) -> Flags:
    return np.isin(np.arange(N_EXPERTS), experts)


def found(layout: TransferUnit, buffer: torch.Tensor, part: int, place: int) -> list[int]:
    """The bytes of one tensor of the expert at `place`, by the layout that steps read."""
    start = layout.parts[part].offset + place * layout.parts[part].stride
    numbers: list[int] = buffer[start : start + WIDTHS[part]].tolist()
    return numbers


def serve(device: CpuDevice, bank: ExpertCacheBuffer, unit: TransferUnit, *experts: int) -> Any:
    serving = bank.serve(unit, flags(*experts))
    assert serving is not None
    device.copy_in("compute", serving.uploads)
    device.drain()
    return serving


@pytest.mark.parametrize("in_place", [False, True])
def test_served_experts_lie_where_the_device_is_told(device: CpuDevice, in_place: bool) -> None:
    units = [make_unit(number, in_place=in_place) for number in (0, 1)]
    bank = ExpertCacheBuffer(device, units, 5, "lru")
    assert bank.n_bytes == bank.buffer.numel() == 5 * EXPERT_BYTES
    rng = np.random.default_rng(0)
    for step in range(40):
        unit = units[step % 2]
        experts = rng.choice(N_EXPERTS, 1 + step % 5, replace=False).tolist()
        serving = serve(device, bank, unit, *experts)
        assert serving.n_hits + serving.n_misses == len(experts)
        assert serving.n_bytes == serving.n_misses * EXPERT_BYTES
        for expert in experts:
            place = int(serving.place_of[expert])
            for part in range(3):
                want = content(unit.number, part)[expert].tolist()
                assert found(serving.layout, bank.buffer, part, place) == want


def test_a_second_batch_uploads_only_what_is_new(device: CpuDevice) -> None:
    unit = make_unit(0)
    bank = ExpertCacheBuffer(device, [unit], N_EXPERTS, "lru")
    first, second, third = (serve(device, bank, unit, *e) for e in ((0, 1, 2), (1, 2, 6), (0, 1, 2, 6)))
    assert [(s.n_hits, s.n_misses, s.n_bytes) for s in (first, second, third)] == [
        (0, 3, 3 * EXPERT_BYTES),
        (2, 1, EXPERT_BYTES),
        (4, 0, 0),
    ]
    uploads = [sum(piece.n_bytes for piece in s.uploads) for s in (first, second, third)]
    table = 4 * N_EXPERTS  # where each expert lies: one int32 an expert goes with every batch
    assert uploads == [3 * EXPERT_BYTES + table, EXPERT_BYTES + table, table]


def test_neighbours_are_uploaded_as_one_copy(device: CpuDevice) -> None:
    unit = make_unit(0)
    serving = ExpertCacheBuffer(device, [unit], N_EXPERTS, "lru").serve(unit, flags(2, 3, 4, 6))
    assert serving is not None
    assert [piece.n_bytes // EXPERT_BYTES for piece in serving.uploads[:-1]] == [3, 1]


def test_a_batch_that_does_not_fit_is_not_served(device: CpuDevice) -> None:
    unit = make_unit(0)
    bank = ExpertCacheBuffer(device, [unit], 3, "lru")
    serve(device, bank, unit, 0, 1, 2)
    assert bank.serve(unit, flags(3, 4, 5, 6)) is None
    assert bank.cache.lookup(0, range(N_EXPERTS)) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("in_place", [False, True])
def test_cached_experts_move_into_a_slot_as_a_copy_from_the_host_would_put_them(
    device: CpuDevice, in_place: bool
) -> None:
    unit = make_unit(0, in_place=in_place)
    bank = ExpertCacheBuffer(device, [unit], 4, "lru")
    serve(device, bank, unit, 1, 5, 6)
    slot, want = torch.zeros(unit.n_bytes, dtype=torch.uint8), torch.zeros(unit.n_bytes, dtype=torch.uint8)
    bank.copy_cached(unit, bank.cache.lookup(0, [1, 6]), slot)
    device.copy_in("compute", unit.runs(want, flags(1, 6)))
    device.drain()
    assert torch.equal(slot, want)


def test_layers_of_equal_shape_share_a_bank(device: CpuDevice) -> None:
    units = [make_unit(0), make_unit(1), make_unit(2, in_place=True), make_unit(3, n_experts=4)]
    banks = build_banks(device, units, 20 * EXPERT_BYTES, "lru", dict.fromkeys(range(4), 1))
    assert banks[0] is banks[1]
    assert len({id(bank) for bank in banks.values()}) == 3
    assert [banks[n].cache.n_places for n in range(4)] == [11, 11, 5, 2]  # 16 : 8 : 4 of 20, rounded down
    assert sum(bank.n_bytes for bank in {id(b): b for b in banks.values()}.values()) <= 20 * EXPERT_BYTES
    assert device.reserved_bytes == (11 + 5 + 2) * EXPERT_BYTES


def test_a_bank_holds_no_more_than_there_is(device: CpuDevice) -> None:
    banks = build_banks(device, [make_unit(0), make_unit(1)], 100 * MIB, "lru", {0: 2, 1: 2})
    assert banks[0].cache.n_places == 2 * N_EXPERTS


def test_dense_splits_have_no_bank(device: CpuDevice) -> None:
    dense = TransferUnit(0, 0, "ffn", (), 100, 0, ())
    assert build_banks(device, [dense], MIB, "lru", {}) == {}


@pytest.mark.parametrize(("n_bytes", "n_places"), [(0, 0), (EXPERT_BYTES - 1, 0), (3 * EXPERT_BYTES, 3)])
def test_a_bank_too_small_for_one_token_is_refused(device: CpuDevice, n_bytes: int, n_places: int) -> None:
    with pytest.raises(
        HprofError, match=rf"holds {n_places} experts of a layer and one token needs 4: give at least 1 MiB"
    ):
        build_banks(device, [make_unit(0)], n_bytes, "lru", {0: 4})
    assert device.reserved_bytes == 0


def test_on_the_sim_device_the_same_is_decided_without_bytes() -> None:
    sim, unit = SimDevice(), make_unit(0, meta=True)
    bank = ExpertCacheBuffer(sim, [unit], 4, "lru")
    assert bank.serve(unit, flags(0, 1, 2)) is not None
    serving = bank.serve(unit, flags(1, 2, 5))
    assert serving is not None
    assert (serving.n_hits, serving.n_misses, serving.n_bytes) == (2, 1, EXPERT_BYTES)
    assert sim.reserved_bytes == 4 * EXPERT_BYTES
