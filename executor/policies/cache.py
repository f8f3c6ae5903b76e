"""The `cache` arm: small batches are served from a bank of cached experts on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.arrays import Flags, Int64
from executor.errors import HprofError
from executor.passes import PassResult, Ubatch
from executor.policies.base import DIVIDED_FROM_BANK, FROM_BANK, Item, Plan, Policy, PolicyOptions, Regime
from executor.policies.traits import ArmTraits

if TYPE_CHECKING:
    from executor.weights.transfer_units import TransferUnit

MAX_BATCH = 32  # larger ubatches would evict what generation uses; they only read the bank (llama.cpp's figure)


class Cached(Policy):
    """`inner` with an expert cache: batches of up to MAX_BATCH tokens run on the device, from the bank."""

    def __init__(self, name: str, options: PolicyOptions, inner: Policy, traits: ArmTraits) -> None:
        super().__init__(name, options)
        self.inner, self.traits = inner, traits
        if options.cache_bytes <= 0:
            raise HprofError(f"arm '{name}' needs --moe-cache-mib N: the device memory that its bank may take")

    @property
    def n_slots(self) -> int:
        return self.inner.n_slots

    @property
    def cache_bytes(self) -> int:
        return self.options.cache_bytes

    @property
    def min_warmups(self) -> int:
        return self.inner.min_warmups

    def regime(self, n_tokens: int, unit: TransferUnit) -> Regime:
        if unit.n_experts and n_tokens <= MAX_BATCH:
            return "stream"
        return self.inner.regime(n_tokens, unit)

    def begin_pass(self, *, warmup_number: int | None) -> None:
        self.inner.begin_pass(warmup_number=warmup_number)

    def plan(self, item: Item) -> Plan:
        if not (item.is_moe and item.ubatch.n_tokens <= MAX_BATCH):
            return self.inner.plan(item)
        return DIVIDED_FROM_BANK if self.traits.divides else FROM_BANK

    def divide(self, item: Item, missing: Flags, rows: Int64) -> Flags | None:
        return self.inner.divide(item, missing, rows)

    def describe(self, ubatch: Ubatch, *, streams_others: bool = False) -> str:
        if ubatch.n_tokens > MAX_BATCH:
            return self.inner.describe(ubatch, streams_others=streams_others)
        return self.name if self.traits.divides or streams_others else "cache"

    def observe(self, item: Item, used: Flags) -> None:
        self.inner.observe(item, used)

    def learn(self, result: PassResult) -> None:
        self.inner.learn(result)
