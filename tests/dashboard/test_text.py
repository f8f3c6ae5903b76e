"""Words: verdicts as sentences, labels, and text of unknown origin."""

from __future__ import annotations

import pytest

from dashboard.overview.cards import judged, relative, with_interval
from dashboard.overview.findings import in_a_line
from dashboard.text import (
    arm_label,
    cell_key,
    escape_markdown,
    for_plotly,
    headline,
    subject,
)
from executor.policies import find_traits
from profiler.arithmetic.stats import Comparison, Estimate, Verdict
from profiler.findings import Finding
from profiler.manifest import ManifestArm
from profiler.metrics import FIGURES, Figure
from profiler.metrics.lane_titles import lane_title, short_lane_title
from profiler.metrics.timeline import Lane
from profiler.report.cells import CellSizes


def compared(ratio: float, verdict: Verdict) -> Comparison:
    return Comparison(ratio, None, None, 6, verdict)


@pytest.mark.parametrize(
    ("ttft", "prefill", "decode", "sentence"),
    [
        (
            compared(1.12, "slower"),
            compared(1.31, "faster"),
            compared(1.0, "no difference"),
            "Prefetch made the first token 0.89 x and prefill 1.31 x as fast as off; decode stayed the same.",
        ),
        (
            compared(0.5, "inconclusive"),
            compared(1.5, "inconclusive"),
            None,
            "Prefetch against off: the first token and prefill are unclear.",
        ),
        (
            compared(0.985, "faster"),
            compared(1.01, "inconclusive"),
            compared(1.0, "no difference"),
            "Prefetch made the first token 1.015 x as fast as off; decode stayed the same; prefill is unclear.",
        ),
        (None, None, None, "off and on cannot be compared here."),
    ],
)
def test_headline(
    ttft: Comparison | None, prefill: Comparison | None, decode: Comparison | None, sentence: str
) -> None:
    found = {"ttft_ns": ttft, "prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode}
    assert headline("off", "on", "Prefetch", found) == sentence


def test_a_trace_without_phases_is_judged_by_its_passes() -> None:
    faster = {"wall_ns": compared(0.75, "faster")}
    assert headline("off", "on", "Prefetch", faster) == "Prefetch made the pass 1.33 x as fast as off."
    unclear = {"ttft_ns": None, "wall_ns": compared(0.75, "inconclusive")}
    assert headline("off", "on", "Prefetch", unclear) == "Prefetch against off: the pass is unclear."
    both = {"ttft_ns": compared(0.5, "faster"), "wall_ns": compared(0.75, "faster")}
    assert "the pass" not in headline("off", "on", "Prefetch", both)


def test_what_programs_printed_is_told_before_their_wall_time() -> None:
    found = {"t/s": compared(2.0, "faster"), "wall_ns": compared(1.25, "slower")}
    told = headline("off", "on", "Prefetch", found, led_by=("t/s", Figure("t/s", "number", "printed", "higher")))
    assert told == "Prefetch made t/s 2.00 x and the pass 0.80 x as fast as off."


def test_what_was_seen_is_told_where_a_verdict_needs_more() -> None:
    seen = {"ttft_ns": Comparison(0.1, None, None, 2, "inconclusive"), "decode_tokens_per_s": compared(1.0, "faster")}
    told = headline("off", "on", "Prefetch", seen)
    assert told == (
        "Prefetch made decode 1.000 x as fast as off; the first token 10.0 x as fast, by too few runs for a verdict."
    )
    ratios = {"ttft_ns": 0.5, "prefill_tokens_per_s": 2.0, "decode_tokens_per_s": 1.1}
    alike = {name: Comparison(ratio, None, None, 6, "faster") for name, ratio in ratios.items()}
    told = headline("off", "on", "Prefetch", alike)
    assert told == "Prefetch made the first token and prefill 2.00 x and decode 1.10 x as fast as off."
    other = {"decode_tokens_per_s": Comparison(3.12, None, None, 6, "inconclusive", "different workload: other tokens")}
    assert headline("off", "on", "Prefetch", other) == "Prefetch against off: decode 3.12 x as fast, but on other work."
    same = {"decode_tokens_per_s": Comparison(1.1, None, None, 6, "inconclusive", "same work: on the host")}
    assert headline("off", "on", "Prefetch", same) == "Prefetch against off: decode is the same work in both."


def test_a_sign_goes_with_a_verdict_alone() -> None:
    assert (
        judged(Comparison(0.5, 0.4, 0.6, 6, "faster"), FIGURES["ttft_ns"]) == "▲ 2.00 x as fast (1.67 to 2.50): faster"
    )
    assert judged(Comparison(0.5, None, None, 2, "inconclusive"), FIGURES["ttft_ns"]) == "2.00 x as fast: 2 of 6 pairs"
    assert [relative(ratio) for ratio in (0.0, 1.0, 1.21)] == ["none of it", "= the same", "1.21 x as much"]
    same = Comparison(0.5, 0.4, 0.6, 2, "inconclusive", "same work: on the host")
    assert judged(same, FIGURES["ttft_ns"]) == "same work, 2.00 x as fast"


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        (
            "Arm off, -ub 2048 -d 0 (the worst of 12 sizes), GPU 0, a pass (median of 2): idle for 393 ms of 701 ms "
            "(56.1 %), 307 ms of it while the host computed in its place; 163 gaps of 0.1 ms or more.",
            "idle for 393 ms of 701 ms (56.1 %), 307 ms of it while the host computed in its place · "
            "off, -ub 2048 -d 0, GPU 0",
        ),
        (
            f"GPU 0 of process 7, over the trace: 1 GiB in 2 copies, {'x' * 200}.",
            "1 GiB in 2 copies · GPU 0 of process 7",
        ),
        ("No order: two copies of one slot.", "No order: two copies of one slot"),
        (f"Arm on: {'x' * 200}.", f"{'x' * 109}… · on"),
    ],
)
def test_a_finding_in_a_line_tells_what_was_seen_first(evidence: str, line: str) -> None:
    assert in_a_line(Finding("device-idle", "warning", evidence, "Look.")) == line


