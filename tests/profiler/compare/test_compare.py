"""Comparisons of hand-made captures, figures checked with pencil and paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from executor.passes import EventRecord, UbatchRecord
from hprof import main
from profiler.compare import Change, CompareResult, compare_captures
from profiler.compare.data import Difference
from profiler.compare.renderers import changes_table, differences_table, headline
from profiler.compare.setting_words import setting_name, setting_value
from profiler.manifest import ManifestArm
from profiler.storage.writer import PassKey, new_capture
from tests.profiler.makers import dense_off_on, dense_result, imported_without_passes, moe_off_on
from tests.profiler.runs import make_capture, small_request


def _bench(path: Path, prefill_ns: list[int], *, n_prompt: int = 512, arm: str = "x", **fields: Any) -> str:
    """A capture of passes with nothing but a prefill time and a length."""
    writer = new_capture(path, **({"source": "llama-bench", "arms": [ManifestArm(arm)]} | fields))
    for order, ns in enumerate(prefill_ns):
        key = PassKey(arm, 512, 0, n_prompt, 0, 0, order, order)  # a process each
        writer.add_pass_row(order, key, prefill_ns=ns, t_start=0, t_end=ns)
    writer.finish()
    return str(path)


def _change(result: CompareResult, figure: str) -> Change:
    (found,) = [change for change in result.changes if change.figure == figure]
    return found


def _holding(path: Path, vram_peak: int) -> str:
    """A capture of six passes that took the same time and held so much device memory."""
    writer = new_capture(path, source="hprof", arms=[ManifestArm("x")])
    for order in range(6):
        key = PassKey("x", 512, 0, 512, 0, order, order, 0)
        writer.add_pass_row(order, key, t_start=0, t_end=1000, vram_peak=vram_peak)
    writer.finish()
    return str(path)


def _noisy(centre: int, n: int = 12) -> list[int]:
    return [int(centre * factor) for factor in np.random.default_rng(centre).normal(1, 0.002, n)]


def test_two_arms_of_one_capture_are_paired(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "c")
    result = compare_captures(f"{tmp_path / 'c'}#off", f"{tmp_path / 'c'}#on")
    ttft = _change(result, "ttft_ns")
    assert ttft.against is not None
    assert (ttft.verdict, ttft.against.pairs) == ("faster", 6)
    assert ttft.against.ratio == pytest.approx(462.5 / 642.5)
    assert [(d.key, d.a, d.b) for d in result.differences] == [("arm", "off", "on"), ("arm.effective", "off", "on")]


def test_gpus_differ_setting_by_setting(tmp_path: Path) -> None:
    h100, a100 = {"name": "H100", "driver": "570", "pcie_width": 16}, {"name": "A100", "driver": "570"}
    a = _bench(tmp_path / "a", [1], machine={"cpu": "x", "gpus": [h100, h100]})
    b = _bench(tmp_path / "b", [1], machine={"cpu": "x", "gpus": [h100, h100, a100]})
    c = _bench(tmp_path / "c", [1], machine={"cpu": "x", "gpus": []})
    assert [(d.key, d.a, d.b) for d in compare_captures(a, b).differences] == [
        ("machine.gpus.count", 2, 3),
        ("machine.gpus.name", "H100", "2 x H100, 1 x A100"),
        ("machine.gpus.pcie_width", 16, "2 x 16, 1 x None"),
    ]
    assert compare_captures(a, c).differences[0] == Difference("machine.gpus.count", 2, None)


def _on_host(*layers: list[int]) -> dict[str, Any]:
    """Manifest fields of an arm whose configurations keep weights of these layers in host memory."""
    return {
        "arms": [ManifestArm("x", options={"effective": {"host_layers": layers[0]}})],
        "placement": {"configurations": [{"host_layers": one} for one in layers]},
    }


def test_layers_are_told_as_ranges_and_given_to_programs_as_numbers(tmp_path: Path) -> None:
    few, many = [1, 2, 3, 5], [*range(1, 81), 90]
    a, b = _bench(tmp_path / "a", [1], **_on_host(few)), _bench(tmp_path / "b", [1], **_on_host(many))
    result = compare_captures(a, b)
    assert differences_table(result).rows == [
        ["layers with weights in host memory", "1-3, 5", "1-80, 90"],
        ["placement.configurations.host_layers", "1-3, 5", "1-80, 90"],
    ]
    assert [(d.a, d.b) for d in result.differences] == [(few, many)] * 2


def test_settings_are_told_in_words() -> None:
    assert setting_name("arm 2.options.effective.vram_slots") == "arm 2: memory of the slots"
    assert setting_value("arm.options.effective.vram_slots", 648 << 20) == "648 MiB"
    assert setting_value("effective.streams_ahead", True) == "yes"
    assert setting_value("machine.gpus.0.memory_mib", 24564) == "24,564"
    assert setting_name("machine.driver") == "machine.driver"


def test_layers_of_several_configurations_are_ranges_too(tmp_path: Path) -> None:
    a, b = _bench(tmp_path / "a", [1], **_on_host([0])), _bench(tmp_path / "b", [1], **_on_host([0], [0, 1, 2]))
    rows = differences_table(compare_captures(a, b)).rows
    assert ["placement.configurations.host_layers", "0", "1 x 0, 1 x 0-2"] in rows


def test_figures_that_grow_with_the_work_are_per_token(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "c")
    result = compare_captures(f"{tmp_path / 'c'}#off", f"{tmp_path / 'c'}#on")
    copied, exposed, hidden = (_change(result, name) for name in ("bytes_h2d", "exposed_copy_ns", "hidden_ratio"))
    assert (copied.per, copied.a, copied.b) == ("token", 4800, 4800)  # 6 x 8,000 bytes / (8 + 2) tokens
    assert (exposed.per, exposed.a, exposed.b) == ("token", 60_000, 30_000)
    assert (hidden.per, hidden.a, hidden.b) == ("pass", 0, 0.5)


def test_a_change_from_zero_has_no_ratio_and_stands_first(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "c")
    result = compare_captures(f"{tmp_path / 'c'}#off", f"{tmp_path / 'c'}#on")
    from_zero = result.changes[:3]
    assert {change.figure for change in from_zero} == {"hidden_copy_ns", "hidden_ratio", "overlap_efficiency"}
    assert {change.against for change in from_zero} == {None}
    sizes = [change.size for change in result.changes]
    assert sizes == sorted(sizes, reverse=True)


def test_two_captures_of_the_same_work(tmp_path: Path) -> None:
    a, b = _bench(tmp_path / "a", _noisy(1_000_000)), _bench(tmp_path / "b", _noisy(1_200_000))
    change = _change(compare_captures(a, b), "prefill_tokens_per_s")
    assert change.verdict == "slower"
    assert change.against is not None
    assert change.against.ratio == pytest.approx(1 / 1.2, rel=0.01)
    same = _change(compare_captures(a, _bench(tmp_path / "c", _noisy(1_000_500))), "prefill_tokens_per_s")
    assert same.verdict == "no difference"


def test_memory_is_less_or_more_and_no_speed(tmp_path: Path) -> None:
    a, b = _holding(tmp_path / "a", 1 << 30), _holding(tmp_path / "b", 2 << 30)
    more, less = compare_captures(a, b), compare_captures(b, a)
    assert [_change(result, "vram_peak_bytes").verdict for result in (more, less)] == ["more", "less"]
    assert headline(more) == "B against A: 1 inconclusive, of 1 judged figures; memory: 1 more."
    assert headline(less) == "B against A: 1 inconclusive, of 1 judged figures; memory: 1 less."


def test_arms_of_other_names_are_matched_where_each_side_has_one(tmp_path: Path) -> None:
    a, b = _bench(tmp_path / "a", [100] * 6, arm="pw=0"), _bench(tmp_path / "b", [90] * 6, arm="pw=1")
    change = _change(compare_captures(a, b), "wall_ns")
    assert change.where.endswith("pw=0 → pw=1")
    assert change.verdict == "faster"


def test_other_prompts_are_normalised_but_never_judged(tmp_path: Path) -> None:
    a, b = _bench(tmp_path / "a", [512_000] * 6), _bench(tmp_path / "b", [1_024_000] * 6, n_prompt=1024)
    wall = _change(compare_captures(a, b), "wall_ns")
    assert (wall.a, wall.b, wall.verdict) == (1000, 1000, "inconclusive")
    assert wall.different == "n_prompt 512 against 1024"


@pytest.mark.parametrize(("field", "said"), [("name", "another model"), ("digest", "other weights")])
def test_another_model_is_never_judged(tmp_path: Path, field: str, said: str) -> None:
    a = _bench(tmp_path / "a", [100] * 6, model={field: "one"})
    b = _bench(tmp_path / "b", [50] * 6, model={field: "two"})
    result = compare_captures(a, b)
    assert {change.different for change in result.changes} == {said}
    assert ("model." + field, "one", "two") in [(d.key, d.a, d.b) for d in result.differences]


def test_runs_of_one_preset_with_other_weights_are_never_judged(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("same", 1), ("other", 2)):
        make_capture(tmp_path / name, small_request(seed=seed))
    a, same, other = (str(tmp_path / name) for name in ("a", "same", "other"))
    assert {change.different for change in compare_captures(a, same).changes} == {None}
    assert {change.different for change in compare_captures(a, other).changes} == {"other weights"}


def test_repetitions_of_one_process_of_another_tool_are_no_verdict(tmp_path: Path) -> None:
    sides = [new_capture(tmp_path / name, source="llama-bench", arms=[ManifestArm("x")]) for name in "ab"]
    for writer, ns in zip(sides, (1000, 2000), strict=True):
        for order in range(12):
            writer.add_pass_row(order, PassKey("x", 512, 0, 512, 0, order, order, 0), prefill_ns=ns + order)
        writer.finish()
    change = _change(compare_captures(sides[0].path, sides[1].path), "prefill_tokens_per_s")
    assert change.against is not None
    assert (change.verdict, change.against.reason) == ("inconclusive", "one process an arm: boots needed")
    assert (change.against.pairs, change.n_a, change.has_enough) == (1, 12, False)


def test_times_of_two_captures_of_one_process_each_get_no_verdict(tmp_path: Path) -> None:
    result = compare_captures(_holding(tmp_path / "a", 100), _holding(tmp_path / "b", 200))
    assert result.warnings[0].startswith("A and B are one process each: ")
    wall = _change(result, "wall_ns")
    assert wall.against is not None
    assert (wall.verdict, wall.against.reason) == ("inconclusive", "one process an arm: boots needed")
    assert _change(result, "vram_peak_bytes").verdict == "more"  # what a pass holds does not vary by process


def test_too_few_repetitions_are_inconclusive(tmp_path: Path) -> None:
    result = compare_captures(_bench(tmp_path / "a", [100] * 5), _bench(tmp_path / "b", [50] * 5))
    assert {change.verdict for change in result.changes} == {"inconclusive"}


def test_other_tokens_are_said_and_in_a_mixture_of_experts_are_other_work(tmp_path: Path) -> None:
    moe_off_on(tmp_path / "a")
    moe_off_on(tmp_path / "b")
    assert not any("other tokens" in w for w in compare_captures(str(tmp_path / "a"), str(tmp_path / "b")).warnings)
    for path in (tmp_path / "b" / "passes").glob("*.parquet"):
        table = pq.read_table(path)
        tokens = pa.array([[6]] * table.num_rows, table.schema.field("tokens").type)
        pq.write_table(table.set_column(table.schema.get_field_index("tokens"), "tokens", tokens), path)
    result = compare_captures(str(tmp_path / "a"), str(tmp_path / "b"))
    assert any("B generated other tokens than A" in text for text in result.warnings)
    different = {change.figure: change.different for change in result.changes if change.arm_a == "on"}
    assert different["ttft_ns"] is None
    assert different["wall_ns"] is not None


def test_settings_come_before_changes_and_leave_out_what_never_agrees(tmp_path: Path) -> None:
    a = _bench(
        tmp_path / "a",
        [100] * 6,
        machine={"gpu": "H200", "driver": "580", "load_1min": 0.4},
        link_h2d_gb_s=55.1,
        argv=["x"],
    )
    b = _bench(
        tmp_path / "b",
        [100] * 6,
        machine={"gpu": "H200", "driver": "570", "load_1min": 1.2},
        link_h2d_gb_s=55.4,
        argv=["y"],
    )
    assert [(d.key, d.a, d.b) for d in compare_captures(a, b).differences] == [("machine.driver", "580", "570")]


def test_captures_without_passes_compare_rates_and_shares_only(tmp_path: Path) -> None:
    imported_without_passes(tmp_path / "a")
    result = compare_captures(str(tmp_path / "a"), str(tmp_path / "a"))
    found = {(d.device, d.figure): d.a for d in result.devices}
    assert found["device 0", "h2d rate"] == pytest.approx(0.04)
    assert found["device 0", "h2d hidden"] == 0.5
    assert found["device 0", "h2d bytes a copy"] == 4000
    assert found["device 1", "h2d rate"] is None
    assert not any("busy" in figure for _, figure in found)
    assert result.changes == []
    assert "nothing was judged" in result.warnings[-1]


@pytest.mark.parametrize("n_boots", [2, 6])
def test_cells_without_a_verdict_are_one_line_with_their_number(
    tmp_path: Path, n_boots: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Many rows of `2 of 6 boots` would be most of the screen; --all has them."""
    names = []
    for name, factor in (("before", 1.0), ("after", 1.1)):
        writer = new_capture(tmp_path / name, source="llama-bench", arms=[ManifestArm("off")])
        sizes = [(size, boot) for size in (16, 32, 64, 128) for boot in range(n_boots if size < 128 else 6)]
        for order, (size, boot) in enumerate(sizes):
            took = round(1e6 * factor) + boot
            writer.add_pass_row(order, PassKey("off", size, 0, 512, 0, 0, order, boot), prefill_ns=took)
        writer.finish()
        names.append(str(tmp_path / name))
    assert main(["compare", *names]) == 0
    told = capsys.readouterr().out
    if n_boots == 6:
        assert "Inconclusive" not in told
        assert told.count("slower") == 5  # a row each, and the count
        return
    line = "Inconclusive in 3 cells and arms (2 of the 6 boots that a verdict needs): prefill 0.91 x as fast."
    assert line in " ".join(told.split())
    assert "2 of 6 boots" not in told
    assert "1.000" not in told
    assert "slower" in told  # of the fourth, which stays
    assert main(["compare", *names, "--all"]) == 0
    assert capsys.readouterr().out.count("2 of 6 boots") == 3


