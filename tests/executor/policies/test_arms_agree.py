"""Every arm, the learned ones and all combinations with the cache, gives the same tokens and the same bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from executor.policies import arm_names, arm_traits
from executor.policies.base import PolicyOptions
from tests.executor.engine_runs import open_session, run_pass
from tests.gguf_models import model_path

SAME_DEVICE = [arm for arm in arm_names() if not arm_traits(arm).computes_on_host]
WITHOUT_CACHE = [arm for arm in SAME_DEVICE if not arm_traits(arm).has_cache]
ON_DEVICE = partial(PolicyOptions, op_offload_min_batch=1, gate_min_batch=48, cache_bytes=1 << 20)
FILES = ["llama-dense-Q4_0", "qwen3-dense-Q8_0", "qwen3moe-e8k2-Q4_K"]


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe", *FILES])
def test_all_arms_are_bit_identical(spec: str) -> None:
    """Ubatches of 48 and 20 tokens, then decode; a second pass uses what the first one taught."""
    is_preset = spec.startswith("tiny")
    path = spec if is_preset else str(model_path(spec))
    options: dict[str, Any] = {"layers": 2 if is_preset else None, "synthetic_routing": spec == "tiny-moe"}
    arms = SAME_DEVICE if "moe" in spec else WITHOUT_CACHE
    with open_session(path, arms, policy=ON_DEVICE(), **options) as session:
        runs = {arm: [run_pass(session, arm, 68, 3, 48)[0] for _ in range(2)] for arm in arms}
    results = [result for pair in runs.values() for result in pair]
    assert len({result.logits_digest for result in results}) == 1
    assert len({tuple(result.tokens) for result in results}) == 1
    assert all((result.bytes_h2d > 0) == (arm != "full") for arm, pair in runs.items() for result in pair)


@pytest.mark.parametrize(("arm", "slots"), [("hot", 2), ("hot", 3), ("hot", 4), ("hot+cache", 3)])
def test_any_number_of_slots(arm: str, slots: int) -> None:
    policy = ON_DEVICE(slots=slots)
    with open_session("tiny-moe", ["off", arm], layers=2, policy=policy, synthetic_routing=True) as session:
        runs = [run_pass(session, name, 96, 0, 48, all_logits=True)[0] for name in ("off", arm, arm)]
    assert len({run.logits_digest for run in runs}) == 1
    assert {e.slot for e in runs[2].events if e.stream == "copy"} == set(range(slots))
