"""The first screen: at most 25 lines, an answer first, and nothing said that the figures do not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hprof import main
from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.report.answer import AnswerRoom, answer_blocks
from profiler.report.blocks import Lines, Listing, Table
from profiler.report.build import build_report
from profiler.report.report import Report, told_blocks
from profiler.report.terminal import ANSWER_LINES
from profiler.storage.writer import PassKey, new_capture
from tests.profiler import makers
from tests.profiler.report.answers import answer, joined

SIZES = (64, 128, 256, 512, 1024, 2048)


def swept(
    path: Path,
    factors: Mapping[str, Sequence[float]],
    *,
    n_pairs: int = 6,
    depths: Sequence[int] = (0,),
    sizes: Sequence[int] = SIZES,
    faster_with_size: bool = False,
    spread: Mapping[int, float] | None = None,
    **fields: Any,
) -> Report:
    """`off` takes 1 ms of prefill in every cell, or less the larger its ubatch; others are `factors[arm][i]` times as
    fast at size i. spread: by how much of that they scatter, by size."""
    arms = ["off", *factors]
    writer = new_capture(path, arms=[ManifestArm(name, name, name) for name in arms], **fields)
    order = 0
    for depth in depths:
        for at, size in enumerate(sizes):
            for repetition in range(n_pairs):
                for name in arms:
                    baseline_ns = 1_000_000 / (size if faster_with_size else 1)
                    took_ns = baseline_ns / (1 if name == "off" else factors[name][at]) + repetition
                    if name != "off":
                        took_ns *= 1 + (spread or {}).get(size, 0.0) * (-1) ** repetition
                    key = PassKey(
                        name,
                        n_ubatch=size,
                        n_depth=depth,
                        n_prompt=4096,
                        n_gen=0,
                        repetition=repetition,
                        order=order,
                        boot=0,
                    )
                    writer.add_pass_row(order, key, ttft_ns=round(took_ns), prefill_ns=round(took_ns))
                    order += 1
    writer.finish()
    return build_report(Capture.open(path))


RISING = [0.8, 0.9, 1.1, 1.2, 1.3, 1.4]
MANY = {
    f"{name}+cache": [factor * (1 + i / 9) for factor in RISING] for i, name in enumerate(("on", "hot", "x", "y", "z"))
}


@pytest.mark.parametrize("arms", [{"on": RISING}, MANY])
@pytest.mark.parametrize("depths", [(0,), (0, 8192, 32768)])
def test_at_most_25_lines(tmp_path: Path, arms: Mapping[str, Sequence[float]], depths: Sequence[int]) -> None:
    report = swept(tmp_path / "c", arms, depths=depths, n_pairs=6)
    for width in (60, 80, 100, 160):
        lines = answer(report, width).splitlines()
        assert len(lines) <= ANSWER_LINES == 24
        assert max(map(len, lines)) <= width


SIMULATED = {
    "routed, six arms": ("qwen3-30b-a3b", "off,off-whole,on,gated,hot,auto", "8,16,24,32,40,48,56,64", "2"),
    "routed, no verdict yet": ("qwen3-30b-a3b", "off,off-whole,on,hot", "16,64", "1"),
    "routed, two arms": ("qwen3-30b-a3b", "off,on", "64", "2"),
    "few experts": ("mixtral-8x7b", "off,on,gated,hot,off-whole", "32,64", "2"),
    "dense": ("llama-3.1-8b", "off,on,gated,full,cpu", "16,64", "1"),
}


@pytest.mark.parametrize(("model", "arms", "sizes", "repetitions"), SIMULATED.values(), ids=SIMULATED)
def test_simulations_take_at_most_25_lines(
    model: str, arms: str, sizes: str, repetitions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = ["--device", "sim", "--gpu", "rtx4090", "--link", "gen4x16", "--layers", "1", "-o", str(tmp_path / "c")]
    grid = ["--arms", arms, "-p", "64", "-n", "2", "-ub", sizes, "-r", repetitions]
    assert main(["run", "-m", model, *grid, *device]) == 0
    capsys.readouterr()
    report = build_report(Capture.open(tmp_path / "c"))
    for width in (60, 80, 120):
        lines = answer(replace(report, capture="traces/mine"), width).splitlines()
        assert len(lines) <= ANSWER_LINES, (width, lines)
        assert max(map(len, lines)) <= width


def test_the_best_arm_stays_in_a_table_of_two_arms(tmp_path: Path) -> None:
    report = swept(tmp_path / "c", {"on": RISING, "slow": [0.5] * 6, "best": [1.9] * 6})
    blocks = list(answer_blocks(report, AnswerRoom(arms=2)))
    [table] = [block for block in blocks if isinstance(block, Table)]
    assert table.columns == ["", "off t/s", "slow", "best"]
    told = [line for block in blocks if isinstance(block, Lines) for line in block.lines]
    assert "Prefill: off in t/s, the others as many times as fast (1 more arm: --all):" in told


def test_an_arm_that_pays_has_its_crossover_and_interval(tmp_path: Path) -> None:
    told = joined(swept(tmp_path / "c", {"on": RISING, "gated": [1.1] * 6, "cpu": [0.5] * 6}))
    assert "on pays from a ubatch of about 184 tokens." in told
    assert "gated pays at every ubatch measured, 64 to 2,048 tokens: 1.10 x as fast as off." in told
    assert "Slower than off: cpu (0.50 x as fast)." in told
    for size in SIZES:
        assert f"ub={size} " in told
    assert "Set: --arms on -ub 2048. llama.cpp: -ub 2048 -pw 1 (pull request 21067, in no release)." in told


def test_an_arm_that_is_slower_nowhere_pays_from_no_size_between(tmp_path: Path) -> None:
    """At 64 and 128 tokens the two are alike: that a ratio of 0.9995 passes 1 on its way to 1.2 is chance."""
    report = swept(tmp_path / "c", {"on": [0.9995, 1.0005, 1.2, 1.3, 1.3, 1.3]})
    assert report.crossovers == []
    told = joined(report)
    assert "pays from" not in told
    assert "no difference at 64 and 128; faster at 256, 512, 1,024 and 2,048" in told
    unclear = swept(tmp_path / "d", {"on": [0.9, 1.3]}, sizes=(64, 128), n_pairs=6, spread={64: 0.3})
    assert "unclear at 64; faster at 128" in joined(unclear)


def test_of_several_prompts_the_sentence_says_which_it_is_about(tmp_path: Path) -> None:
    """`on` pays at every size with the longer prompt alone."""
    writer = new_capture(tmp_path / "c", arms=[ManifestArm(name, name, name) for name in ("off", "on")])
    for order in range(48):
        arm, n_prompt, n_ubatch = ("off", "on")[order % 2], (128, 512)[order // 2 % 2], (64, 128)[order // 4 % 2]
        ns = round(1e6 * (1 if arm == "off" else 0.8 if n_prompt == 512 else 1.25)) + order // 8
        writer.add_pass_row(
            order, PassKey(arm, n_ubatch, 0, n_prompt, 0, order // 8, order, 0), ttft_ns=ns, prefill_ns=ns
        )
    writer.finish()
    told = joined(build_report(Capture.open(tmp_path / "c")))
    assert "With prompts of 512 tokens, on pays at every ubatch measured, 64 to 128 tokens: 1.25 x as fast as" in told


def test_what_to_set_has_a_verdict_where_it_is_set(tmp_path: Path) -> None:
    """`on` pays in small ubatches; at the fastest one its lead is within the noise, so nothing speaks for it there."""
    told = joined(
        swept(tmp_path / "c", {"on": [1.3, 1.2, 1.1, 1.05, 1.03, 1.004], "x": [2.0, 0.5, 0.5, 0.5, 0.5, 0.5]})
    )
    assert "Set: --arms x -ub 64." in told
    alike = swept(tmp_path / "d", {"on": [1.004]}, sizes=(2048,))
    assert "Set: --arms off -ub 2048, for no arm was shown to beat it." in joined(alike)
    grows = swept(tmp_path / "e", {"on": [1.3, 1.004]}, sizes=(64, 2048), faster_with_size=True)
    assert "Set: --arms off -ub 2048, for no arm was shown to beat it." in joined(grows)


def test_of_many_cells_the_best_the_worst_and_those_at_the_crossover_are_shown(tmp_path: Path) -> None:
    report = swept(tmp_path / "c", {"on": RISING}, depths=(0, 8192, 32768))
    told = answer(report, 160)
    assert "ub=64,d=0 " in told, "the worst"
    assert "ub=2048,d=0 " in told, "the best"
    assert "ub=128,d=0 " in told, "beside the crossover"
    assert "ub=256,d=0 " in told
    assert "more rows: --all" in told


def test_a_tenfold_effect_is_told_where_no_verdict_is_due(tmp_path: Path) -> None:
    report = swept(tmp_path / "c", {"on": [10.7]}, n_pairs=3, sizes=(64,), argv=["hprof", "run", "-r", "3", "-o", "c"])
    told = joined(report)
    assert "on was 10.7 x as fast as off; no verdict yet (3 of the 6 repetitions that it needs)." in told
    assert "10.7 ?" in told
    assert "For verdicts in place of ?: hprof run -r 6" in told
    assert "unclear" not in told


def test_one_process_an_arm_says_how_many_more(tmp_path: Path) -> None:
    report = build_report(makers.passes_without_events(tmp_path / "c"))
    told = joined(report)
    assert "1 of the 6 processes an arm that it needs" in told
    assert "For verdicts in place of ?: 6 files an arm by one name, hprof import --arm off=1.jsonl" in told


def test_simulated_and_predicted_come_first(tmp_path: Path) -> None:
    rates = {"gemm_tflop_s": 100.0, "link_gb_s": 25.0, "launch_us": 10.0}
    machine = {"device": "sim", "cpu": "this laptop", "rates": rates, "imagined_gpu": "rtx4090", "load_1min": 40}
    report = swept(tmp_path / "c", {"on": RISING}, machine=machine | {"usable_threads": 2})
    assert answer(report).startswith("SIMULATED, nothing was timed: rtx4090")
    assert "Assumed: GPU 100 TFLOP/s." in answer(report)
    assert "laptop" not in answer(report)
    assert "was loaded" not in answer(report), "no clock was read"
    predicted = swept(tmp_path / "p", {"on": RISING}, source="predicted")
    assert answer(predicted).startswith("PREDICTED")
    assert report.to_json()["measured"]["rates"] == rates


def test_one_result_decides_where_no_clock_is_read(tmp_path: Path) -> None:
    report = swept(tmp_path / "c", {"on": RISING}, n_pairs=1, machine={"device": "sim"})
    found = report.cells[0].against_baseline["on"]["ttft_ns"]
    assert found is not None
    assert (found.verdict, found.low, found.high, found.unit) == ("slower", found.ratio, found.ratio, "results")
    assert "on pays from a ubatch of about 184 tokens" in joined(report)
    timed = swept(tmp_path / "timed", {"on": RISING}, n_pairs=1, machine={"device": "cpu"})
    assert "1 of the 6 repetitions that it needs" in joined(timed)


@pytest.mark.parametrize("n_pairs", [1, 2])
def test_two_routings_decide_where_no_clock_is_read(tmp_path: Path, n_pairs: int) -> None:
    makers.moe_off_on(tmp_path / "c", n_pairs)
    manifest = tmp_path / "c" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"machine": {}', b'"machine": {"device": "sim"}'))
    report = build_report(Capture.open(tmp_path / "c"))
    found = report.cells[0].against_baseline["on"]["ttft_ns"]
    assert found is not None
    assert found.unit == "routings"
    assert found.verdict == ("inconclusive" if n_pairs == 1 else "slower")
    if n_pairs == 1:
        assert "1 of the 2 draws of the routing that it needs" in joined(report)


def test_a_loaded_machine_is_told(tmp_path: Path) -> None:
    loaded = {"device": "cpu", "load_1min": 14.0, "usable_threads": 2}
    assert "load 14.0 on 2 processors" in joined(swept(tmp_path / "c", {"on": RISING}, machine=loaded))
    quiet = loaded | {"load_1min": 0.4}
    assert "was loaded" not in joined(swept(tmp_path / "quiet", {"on": RISING}, machine=quiet))


def test_an_answer_without_cells_is_about_devices(tmp_path: Path) -> None:
    told = joined(build_report(makers.imported_without_passes(tmp_path / "c")))
    assert "Process 4711, device 0: 7.81 KiB went to the device" in told
    assert "--all" in told
    assert "nothing to judge" in joined(build_report(makers.empty(tmp_path / "empty")))


def test_one_arm_has_nothing_to_compare(tmp_path: Path) -> None:
    told = joined(swept(tmp_path / "c", {}))
    assert "One arm was measured, off" in told
    assert "ub=64" in told


def test_arms_that_computed_other_things_are_on_the_first_screen(tmp_path: Path) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c", digests=("one", "other")))
    assert "LOGITS DIFFER" in joined(report)
    (cell,) = report.cells
    excused = replace(cell, same_tokens=False, bit_identical=True, faults=[])
    assert "DIFFER" not in joined(replace(report, cells=[excused]))


def test_json_has_the_crossovers(tmp_path: Path) -> None:
    report = swept(tmp_path / "c", {"on": RISING}, depths=(0, 8192))
    found = report.to_json()["crossovers"]
    assert [(one["arm"], one["n_depth"], one["below"], one["above"]) for one in found] == [
        ("on", 0, 128, 256),
        ("on", 8192, 128, 256),
    ]
    assert found[0]["n_ubatch"] == pytest.approx(184, abs=1)
    assert found[0]["baseline"] == "off"


@pytest.mark.parametrize(
    ("source", "first"), [("command", "Measured"), ("python", "Measured"), ("llama-bench", "Imported")]
)
def test_what_hprof_timed_itself_is_measured(tmp_path: Path, source: str, first: str) -> None:
    report = swept(tmp_path / "c", {"on": [1.2]}, sizes=(512,), source=source, argv=["mine.py"])
    assert answer(report).startswith(first)


def two_baselines(path: Path) -> Report:
    """`a` and `b` share the prompt's cells; tokens were generated with `b` alone, and `c` ran a prompt of its own."""
    writer = new_capture(path, source="llama-bench", arms=[ManifestArm(name, name, name) for name in "abc"])
    shared = [("a", 4096, 0, 2_000_000), ("b", 4096, 0, 1_000_000)]
    for order, (arm, n_prompt, n_gen, ns) in enumerate([("b", 0, 16, 500_000), *shared, ("c", 64, 0, 300_000)]):
        key = PassKey(arm, n_ubatch=512, n_depth=0, n_prompt=n_prompt, n_gen=n_gen, repetition=0, order=order, boot=0)
        took = {"prefill_ns": ns} if n_prompt else {"decode_ns": ns}
        writer.add_pass_row(order, key, **took)
    writer.finish()
    return build_report(Capture.open(path))


