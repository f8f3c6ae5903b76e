"""What a report says about work on the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiler.capture import Capture
from profiler.manifest import Arm
from profiler.report.markdown import render_markdown
from profiler.report.on_host import host_products, products_line, with_last_ubatch
from profiler.writer import PassKey, new_capture
from tests.profiler import makers


def arm(name: str, products: Any = None, least: Any = 32, host_bytes: int = 1, requested: str | None = None) -> Arm:
    options = {
        "requested": {"op_offload_min_batch": least},
        "effective": {"host_bytes": host_bytes, "host_products": products},
    }
    return Arm(name, requested or name, options=options)


def test_products_are_said_once_for_all_arms() -> None:
    arms = [arm("off", {"Q4_K": "int4", "MXFP4": "bf16"}), arm("on", {"Q4_K": "int4"}), arm("full")]
    assert products_line(arms) == (
        "Weights computed on the host: Q4_K as packed int4 (PyTorch's CPU kernel); MXFP4 as bf16, dequantised once."
    )
    assert products_line([arm("off", {"BF16": "bf16"})]) == "Weights computed on the host: BF16 as it is stored."
    assert products_line([arm("full"), Arm("imported")]) is None


@pytest.mark.parametrize("options", [{}, {"effective": 3}, {"effective": {"host_products": ["Q4_K"]}}])
def test_manifests_of_others_say_nothing(options: dict[str, Any]) -> None:
    assert host_products(Arm("a", options=options)) is None


@pytest.mark.parametrize(
    ("n_prompt", "n_ubatch", "said"),
    [
        (530, 512, "last ubatch has 18 tokens, below --op-offload-min-batch 32: off, on computed its host tensors"),
        (513, 512, "last ubatch has 1 token, below"),
        (20, 512, "last ubatch has 20 tokens, below"),
        (612, 512, "last ubatch has 100 tokens, not below --op-offload-min-batch 32: off, on streamed its host"),
    ],
)
def test_where_the_last_ubatch_fell(tmp_path: Path, n_prompt: int, n_ubatch: int, said: str) -> None:
    (cell,) = makers.dense_off_on(tmp_path / "c").report().cells
    cell = replace(cell, n_prompt=n_prompt, n_ubatch=n_ubatch, arms={**cell.arms, "cpu": cell.arms["on"]})
    (noted,) = with_last_ubatch([cell], [arm("off"), arm("on"), arm("cpu")])
    assert said in noted.notes[-1]
    assert len(noted.notes) == len(cell.notes) + 1


@pytest.mark.parametrize(
    ("n_prompt", "arms"),
    [
        (1024, [arm("off"), arm("on")]),
        (0, [arm("off"), arm("on")]),
        (None, [arm("off")]),
        (530, [arm("off", host_bytes=0), arm("on", requested="cpu")]),
        (530, [Arm("off"), Arm("on", options={"requested": []})]),
        (530, [arm("off", least="32")]),
    ],
)
def test_nothing_is_said_where_it_made_no_difference(tmp_path: Path, n_prompt: int | None, arms: list[Arm]) -> None:
    (cell,) = makers.dense_off_on(tmp_path / "c").report().cells
    cell = replace(cell, n_prompt=n_prompt, n_ubatch=512)
    assert with_last_ubatch([cell], arms) == [cell]


def test_both_are_in_the_report_of_a_capture(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", arms=[arm("off", {"Q8_0": "bf16"}), arm("on", {"Q8_0": "bf16"})])
    for order, name in enumerate(("off", "on")):
        writer.add_pass_row(order, PassKey(name, 512, 0, 530, 0, 0, order, 0), ttft_ns=5)
    report = Capture.open(tmp_path / "c").report()
    text = render_markdown(report)
    assert "Weights computed on the host: Q8\\_0 as bf16, dequantised once." in text
    assert "last ubatch has 18 tokens, below" in text
    assert [found["host_products"] for found in report.to_json()["arms"]] == [{"Q8_0": "bf16"}] * 2
