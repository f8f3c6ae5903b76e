"""Ordering records for tests: from the engine, made by hand, and as the check takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from executor.passes import OrderingRecord
from executor.policies.base import PolicyOptions
from profiler.ordering.check import CheckResult, find_violations
from profiler.ordering.operations import operations_of_records
from tests.executor.engine_runs import open_session, run_pass


def check(*passes: Sequence[OrderingRecord]) -> CheckResult:
    return find_violations(operations_of_records(passes))


def without(records: Sequence[OrderingRecord], number: int) -> list[OrderingRecord]:
    return [replace(record) for record in records if record.sequence != number]


def record_engine(
    spec: str, arm: str, kind: str, n_prompt: int = 96, n_gen: int = 2, *, all_logits: bool = False, **options: Any
) -> list[Any]:
    """The records of two passes of an arm; with `all_logits` the last layer of a prompt streams like the others."""
    policy = PolicyOptions(cache_bytes=1 << 20)
    is_moe = spec == "tiny-moe"
    with open_session(
        spec, [arm], kind=kind, policy=policy, synthetic_routing=is_moe, record_ordering=True, **options
    ) as session:
        passes = [run_pass(session, arm, n_prompt, n_gen, 32, repetition=i, all_logits=all_logits) for i in range(2)]
        return [result.ordering for result, _ in passes]
