"""Whether the arms of a cell computed the same thing: the same tokens, and bit-identical logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd

PAIR_KEYS: Final = ["boot", "repetition"]


@dataclass(frozen=True, slots=True)
class Sameness:
    """Null: one arm alone, or nothing to compare was recorded. The names are of arms that differ from the first."""

    same_tokens: bool | None
    bit_identical: bool | None
    other_tokens: list[str] = field(default_factory=list)
    other_logits: list[str] = field(default_factory=list)
    apart: list[list[str]] = field(default_factory=list)  # groups of arms with logits that are not compared with others


def sameness(passes: Mapping[str, pd.DataFrame], on_host: set[str], in_part: set[str]) -> Sameness:
    """Compare each arm's passes with the first arm's of the same boot and repetition, which had the same input.

    passes: rows of the `passes` table by arm, the baseline first. on_host: arms that compute on the host; they
    round differently, so their logits are left out. in_part: arms that did so for some ubatches, such as decode
    below the offload threshold; their logits are compared with one another's, and the other arms' likewise.
    """
    tokens = {arm: _by_pair(rows, "tokens", tuple) for arm, rows in passes.items()}
    same_tokens, other_tokens = _compare(tokens)
    digests = {arm: found for arm, rows in passes.items() if (found := _by_pair(rows, "logits_digest", str))}
    bit_identical, other_logits, apart = None, [], []
    for alike in (in_part - on_host, passes.keys() - in_part - on_host, on_host):
        arms = [arm for arm in digests if arm in alike]
        apart += [arms] if arms else []
        same, other = _compare({arm: digests[arm] for arm in arms}) if alike is not on_host else (None, [])
        other_logits += other
        bit_identical = same if bit_identical is None else bit_identical and same is not False
    return Sameness(same_tokens, bit_identical, other_tokens, other_logits, apart if len(apart) > 1 else [])


def _by_pair(rows: pd.DataFrame, column: str, kind: Any) -> dict[tuple[Any, ...], Any]:
    """The column's values by (boot, repetition), without nulls and empty lists."""
    keys = rows[PAIR_KEYS].fillna(-1).itertuples(index=False, name=None)
    found = zip(keys, rows[column], strict=True)
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
