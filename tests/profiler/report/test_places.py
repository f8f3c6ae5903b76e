"""Which layers stay, and what slots and bank cost; known answers, and manifests that say nonsense. What a report
says about work on the host. Two simulated GPUs: what each did, in the report and its JSON, and the same tokens as
on one.
"""

from __future__ import annotations

import io
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from executor.devices.factory import DeviceOptions
from executor.policies import find_traits
from executor.units import number_ranges
from profiler.arithmetic.stats import estimate
from profiler.capture import Capture
from profiler.manifest import Manifest, ManifestArm
from profiler.metrics import Scope
from profiler.planning.request import GridPoint, RunRequest
from profiler.report.blocks import by_device_table
from profiler.report.build import build_report
from profiler.report.cells import Cell
from profiler.report.markdown import render_markdown
from profiler.report.places import (
    Held,
    all_residency,
    budget_lines,
    host_products,
    products_line,
    residency,
    with_places,
)
from profiler.report.terminal import print_report
from profiler.storage.writer import PassKey, new_capture
from tests.profiler import makers
from tests.profiler.runs import make_capture

PLACED: dict[str, Any] = {
    "slots": 2,
    "host_bytes": 3000,
    "host_layers": [2, 0, 1],
    "vram_resident": 7000,
    "vram_slots": 2000,
    "vram_bank": 500,
}


def _of(placed: object, n_layers: object = 10) -> Any:
    arm = ManifestArm("on", options={"effective": placed})
    return residency(Manifest(arms=[arm], model={"n_layers": n_layers}), arm)


def test_slots_and_bank_are_told_in_layers() -> None:
    found = _of(PLACED)
    assert found.host_layers == [0, 1, 2]
    assert found.n_layers == 10
    assert found.cost_in_layers == 2.5  # 2,500 bytes, 1,000 a layer


def test_an_arm_that_streams_nothing_pays_nothing() -> None:
    found = _of(PLACED | {"host_bytes": 0, "host_layers": [], "vram_slots": 0, "vram_bank": 0, "slots": 0})
    assert found.cost_in_layers is None
    assert found.host_layers == []


@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("value", [None, "many", -1, True, 1.5])
def test_a_manifest_that_does_not_say_gives_none(name: str, value: object) -> None:
    assert _of(PLACED | {name: value}) is None


def test_what_is_held_on_each_device() -> None:
    told = {"vram_resident": [4000, 3000], "vram_slots": [2000, 0], "vram_bank": [0, 500]}
    assert _of(PLACED | {"by_device": told}).by_device == (Held(0, 4000, 2000, 0), Held(1, 3000, 0, 500))
    assert [held.n_bytes for held in _of(PLACED | {"by_device": told}).by_device] == [6000, 3500]


@pytest.mark.parametrize(
    "told",
    [
        None,
        [1, 2],
        {},
        {"vram_resident": [1], "vram_slots": [1]},
        {"vram_resident": [1], "vram_slots": [1], "vram_bank": [1, 2]},
        {"vram_resident": [-1], "vram_slots": [1], "vram_bank": [1]},
        {"vram_resident": ["1"], "vram_slots": [1], "vram_bank": [1]},
        {"vram_resident": 1, "vram_slots": 1, "vram_bank": 1},
    ],
)
def test_devices_are_not_told_by_captures_that_do_not_say(told: object) -> None:
    found = _of(PLACED | {"by_device": told})
    assert found.by_device == ()
    assert found.bank_bytes == 500


def test_only_arms_that_say_are_listed() -> None:
    arms = [
        ManifestArm("off", options={"effective": PLACED}),
        ManifestArm("imported"),
        ManifestArm("odd", options={"effective": [1]}),
    ]
    assert list(all_residency(Manifest(arms=arms))) == ["off"]


def test_number_ranges() -> None:
    assert number_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert number_ranges([]) == ""


def test_a_budget_says_what_is_kept_of_it() -> None:
    rows = [{"budget_bytes": 24 * 2**30, "kept_bytes": 2 * 2**30}, {"suffix": "@2"}, {"budget_bytes": "all"}, 3]
    assert budget_lines(Manifest(placement={"configurations": [*rows, rows[0]]})) == [
        "VRAM budget: 24 GiB a device, 2 GiB of it kept for the context, activations and a dequantised weight."
    ]
    assert budget_lines(Manifest(placement={"configurations": "none"})) == []
    [line] = budget_lines(Manifest(placement={"configurations": rows[:1]}, arms=[arm("full")]))
    assert line.endswith("`full` keeps everything resident, whatever the budget.")