def test_arms_are_named_by_what_the_manifest_says_of_them() -> None:
    mine = ManifestArm("mine@2", "hot+cache", traits=find_traits("hot+cache"))
    assert arm_label(mine) == "mine@2 (prefetch of the hottest experts with the expert cache)"
    assert subject(mine) == "Prefetching the hottest experts with the expert cache"
    theirs = ManifestArm("on")  # another tool's, whatever its name
    assert (arm_label(theirs), subject(theirs)) == ("on", "The arm on")


HOSTILE = "<script>alert(1)</script> ![x](http://evil/x.png) [a](javascript:1) $E=mc$ :red[b] **c** `d`\n# e"


def test_markdown_of_a_capture_is_shown_as_text() -> None:
    shown = escape_markdown(HOSTILE)
    assert "\n" not in shown
    unescaped = shown.replace("\\\\", "")
    for sign in "<>[]()!`*$#:":
        assert sign not in unescaped.replace(f"\\{sign}", "")
    assert for_plotly("<a href='x'>y</a>&") == "&lt;a href='x'&gt;y&lt;/a&gt;&amp;"


def test_cells_have_a_key() -> None:
    whole = CellSizes(n_prompt=512, n_gen=16, n_ubatch=64, n_depth=0, arms=())
    assert cell_key(whole) == "p512-n16-ub64-d0"
    nothing = CellSizes(None, None, None, None, ())
    assert cell_key(nothing) == "all"


def test_lane_labels_say_no_more_than_tells_lanes_apart() -> None:
    one = Lane("h2d", 1, 0, None)
    assert lane_title(one, [one]) == "copy H2D"
    other = Lane("compute", 2, 1, "7")
    assert lane_title(other, [one, other]) == "GPU 1 · compute · stream 7 · pid 2"
    assert short_lane_title(one, [one]) == "H2D"
    assert short_lane_title(other, [one, other]) == "1 compute 7"


def test_an_interval_is_told_where_its_ends_read_differently() -> None:
    assert with_interval(Estimate(1_850_000, 1_840_000, 1_860_000, 6, 0), "ns") == "1.85 ms [1.84 ms, 1.86 ms]"
    assert with_interval(Estimate(1_850_000, 1_850_001, 1_850_002, 6, 0), "ns") == "1.85 ms"
    assert with_interval(None, "ns") == "not known"
