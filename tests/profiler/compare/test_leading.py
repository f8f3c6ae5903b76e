"""What `hprof compare` says first, of changes made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from profiler.arithmetic.chances import TwoSides
from profiler.arithmetic.stats import Comparison
from profiler.compare.data import PER_TOKEN, Change
from profiler.compare.leading import cause, leading_changes
from profiler.metrics.passes import CellKey

CELL = CellKey(n_prompt=512, n_gen=32, n_ubatch=512, n_depth=0)


def changed(figures: Mapping[str, tuple[float, float]], arm: str = "on", verdict: str = "slower") -> list[Change]:
    return [
        Change(
            CELL, CELL, arm, arm, name, "token" if name in PER_TOKEN else "pass", a, b, 6, 6, 6, "pairs",
            Comparison(b / a, b / a, b / a, 6, verdict) if a and b else None,  # type: ignore[arg-type]
            None, TwoSides(np.full(6, a), np.full(6, b)),
        )
        for name, (a, b) in figures.items()
    ]  # fmt: skip


SLOWER = {
    "idle_ns": (1.0, 900.0),  # the largest relative change, of a small figure
    "decode_tokens_per_s": (10.0, 10.1),
    "ttft_ns": (1e9, 1.5e9),
    "prefill_tokens_per_s": (300.0, 200.0),
    "wall_ns": (1e6, 1.5e6),
    "exposed_copy_ns": (2e5, 8e5),
    "busy_compute_ns": (8e5, 7e5),
    "bytes_h2d": (1e6, 2e6),
}


def test_ttft_prefill_and_decode_lead_and_the_place_that_changed_most() -> None:
    found = leading_changes([*changed({"ttft_ns": (1e9, 1.1e9)}, "calm"), *changed(SLOWER)])
    assert [(change.arm, change.figure) for change in found] == [
        ("on", "ttft_ns"),
        ("on", "prefill_tokens_per_s"),
        ("on", "decode_tokens_per_s"),
        ("calm", "ttft_ns"),
    ]


def test_the_cause_is_the_part_of_the_time_that_moved_most_the_same_way() -> None:
    told = cause(changed(SLOWER))
    assert told is not None
    assert told.endswith(
        ": 500 us more a token; above all exposed copy, 200 us → 800 us a token; against it compute, 800 us → 700 us; "
        "2.00 x the bytes copied."
    )


def test_no_cause_is_made_up() -> None:
    even = {"ttft_ns": (1e9, 1e9), "wall_ns": (1e6, 1.001e6), "exposed_copy_ns": (1e5, 1e3)}
    assert cause(changed(even)) is None
    assert cause(changed(SLOWER, verdict="no difference")) is None
    assert cause([replace(change, different="other weights") for change in changed(SLOWER)]) is None
    told = cause(changed({"ttft_ns": (1e9, 2e9), "wall_ns": (1e6, 2e6)}))
    assert told is not None
    assert "is not known" in told