def test_a_cell_that_the_baseline_did_not_run_is_no_comparison_with_it(tmp_path: Path) -> None:
    report = two_baselines(tmp_path / "c")
    told = joined(report)
    assert "b was 2.00 x as fast as a in prefill; no verdict yet" in told
    assert "Not compared with a, for no size has times of both: c." in told
    rows = {line.split()[0]: line.split()[1:] for line in answer(report).splitlines() if line.startswith("p=")}
    assert rows["p=0,n=16"] == ["32,000", "t/s"], "b's own speed, under b"
    assert rows["p=4096,n=0"][:2] == ["2,048,000", "2.00"]
    assert "Set, if it holds: b -ub 512, by prefill." in told


def test_one_arm_of_another_tool_is_compared_with_nothing(tmp_path: Path) -> None:
    told = joined(swept(tmp_path / "c", {}, source="llama-bench"))
    assert "One arm was measured, off: nothing to compare it with." in told
    assert "others" not in told
    assert "Set" not in told
    assert "--arms" not in told


def test_a_capture_below_the_current_folder_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = swept(tmp_path / "c", {"on": [1.2]}, sizes=(512,))
    assert f"hprof report {tmp_path / 'c'} --all" in joined(report)
    monkeypatch.chdir(tmp_path)
    assert "hprof report c --all" in joined(report)


