"""A limit is decided by the whole interval, the surer the more cells there are; what is undecided does not pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.errors import HprofError
from profiler.arithmetic.chances import TwoSides
from profiler.arithmetic.stats import Comparison, PairDesign, compare
from profiler.compare import compare_captures
from profiler.compare.data import Change, Gate
from profiler.compare.gate import decide, parse_limit
from profiler.manifest import ManifestArm
from profiler.metrics.figures import Figure
from profiler.metrics.passes import CellKey
from profiler.storage.writer import PassKey, new_capture
from tests.profiler.makers import dense_off_on, dense_result

_CELL = CellKey(512, 16, 64, 0)


def _change(low: float, high: float, figure: str = "ttft_ns", n: int = 6, **changes: Any) -> Change:
    ratio = (low + high) / 2
    against = Comparison(ratio, low, high, n, "inconclusive")
    fields: dict[str, Any] = {"a": 1.0, "b": ratio, "n_a": n, "n_b": n, "pairs": n, "unit": "pairs"}
    fields |= {"against": against, "different": None} | changes
    fields.setdefault("samples", TwoSides(np.full(n, float(fields["a"])), np.full(n, float(fields["b"]))))
    return Change(_CELL, _CELL, "on", "on", figure, "pass", **fields)


def _gate(text: str, changes: list[Change], not_seen: list[str] | None = None) -> Gate:
    limit = parse_limit(text)
    ((gate,), _) = decide([limit], changes, {limit.figure: not_seen or []})
    return gate


@pytest.mark.parametrize(
    ("text", "low", "high", "state"),
    [
        ("ttft>+5%", 1.06, 1.09, "failed"),
        ("ttft>+5%", 0.99, 1.05, "passed"),
        ("ttft>+5%", 1.02, 1.07, "inconclusive"),
        ("ttft>5%", 0.5, 0.6, "passed"),
        ("bytes<-3%", 0.90, 0.96, "failed"),
        ("bytes<-3%", 0.97, 1.10, "passed"),
        ("bytes<-3%", 0.95, 0.98, "inconclusive"),
        (" ttft_ns > +0.5 % ", 1.006, 1.007, "failed"),
    ],
)
def test_the_interval_decides(text: str, low: float, high: float, state: str) -> None:
    limit = parse_limit(text)
    assert _gate(text, [_change(low, high, limit.figure)]).state == state


@pytest.mark.parametrize(
    "change", [_change(1.2, 1.3, n=5), _change(1.2, 1.3, different="another model"), _change(1.0, 1.0, n=1)]
)
def test_too_few_or_other_work_is_inconclusive(change: Change) -> None:
    assert _gate("ttft>+5%", [change]).state == "inconclusive"


def test_no_interval_is_inconclusive() -> None:
    change = _change(1, 1, against=Comparison(1.0, None, None, 6, "inconclusive"))
    assert _gate("ttft>+5%", [change]).state == "inconclusive"


def test_a_figure_that_neither_has_is_inconclusive() -> None:
    gate = _gate("decode<-3%", [_change(1.0, 1.0)])
    assert gate == Gate("decode<-3%", "inconclusive", "neither side has decode to compare; a limit can name ttft")


def test_a_gate_without_its_figure_offers_what_programs_printed_and_no_figure_twice() -> None:
    changes = [_change(1.0, 1.0, figure) for figure in ("wall_ns", "tok/s", "wall_ns", "host_compute_ns")]
    gate = _gate("decode<-3%", changes)
    assert gate.reason == "neither side has decode to compare; a limit can name wall, tok/s"
    assert _gate("decode<-3%", []).reason == "neither side has decode to compare"


def test_from_zero_is_an_endless_rise_and_to_zero_a_whole_fall() -> None:
    assert _gate("exposed>+5%", [_change(1, 1, "exposed_copy_ns", a=0.0, b=9.0, against=None)]).state == "failed"
    assert _gate("exposed>+5%", [_change(1, 1, "exposed_copy_ns", a=9.0, b=0.0, against=None)]).state == "passed"
    assert _gate("hidden<-5%", [_change(1, 1, "hidden_ratio", a=9.0, b=0.0, against=None)]).state == "failed"
    assert _gate("exposed>+5%", [_change(1, 1, "exposed_copy_ns", a=0.0, b=0.0, against=None)]).state == "passed"


@pytest.mark.parametrize(
    ("unit", "pairs", "state"),
    [("boots", 1, "inconclusive"), ("boots", 6, "failed"), ("results", 1, "failed"), ("routings", 1, "inconclusive")],
)
def test_from_zero_needs_as_many_as_any_verdict(unit: str, pairs: int, state: str) -> None:
    """Six repetitions of one process are one measurement; without a clock one result decides."""
    risen = _change(1, 1, "exposed_copy_ns", a=0.0, b=9.0, against=None, unit=unit, pairs=pairs)
    assert _gate("exposed>+5%", [risen]).state == state


def test_the_worst_cell_speaks() -> None:
    gate = _gate("ttft>+5%", [_change(1.0, 1.01), _change(1.2, 1.3), _change(1.4, 1.5)])
    assert gate.state == "failed"
    assert gate.reason == "-p 512 -n 16 -ub 64 -d 0 · on: +45.0 [+40.0, +50.0] %, and 1 more"


@pytest.mark.parametrize(("limit", "worst"), [("bytes>+5%", "+50.0"), ("bytes<-5%", "-40.0")])
def test_the_worst_is_so_by_its_share_and_not_by_its_size(limit: str, worst: str) -> None:
    ends = [(1.5, 2.0, 3.0), (1.1, 10.0, 11.0), (0.6, 2.0, 1.2), (0.9, 0.1, 0.09)]
    changes = [_change(ratio, ratio, "bytes_h2d", a=a, b=b) for ratio, a, b in ends]
    assert f" {worst} " in _gate(limit, changes).reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft", "no limit"), ("ttft>5", "no limit"), ("ttft>=5%", "no limit"), ("__import__('os')>5%", "no limit"),
        ("ttft>+5%; exit", "no limit"), ("ttft>" + "9" * 400 + "%", "no limit"), ("tftt>5%", "did you mean ttft"),
        ("zzz>5%", "the figures are ttft"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(HprofError, match=said):
        parse_limit(text)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("ttft<-5%", "ttft>+5%"), ("decode>+5%", "decode<-5%"), ("prefill>3%", "prefill<-3%"), ("vram<1%", "vram>+1%"),
        ("tok/s>+5%", "tok/s<-5%"), ("step_ms<-5%", "step_ms>+5%"),
    ],
)  # fmt: skip
def test_a_limit_that_would_fail_what_is_better_is_refused(text: str, instead: str) -> None:
    readings = {"tok/s": Figure("tok/s", "number", "", "higher"), "step_ms": Figure("step_ms", "number", "", "lower")}
    with pytest.raises(HprofError, match=re.escape(f'write "{instead}" to fail what is worse.')) as refused:
        parse_limit(text, readings)
    assert str(refused.value).count("\n") == 0
    assert parse_limit(instead, readings).share == float(instead[-3:-1]) / 100


@pytest.mark.parametrize("text", ["bytes<-5%", "bytes>+5%", "decode<+10%", "ttft>-10%", "loss<-1%", "loss>+1%"])
def test_a_limit_may_ask_for_more_and_bound_both_sides_of_what_has_no_better(text: str) -> None:
    limit = parse_limit(text, {"loss": Figure("loss", "number", "")})
    assert limit.above == (">" in text)


def test_what_cannot_be_compared_keeps_a_gate_from_passing_and_not_from_failing() -> None:
    lacks = ["only A has it in -ub 512 · on", "B was not finished and lacks -ub 64 · on"]
    kept, broken = _change(1.0, 1.01), _change(1.2, 1.3)
    gate = _gate("ttft>+5%", [kept], lacks)
    assert gate == Gate("ttft>+5%", "inconclusive", "only A has it in -ub 512 · on, and 1 more", 1)
    assert _gate("ttft>+5%", [kept, broken], lacks).state == "failed"


def _scattered(slower: float, number: int, scatter: float = 0.01) -> Change:
    """Six boots of a cell, B `slower` times as long as A."""
    rng = np.random.default_rng(number)
    a, b = (rng.normal(1, scatter, 6) for _ in range(2))
    a, b = a / a.mean(), slower * b / b.mean()
    against = compare(a, b, better="lower", design=PairDesign(unit="boots"))
    samples = TwoSides(a, b)
    return _change(1, 1, a=float(np.median(a)), b=float(np.median(b)), against=against, samples=samples, unit="boots")


def test_one_clear_regression_of_many_fails() -> None:
    changes = [_scattered(1.1 if number == 20 else 1.0, number) for number in range(36)]
    limit = parse_limit("ttft>+0%")
    ((gate,), ground) = decide([limit], changes)
    assert (gate.state, gate.comparisons, ground.comparisons) == ("failed", 36, 36)
    assert ground.level == pytest.approx(1 - 0.05 / 36)
    assert gate.reason.startswith("-p 512 -n 16 -ub 64 -d 0 · on: +9.9 [")


def _barely() -> Change:
    """Beyond a limit of 0 % by its own interval, and by chance in one of 80 cases."""
    a = np.array([1.0, 1.01, 0.99, 1.02, 0.98, 1.0])
    apart = np.array([0.006, 0.004, 0.016, 0.003, 0.025, 0.012])
    found = compare(a, a + apart, better="lower", design=PairDesign(unit="boots"))
    return _change(1, 1, a=1.0, b=1.01, against=found, samples=TwoSides(a, a + apart), unit="boots")


def test_what_is_beyond_by_itself_is_undecided_among_many_and_decides_with_others() -> None:
    barely, equal = _barely(), [_scattered(1.0, number) for number in range(35)]
    assert _gate("ttft>+0%", [barely]).state == "failed"
    among = _gate("ttft>+0%", [barely, *equal])
    assert among.state == "inconclusive"
    ((among,), _) = decide([parse_limit("ttft>+0%")], [barely, *[_scattered(0.8, n, 0.001) for n in range(35)]])
    assert among.reason.endswith("(beyond, but not by the 99.86 % that 36 comparisons ask for)")
    assert _gate("ttft>+0%", [barely] * 36).state == "failed"


def test_all_limits_are_one_decision() -> None:
    fast = [_scattered(0.8, n, 0.001) for n in range(18)]
    limits = [parse_limit("ttft>+0%"), parse_limit("ttft>+1%")]
    gates, ground = decide(limits, [_barely(), *fast])
    assert ([gate.state for gate in gates], ground.comparisons) == (["inconclusive", "inconclusive"], 38)
    assert [gate.comparisons for gate in gates] == [19, 19]


def test_figures_that_never_scatter_ask_no_more_of_the_others() -> None:
    bytes_ = [_change(1.2, 1.2, "bytes_h2d", a=1.0, b=1.2), *[_change(1.0, 1.0, "bytes_h2d") for _ in range(40)]]
    limits = [parse_limit("ttft>+0%"), parse_limit("bytes>+5%")]
    gates, ground = decide(limits, [_barely(), *bytes_])
    assert ([gate.state for gate in gates], ground.comparisons) == (["failed", "failed"], 1)


def test_a_rise_from_zero_that_chance_gives_is_undecided() -> None:
    """Copies exposed in about half of the passes: A's median happens to be 0 and B's not."""
    a, b = np.array([0.0, 0, 0, 0, 5, 4]), np.array([5.0, 4, 0, 5, 4, 0])
    change = _change(1, 1, "exposed_copy_ns", a=0.0, b=4.0, against=None, samples=TwoSides(a, b, are_pairs=False))
    assert _gate("exposed>+5%", [change]).state == "inconclusive"


def test_a_gate_does_not_pass_on_what_an_unfinished_side_lacks(tmp_path: Path) -> None:
    """A build that dies at the second arm has kept no limit there."""
    whole = str(dense_off_on(tmp_path / "a").path)
    writer = new_capture(tmp_path / "b", arms=[ManifestArm("off")], model={"name": "tiny"})
    for order in range(6):
        writer.plan_pass(order, PassKey("off", 4, 0, 8, 2, order, order, 0))
        writer.record_pass(order, dense_result())
    (gate,) = compare_captures(whole, str(tmp_path / "b"), fail_on=["vram>+5%"]).gates
    assert gate.state == "inconclusive"
    assert gate.reason == "B was not finished and lacks -p 8 -n 2 -ub 4 -d 0 · on"
    writer.finish()
    (gate,) = compare_captures(whole, str(tmp_path / "b"), fail_on=["vram>+5%"]).gates
    assert gate.state == "passed"


def test_a_gate_does_not_pass_where_one_side_alone_has_its_figure(tmp_path: Path) -> None:
    for name, held in (("a", {"vram_peak": 1000}), ("b", {})):
        writer = new_capture(tmp_path / name, arms=[ManifestArm("x")])
        for order in range(6):
            writer.add_pass_row(order, PassKey("x", 512, 0, 512, 0, order, order, 0), t_start=0, t_end=1000, **held)
        writer.finish()
    (gate,) = compare_captures(str(tmp_path / "a"), str(tmp_path / "b"), fail_on=["vram>+5%"]).gates
    assert (gate.state, gate.reason) == ("inconclusive", "only A has it in -p 512 -n 0 -ub 512 -d 0 · x")