def test_a_size_that_a_source_cannot_give_is_unknown(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "a", 6)
    writer = new_capture(tmp_path / "b", source="nsys", arms=[ManifestArm("on")])
    for repetition in range(6):
        writer.add_pass_row(repetition, PassKey("on", repetition=repetition), t_start=0, t_end=10)
    writer.finish()
    result = compare_captures(f"{tmp_path / 'a'}#on", str(tmp_path / "b"))
    assert "different workload: n_prompt 8 against unknown" in {
        change.against.reason for change in result.changes if change.against is not None
    }


def _exposing(path: Path, exposed_ns: list[int]) -> str:
    """A capture of a process a value, whose one pass copies for so long beside nothing; 1 us of compute follows."""
    writer = new_capture(path, arms=[ManifestArm("x")])
    for order, ns in enumerate(exposed_ns):
        events = [EventRecord("compute", "layer", ns, ns + 1000, 0, "compute", "prefill", 0, 0)]
        events += [EventRecord("h2d", "ffn", 0, ns, 0, "copy", "prefill", 0, 0, bytes=8)] if ns else []
        writer.plan_pass(order, PassKey("x", 4, 0, 4, 0, 0, order, order))
        writer.record_pass(order, replace(dense_result(), t_end=ns + 1000, events=events, ubatches=[], tokens=[]))
    writer.finish()
    return str(path)


