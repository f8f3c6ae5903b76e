"""Whether arms computed the same: their tokens, and the bits of their logits, pass by pass."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from profiler.report.pairs import pair_keys


@dataclass(frozen=True, slots=True)
class Sameness:
    """Null: one arm alone, or nothing to compare was recorded. The names are of arms that differ from the first."""

    same_tokens: bool | None
    bit_identical: bool | None
    other_tokens: list[str] = field(default_factory=list)
    other_logits: list[str] = field(default_factory=list)
    apart: list[list[str]] = field(default_factory=list)  # groups of arms with logits that are not compared with others


def sameness(passes: Mapping[str, pd.DataFrame], on_host: set[str], in_part: Mapping[str, Hashable]) -> Sameness:
    """Compare each arm's passes with the first arm's of the same boot and repetition, which had the same input.

    passes: rows of the `passes` table by arm, the baseline first. on_host: arms that compute on the host; they
    round differently, so their logits are left out. in_part: arms that did so for some ubatches, such as decode
    below the offload threshold, each with what it computes there; the logits of those with the same are compared with
    one another's, and the other arms' likewise.
    """
    tokens = {arm: _by_pair(rows, "tokens", tuple) for arm, rows in passes.items()}
    same_tokens, other_tokens = _compare(tokens)
    digests = {arm: found for arm, rows in passes.items() if (found := _by_pair(rows, "logits_digest", str))}
    groups = _groups([arm for arm in digests if arm not in on_host], in_part)
    compared = [_compare({arm: digests[arm] for arm in group}) for group in groups]
    verdicts = [same for same, _ in compared if same is not None]
    apart = [*groups, [arm for arm in digests if arm in on_host]]
    apart = [group for group in apart if group]
    return Sameness(
        same_tokens,
        all(verdicts) if verdicts else None,
        other_tokens,
        [arm for _, other in compared for arm in other],
        apart if len(apart) > 1 else [],
    )


def _groups(arms: Iterable[str], in_part: Mapping[str, Hashable]) -> list[list[str]]:
    """The arms that compute in the same places: those with the same part on the host, then those with none."""
    groups: dict[Hashable, list[str]] = {}
    for arm in sorted(arms, key=lambda arm: arm not in in_part):
        groups.setdefault((arm in in_part, in_part.get(arm)), []).append(arm)
    return list(groups.values())


def _by_pair(rows: pd.DataFrame, column: str, kind: Any) -> dict[tuple[Any, ...], Any]:
    """The column's values by (boot, repetition), without nulls and empty lists."""
    found = zip(pair_keys(rows), rows[column], strict=True)
    return {key: kind(value) for key, value in found if _is_told(value)}


def _is_told(value: Any) -> bool:
    return len(value) > 0 if hasattr(value, "__len__") else bool(pd.notna(value))


def _compare(values: Mapping[str, Mapping[tuple[Any, ...], Any]]) -> tuple[bool | None, list[str]]:
    if len(values) < 2:
        return None, []
    first, *others = values
    shared = {arm: values[first].keys() & values[arm].keys() for arm in others}
    if not any(shared.values()):
        return None, []
    differ = [arm for arm, keys in shared.items() if any(values[first][key] != values[arm][key] for key in keys)]
    return not differ, differ