def arm(
    name: str,
    products: Any = None,
    least: Any = 32,
    host_bytes: int = 1,
    requested: str | None = None,
    bank_bytes: int = 0,
) -> ManifestArm:
    options = {
        "requested": {"op_offload_min_batch": least},
        "effective": {"host_bytes": host_bytes, "host_products": products, "vram_bank": bank_bytes},
    }
    return ManifestArm(name, requested or name, options=options, traits=find_traits(requested or name))


CPU = arm("cpu")


def test_products_are_said_once_for_all_arms() -> None:
    arms = [arm("off", {"Q4_K": "int4", "MXFP4": "bf16"}), arm("on", {"Q4_K": "int4"}), arm("full")]
    assert products_line(arms) == (
        "Weights computed on the host: Q4_K as packed int4 (PyTorch's CPU kernel); MXFP4 as bf16, dequantised once."
    )
    assert products_line([arm("off", {"BF16": "bf16"})]) == "Weights computed on the host: BF16 as it is stored."
    assert products_line([arm("full"), ManifestArm("imported")]) is None


@pytest.mark.parametrize("options", [{}, {"effective": 3}, {"effective": {"host_products": ["Q4_K"]}}])
def test_manifests_of_others_say_nothing(options: dict[str, Any]) -> None:
    assert host_products(ManifestArm("a", options=options)) is None


@pytest.mark.parametrize(
    ("n_prompt", "n_ubatch", "said"),
    [
        (530, 512, "The last ubatch has 18 tokens, below --op-offload-min-batch 32: off, on used FFN weights in host "),
        (513, 512, "The last ubatch has 1 token, below"),
        (20, 512, "The prompt is one ubatch of 20 tokens, below"),
        (612, 512, "The last ubatch has 100 tokens, not below --op-offload-min-batch 32: off, on copied the host"),
    ],
)
def test_where_the_last_ubatch_fell(tmp_path: Path, n_prompt: int, n_ubatch: int, said: str) -> None:
    cell = _cell(tmp_path, n_prompt, n_gen=1, n_ubatch=n_ubatch)
    (noted,) = with_places([replace(cell, arms={**cell.arms, "cpu": cell.arms["on"]})], [arm("off"), arm("on"), CPU])
    assert noted.notes[-1].startswith(said)
    assert len(noted.notes) == len(cell.notes) + 1


@pytest.mark.parametrize(
    ("n_prompt", "n_gen", "least", "said"),
    [
        (512, 2, 32, "below --op-offload-min-batch 32: off, on used the host weights on the CPU and copied none."),
        (0, 1, 32, "below --op-offload-min-batch 32: off, on used the host weights on the CPU and copied none."),
        (512, 9, 0, "not below --op-offload-min-batch 0: off, on copied the host weights to the device."),
    ],
)
def test_where_decode_was_computed(tmp_path: Path, n_prompt: int, n_gen: int, least: int, said: str) -> None:
    cell = _cell(tmp_path, n_prompt, n_gen, n_ubatch=512)
    cell = _copying(cell, "decode", 0)
    (noted,) = with_places([cell], [arm("off", least=least), arm("on", least=least)])
    assert noted.notes == [*cell.notes, f"Decode goes token by token, {said}"]


@pytest.mark.parametrize(
    ("host_ns", "said"),
    [
        (
            5,
            "used FFN weights on the CPU, but copied weights outside the FFN all the same (22.4 MiB with the "
            "activations).",
        ),
        (0, "copied weights outside the FFN all the same (22.4 MiB with the activations)."),
    ],
)
@pytest.mark.parametrize(("n_prompt", "n_gen"), [(512, 4), (20, 0)])
def test_weights_outside_the_ffn_stream_at_every_size(
    tmp_path: Path, n_prompt: int, n_gen: int, host_ns: int, said: str
) -> None:
    scope: Scope = "decode" if n_gen else "prefill"
    cell = _copying(_cell(tmp_path, n_prompt, n_gen, n_ubatch=512), scope, 23_453_696, host_ns)
    (noted,) = with_places([cell], [arm("off"), arm("on")])
    assert noted.notes[-1].endswith(f"below --op-offload-min-batch 32: off, on {said}")


