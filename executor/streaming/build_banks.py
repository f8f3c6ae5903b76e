"""Shares a device's part of `--moe-cache-mib` out: splits of equal shape share a bank, under one eviction order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from executor.devices.base import Device
from executor.errors import HprofError
from executor.streaming.bank import Bank
from executor.streaming.eviction import Eviction
from executor.weights.splits import Split

_MIB: Final = 1 << 20


def build_banks(
    device: Device, splits: Sequence[Split], n_bytes: int, eviction: Eviction, n_used: Mapping[int, int]
) -> dict[int, Bank]:
    """One bank a group of expert splits of equal shape, by split number; the budget is shared by the groups' bytes.

    `n_used` says how many experts one token of a layer needs. Raises HprofError when a group's share holds
    fewer: it would serve nothing.
    """
    groups: dict[tuple[int, ...], list[Split]] = {}
    for split in splits:
        if split.n_experts:
            places = (number for part in split.parts for number in (part.offset, part.stride))
            groups.setdefault((split.n_experts, split.expert_bytes, *places), []).append(split)
    total = sum(split.n_bytes for group in groups.values() for split in group)
    banks: dict[int, Bank] = {}
    for group in groups.values():
        of_group = sum(split.n_bytes for split in group)
        n_places = min(n_bytes * of_group // total // group[0].expert_bytes, len(group) * group[0].n_experts)
        needed = max(n_used[split.layer] for split in group)
        if n_places < needed:
            enough = -(-needed * group[0].expert_bytes * total // of_group)
            raise HprofError(_too_small(n_bytes, n_places, needed, enough))
        bank = Bank(device, group, n_places, eviction)
        banks.update({split.number: bank for split in group})
    return banks


def _too_small(n_bytes: int, n_places: int, needed: int, enough: int) -> str:
    return (
        f"--moe-cache-mib: each device's share, {n_bytes / _MIB:.1f} MiB, holds {n_places} experts of a layer and one "
        f"token needs {needed}: give at least {-(-enough // _MIB)} MiB for each device"
    )
