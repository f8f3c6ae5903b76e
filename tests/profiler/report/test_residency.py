"""Which layers stay, and what slots and bank cost; known answers, and manifests that say nonsense."""

from __future__ import annotations

from typing import Any

import pytest

from executor.units import number_ranges
from profiler.manifest import Manifest, ManifestArm
from profiler.report.residency import (
    Held,
    all_residency,
    budget_lines,
    host_products,
    products_line,
    residency,
)
from tests.profiler.report.placed_arms import arm

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
    each = {"budget_bytes": 24 * 2**30, "budget_bytes_by_device": [24 * 2**30, 48 * 2**30], "kept_bytes": 2 * 2**30}
    [line] = budget_lines(Manifest(placement={"configurations": [each]}))
    assert line.startswith("VRAM budget: 24 GiB and 48 GiB by device, 2 GiB of it kept")
    [line] = budget_lines(Manifest(placement={"configurations": rows[:1]}, arms=[arm("full")]))
    assert line.endswith("`full` keeps everything resident, whatever the budget.")


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