def test_arms_that_divide_say_so(tmp_path: Path) -> None:
    cell = _cell(tmp_path, 0, n_gen=4, n_ubatch=512)
    alike = replace(arm("off"), name="both", traits=find_traits("both"))
    banked = replace(
        alike, options={**alike.options, "effective": {"host_bytes": 1, "vram_bank": 1}}, name="both+cache"
    )
    both = replace(cell, arms={"off": cell.arms["off"], "both": cell.arms["on"], "both+cache": cell.arms["on"]})
    (noted,) = with_places([both], [arm("off"), alike, banked])
    assert (
        "; both divided the experts between CPU and device; both+cache took experts from the bank, divided "
        in (noted.notes[-1])
    )


def test_arms_that_copied_different_amounts_are_told_apart(tmp_path: Path) -> None:
    cell = _cell(tmp_path, 512, n_gen=4, n_ubatch=512)
    quiet = _copying(cell, "decode", 0).arms["off"]
    (noted,) = with_places([replace(cell, arms={**cell.arms, "off": quiet})], [arm("off"), arm("on")])
    assert (
        "off used the host weights on the CPU and copied none; on used FFN weights on the CPU, but copied weights"
        in noted.notes[-1]
    )


def test_an_arm_with_a_bank_takes_small_batches_from_it(tmp_path: Path) -> None:
    cell = _copying(_cell(tmp_path, 512, n_gen=4, n_ubatch=512), "decode", 0)
    cached = arm("on", requested="on+cache", bank_bytes=9)
    (noted,) = with_places([cell], [arm("off"), cached])
    assert noted.notes[-1].endswith(
        "off used the host weights on the CPU and copied none; "
        "on took experts from the bank and used other FFN weights in host memory on the CPU."
    )


@pytest.mark.parametrize(
    ("n_prompt", "arms"),
    [
        (1024, [arm("off"), arm("on")]),
        (0, [arm("off"), arm("on")]),
        (None, [arm("off")]),
        (530, [arm("off", host_bytes=0), arm("on", requested="cpu")]),
        (530, [ManifestArm("off"), ManifestArm("on", options={"requested": []})]),
        (530, [arm("off", least="32")]),
    ],
)
def test_nothing_is_said_where_it_made_no_difference(
    tmp_path: Path, n_prompt: int | None, arms: list[ManifestArm]
) -> None:
    cell = _cell(tmp_path, n_prompt, n_gen=0, n_ubatch=512)
    assert with_places([cell], arms) == [cell]


def _cell(tmp_path: Path, n_prompt: int | None, n_gen: int, n_ubatch: int) -> Cell:
    (cell,) = build_report(makers.dense_off_on(tmp_path / "c")).cells
    return replace(cell, n_prompt=n_prompt, n_gen=n_gen, n_ubatch=n_ubatch)


def _copying(cell: Cell, scope: Scope, n_bytes: float, host_ns: float = 5) -> Cell:
    """The cell, its arms copying so many bytes of weights in a phase, beside so much computing on the host."""
    told = {
        "bytes_h2d": estimate([n_bytes or 4096]),  # activations
        "selective_saving_bytes": estimate([0]) if n_bytes else None,
        "host_compute_ns": estimate([host_ns]),
    }
    arms = {
        name: replace(arm, figures={**arm.figures, scope: {**arm.figures[scope], **told}})
        for name, arm in cell.arms.items()
    }
    return replace(cell, arms=arms)