def timed_apart(
    path: Path, faster: Mapping[str, Mapping[str, float]], *, ub: Sequence[int] = (512,), **options: str
) -> Report:
    """Prompt and generation in cells of their own, as llama-bench times them: `faster[arm][phase]` times as fast as
    `off`, in six processes. options: `model_filename` of each arm."""
    arms = ["off", *faster]
    written = [ManifestArm(name, options={"model_filename": options[name]} if options else {}) for name in arms]
    writer = new_capture(path, source="llama-bench", arms=written)
    order = 0
    for phase, n_prompt, n_gen in (("prefill", 4096, 0), ("decode", 0, 16)):
        for n_ubatch in ub if phase == "decode" else (512,):
            for boot in range(6):
                for name in arms:
                    factor = faster.get(name, {"prefill": 1.0, "decode": 1.0}).get(phase)
                    if factor is None:
                        continue
                    took = {f"{phase}_ns": round(1_000_000 / factor) + boot}
                    writer.add_pass_row(order, PassKey(name, n_ubatch, 0, n_prompt, n_gen, 0, order, boot), **took)
                    order += 1
    writer.finish()
    return build_report(Capture.open(path))


def test_prompt_and_generation_that_were_timed_apart_are_told_apart(tmp_path: Path) -> None:
    told = joined(timed_apart(tmp_path / "c", {"on": {"prefill": 1.25, "decode": 0.5}}))
    assert "on is 1.25 x as fast as off in prefill: faster." in told
    assert "In decode: on (0.50 x as fast, slower)." in told
    assert "Speed: off in t/s, the others as many times as fast:" in told
    assert "Set: on -ub 512, by prefill (in decode it is 0.50 x as fast, slower)." in told


