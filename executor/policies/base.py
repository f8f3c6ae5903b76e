"""The Policy seam: an arm decides, for each transfer unit of each ubatch, what to copy, when, and how.

The engine and the streamer carry a decision out and know no arm by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from executor.arrays import Flags, Int64
from executor.passes import PassResult, Ubatch
from executor.policies.traits import ArmTraits

if TYPE_CHECKING:  # it needs torch, and reports ask policies about themselves without
    from executor.weights.transfer_units import TransferUnit

Regime = Literal["stream", "cpu"]
Eviction = Literal["lru", "frequency"]
"""What makes room in the expert cache: what was used longest ago, or least often."""


@dataclass(frozen=True, slots=True)
class Item:
    """One transfer unit in one ubatch, in the order in which a pass streams them. `number` counts from 0 a pass."""

    number: int
    ubatch: Ubatch
    unit: TransferUnit
    follows_idle: bool = False
    """Whether its device waits for other devices before it, so that its link is free meanwhile."""

    @property
    def is_moe(self) -> bool:
        """Whether the unit holds a layer's experts."""
        return self.unit.n_experts > 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision.

    `inline`: copied on the compute stream when the step is reached; `ahead`: on the copy stream, up to the
    policy's lookahead before it. `whole`: all bytes; `selective`: the router's choice, of which `hot` experts
    go ahead. `bank`: served from the expert cache instead of a slot. `divided`: of the experts in use that are not
    on the device, the host computes those that `Policy.divide` names, and the others are copied.
    """

    when: Literal["inline", "ahead"]
    what: Literal["whole", "selective", "bank"]
    hot: Flags | None = None
    divided: bool = False

    def __post_init__(self) -> None:
        # The bank is written when the router's choice is known: a copy that ran before would read stale bytes.
        if self.when == "ahead" and self.what == "bank":
            raise ValueError("what is served from the bank cannot be copied ahead")
        if self.divided and not self.needs_routing:
            raise ValueError("only what the router chose can be divided between device and host")

    @property
    def needs_routing(self) -> bool:
        """Whether the host must know the router's choice before the copy is complete."""
        return self.what != "whole"


INLINE_WHOLE = Plan("inline", "whole")
INLINE_SELECTIVE = Plan("inline", "selective")
AHEAD_WHOLE = Plan("ahead", "whole")
FROM_BANK = Plan("inline", "bank")
DIVIDED_SELECTIVE = Plan("inline", "selective", divided=True)
DIVIDED_FROM_BANK = Plan("inline", "bank", divided=True)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What the user can set about arms."""

    slots: int = 2
    gate_min_batch: int = 512
    op_offload_min_batch: int = 32
    cache_bytes: int = 0
    cache_policy: Eviction = "lru"


class Policy(ABC):
    """One arm. Lives as long as the run: what it learns in a pass serves the later ones.

    Each class sets `traits`, what is true of it by design, or inherits them.
    """

    traits: ArmTraits

    def __init__(self, name: str, options: PolicyOptions) -> None:
        self.name = name
        self.options = options

    @property
    def n_slots(self) -> int:
        """How many slots (device buffers as large as the largest unit) the arm needs."""
        return 1

    @property
    def streams_ahead(self) -> bool:
        """Whether the arm ever copies on the copy stream; then pageable host memory is of no use."""
        return self.n_slots > 1

    @property
    def cache_bytes(self) -> int:
        """The size of the expert cache's bank."""
        return 0

    @property
    def min_warmups(self) -> int:
        """Warm-up passes that the arm needs to learn what it decides by."""
        return 1

    def regime(self, n_tokens: int, unit: TransferUnit) -> Regime:
        """Whether a host tensor is copied and computed on the device, or computed on the host."""
        return "stream" if n_tokens >= self.options.op_offload_min_batch else "cpu"

    def begin_pass(self, *, warmup_number: int | None) -> None:  # noqa: B027
        """A pass begins; `warmup_number` counts the arm's warm-ups in this cell, None in measured passes."""

    @abstractmethod
    def plan(self, item: Item) -> Plan:
        """Decide about one item. Called once an item, before any of its bytes move."""

    def n_for_host(self, item: Item, n_missing: int) -> int:
        """How many of `n_missing` experts the host computes, where the item's plan is `divided`.

        Asked in the place of `divide` where a lone token misses all that its router will choose, so that the host can
        begin as soon as it has: those that the router ranked last are the host's.
        """
        return 0

    def divide(self, item: Item, missing: Flags, rows: Int64) -> Flags | None:
        """Which experts of `missing` the host computes, where the item's plan is `divided`; None: none of them.

        Called once an item, when the router has chosen. `missing` (n_experts,) are in use and not on the device, `rows`
        (n_experts,) how many of the ubatch's rows use each (255 stands for more).
        """
        return None

    def streams(self, n_tokens: int, unit: TransferUnit) -> bool:
        """Whether a unit is copied. Mixers and shared experts are in any regime, as they work beside the device's."""
        return unit.what not in ("ffn", "experts") or self.regime(n_tokens, unit) == "stream"

    def in_effect(self, ubatch: Ubatch, units: Iterable[TransferUnit]) -> str:
        """The policy that served a ubatch, for the trace; `units`: all that the arm has in host memory."""
        kept = list(units)
        if not any(unit.n_experts for unit in kept):
            return self.traits.same_without_experts or self.name
        streams_others = any(not unit.n_experts and self.streams(ubatch.n_tokens, unit) for unit in kept)
        return self.describe(ubatch, streams_others=streams_others)

    def describe(self, ubatch: Ubatch, *, streams_others: bool = False) -> str:
        """An arm that does the same for this ubatch; `streams_others`: with weights beside experts as well."""
        return self.name

    def observe(self, item: Item, used: Flags) -> None:  # noqa: B027 - most arms learn nothing
        """Learn the router's choice for an item, once the host knows it."""

    def learn(self, result: PassResult) -> None:  # noqa: B027
        """Learn from a finished pass's timings."""