def test_both_are_in_the_report_of_a_capture(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", arms=[arm("off", {"Q8_0": "bf16"}), arm("on", {"Q8_0": "bf16"})])
    for order, name in enumerate(("off", "on")):
        writer.add_pass_row(order, PassKey(name, 512, 0, 530, 0, 0, order, 0), ttft_ns=5)
    report = build_report(Capture.open(tmp_path / "c"))
    text = render_markdown(report)
    assert "Weights computed on the host: Q8\\_0 as bf16, dequantised once." in text
    assert "last ubatch has 18 tokens, below" in text
    assert [found["host_products"] for found in report.to_json()["arms"]] == [{"Q8_0": "bf16"}] * 2


ARMS = ("off", "on", "gated")


def _run(path: Path, kind: str, n_devices: int) -> Capture:
    device = DeviceOptions(kind, n_devices=n_devices, n_threads=1, link_gb_s=1.0)  # type: ignore[arg-type]
    request = RunRequest(
        cells=(GridPoint(64, n_gen=3, n_ubatch=32, n_depth=0),),
        device=device,
        model="tiny-moe",
        layers=4,
        arms=ARMS,
        repetitions=1,
    )
    return make_capture(path, request)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return _run(tmp_path_factory.mktemp("two") / "capture", "cpu", 2)


def test_the_same_tokens_and_logits_as_on_one(tmp_path: Path, on_two: Capture) -> None:
    one = _run(tmp_path / "capture", "cpu", 1).passes
    both = one.merge(on_two.passes, on=["arm", "repetition", "warmup"], suffixes=("_one", "_two"))
    assert len(both) >= len(ARMS) * 2
    assert both["tokens_one"].map(tuple).tolist() == both["tokens_two"].map(tuple).tolist()
    assert both["logits_digest_one"].tolist() == both["logits_digest_two"].tolist()


def test_both_links_are_busy_and_the_parts_make_the_whole(on_two: Capture) -> None:
    (cell,) = build_report(on_two).cells
    for name in ARMS:
        arm = cell.arms[name]
        copied, busy = arm.figures["pass"]["bytes_h2d"], arm.figures["pass"]["busy_copy_ns"]
        assert copied is not None
        assert busy is not None
        assert [part.device for part in arm.by_device] == [0, 1]
        assert sum(part.bytes_h2d or 0 for part in arm.by_device) == copied.median
        assert sum(part.busy_copy_ns for part in arm.by_device) == busy.median
        assert all(part.busy_copy_ns > 0 and part.busy_compute_ns > 0 for part in arm.by_device)
        assert all(0 <= part.hidden_copy_ns <= part.busy_copy_ns for part in arm.by_device)


def test_the_report_shows_them(on_two: Capture) -> None:
    report = build_report(on_two)
    out = Console(file=io.StringIO(), width=120)
    print_report(report, out)
    assert isinstance(out.file, io.StringIO)
    assert "By device, in one pass" in out.file.getvalue()
    assert "## By device, in one pass" in render_markdown(report)
    parts = report.to_json()["cells"][0]["arms"]["on"]["by_device"]
    assert [part["device"] for part in parts] == [0, 1]


def test_it_says_what_each_arm_holds_where(on_two: Capture) -> None:
    report = build_report(on_two)
    for name in ARMS:
        arm, memory = report.cells[0].arms[name], report.residency[name]
        held = [part.vram_held_bytes for part in arm.by_device]
        assert all(held)
        assert sum(filter(None, held)) == memory.resident_bytes + memory.slots_bytes + memory.bank_bytes
    on, off = ([part.vram_held_bytes or 0 for part in report.cells[0].arms[name].by_device] for name in ("on", "off"))
    assert all(two_slots > one_slot for two_slots, one_slot in zip(on, off, strict=True))
    parts = report.to_json()["cells"][0]["arms"]["on"]["by_device"]
    assert [part["vram_held_bytes"] for part in parts] == on


def test_a_capture_that_does_not_say_it_by_device_has_none(on_two: Capture) -> None:
    older = copy(on_two)
    arms = [replace(arm, options=_without_devices(arm.options)) for arm in on_two.manifest.arms]
    older.manifest = on_two.manifest.with_changes(arms=arms)
    report = build_report(older)
    assert {part.vram_held_bytes for arm in report.cells[0].arms.values() for part in arm.by_device} == {None}
    (table,) = by_device_table(report.cells[0])
    assert table.columns[-1] == "VRAM held"
    assert {row[-1] for row in table.rows} == {"–"}


def _without_devices(options: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in options["effective"].items() if key != "by_device"}
    return options | {"effective": kept}


def test_one_device_needs_no_such_table(tmp_path: Path) -> None:
    report = build_report(_run(tmp_path / "capture", "sim", 1))
    assert all(arm.by_device == () for arm in report.cells[0].arms.values())
    assert "By device" not in render_markdown(report)