def test_equal_builds_are_said_to_be_equal(tmp_path: Path) -> None:
    told = joined(timed_apart(tmp_path / "c", {"pr": {"prefill": 1.0, "decode": 1.0}}))
    assert "As fast as off in prefill: pr (1.000 x as fast)." in told
    assert "In decode: pr (1.000 x as fast, no difference)." in told


def test_decode_has_no_ubatch_to_set(tmp_path: Path) -> None:
    """More arms were run in decode, so it is what is told: which of its ubatches came out first is chance."""
    faster = {"on": {"decode": 2.0}, "x": {"prefill": 1.25, "decode": 0.5}}
    told = joined(timed_apart(tmp_path / "c", faster, ub=(512, 2048)))
    assert "In prefill: x (1.25 x as fast, faster)." in told
    assert "on is 2.00 x as fast as off in decode: faster. x is 0.50 x as fast as off in decode: slower." in told
    assert "Set: on, by decode." in told


def test_arms_of_several_models_are_no_choice_of_settings(tmp_path: Path) -> None:
    faster = {"on": {"prefill": 1.25, "decode": 1.0}}
    told = joined(timed_apart(tmp_path / "c", faster, off="dense.gguf", on="moe.gguf"))
    assert "The arms ran dense.gguf and moe.gguf: a ratio between two of them compares models" in told
    assert "Set" not in told
    alike = joined(timed_apart(tmp_path / "d", faster, off="dense.gguf", on="dense.gguf"))
    assert "compares models" not in alike
    assert "Set: on" in alike