def test_passes_without_exposed_copies_count_as_much_as_those_with(tmp_path: Path) -> None:
    """Seven of twelve processes that stopped exposing copies are a fall; the other five alone would be none."""
    before = _exposing(tmp_path / "a", [0] * 4 + [1000] * 14)
    after = _exposing(tmp_path / "b", [0] * 4 + [2000] * 14)
    mostly = _exposing(tmp_path / "c", [0] * 9 + [1000] * 9)
    risen = _change(compare_captures(before, after), "exposed_copy_ns").against
    assert risen is not None
    assert (risen.ratio, risen.pairs, risen.verdict) == (2.0, 18, "slower")
    fallen = compare_captures(before, mostly, fail_on=["exposed>-20%"])
    half = _change(fallen, "exposed_copy_ns").against
    assert half is not None
    assert (half.ratio, half.verdict) == (0.5, "inconclusive")
    assert fallen.gates[0].state == "inconclusive"
    unbounded = _change(compare_captures(mostly, before), "exposed_copy_ns").against
    assert unbounded is not None
    assert (unbounded.low, unbounded.verdict) == (None, "inconclusive")
    assert unbounded.reason == "about half of the values are 0, so that the ratio has no bounds"


def test_arms_of_one_run_that_did_the_same_by_design_get_no_verdict(tmp_path: Path) -> None:
    """As the report has it: `gated` below its gate runs as `off`; what differs between their times is chance."""
    options = {"effective": {"host_layers": [0]}}
    arms = [ManifestArm(name, name, name, options) for name in ("off", "gated")]
    writer = new_capture(tmp_path / "c", arms=arms)
    for order in range(24):
        arm, repetition, n_ubatch = ("off", "gated")[order % 2], order // 4, (4, 8)[order % 4 // 2]
        ubatches = [UbatchRecord("prefill", 0, 4, 0, "off", 0, 1000)]
        ns = 1000 if arm == "off" else 900
        writer.plan_pass(order, PassKey(arm, n_ubatch, 0, 8, 0, repetition, order, 0))
        writer.record_pass(order, replace(dense_result(), ttft_ns=ns, ubatches=ubatches, tokens=[]))
    writer.finish()
    run = tmp_path / "c"
    same = _change(compare_captures(f"{run}#off,ub=4", f"{run}#gated,ub=4"), "ttft_ns").against
    assert same is not None
    assert (same.is_same_work, same.verdict) == (True, "inconclusive")
    apart = _change(compare_captures(f"{run}#off,ub=4", f"{run}#gated,ub=8"), "ttft_ns").against
    assert apart is not None
    assert apart.verdict == "faster"


def test_tables_name_cells_by_what_tells_them_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for ns, path in zip((1000, 900), paths, strict=True):
        writer = new_capture(path, arms=[ManifestArm("off")])
        for order in range(12):
            writer.plan_pass(order, PassKey("off", (4, 8)[order % 2], 0, 8, 2, order // 2, order, 0))
            writer.record_pass(order, replace(dense_result(), ttft_ns=ns))
        writer.finish()
    result = compare_captures(*map(str, paths))
    assert changes_table(result, 9).columns[0] == "cell"
    assert {row[0] for row in changes_table(result, 9).rows} == {"ub=4", "ub=8"}