def test_arms_without_a_sentence_keep_their_crossovers(tmp_path: Path) -> None:
    less = [factor - 0.02 for factor in RISING]
    report = swept(tmp_path / "c", {"hot+cache": [2.0] * 6, "on+cache": RISING, "on": less})
    lines = [line for block in answer_blocks(report, AnswerRoom(told=1)) for line in getattr(block, "lines", [])]
    [told] = [line for line in lines if " too" in line]
    assert told.startswith("on+cache and on pay too, but less: on+cache from a ubatch of about ")
    assert " and on from a ubatch of about " in told


def test_what_is_best_somewhere_does_not_pay_less(tmp_path: Path) -> None:
    report = swept(tmp_path / "c", {"hot+cache": [2.0] * 6, "on": [1.2, 1.2, 1.2, 1.2, 1.2, 2.4]})
    lines = [line for block in answer_blocks(report, AnswerRoom(told=1)) for line in getattr(block, "lines", [])]
    assert "on pays too." in lines


def test_all_has_the_crossovers_of_each_depth_and_the_first_screen_one(tmp_path: Path) -> None:
    report = swept(tmp_path / "c", {"on": RISING}, depths=(0, 8192))
    assert "At depth 0, on pays from a ubatch of about " in joined(report)
    [listing] = [block for block in told_blocks(report) if isinstance(block, Listing) and block.title == "Crossovers"]
    assert [line.partition(" of about ")[0] for line in listing.lines] == [
        "on takes as long as off at -d 0 with a ubatch",
        "on takes as long as off at -d 8192 with a ubatch",
    ]
