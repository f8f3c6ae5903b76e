"""What a report says of ubatches that fell below the offload threshold, or did not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executor.policies import find_traits
from profiler.arithmetic.stats import estimate
from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.metrics import Scope
from profiler.report.build import build_report
from profiler.report.cells import Cell
from profiler.report.markdown import render_markdown
from profiler.report.small_ubatches import with_small_ubatches
from profiler.storage.writer import PassKey, new_capture
from tests.profiler import makers
from tests.profiler.report.placed_arms import arm

CPU = arm("cpu")


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
    (noted,) = with_small_ubatches(
        [replace(cell, arms={**cell.arms, "cpu": cell.arms["on"]})], [arm("off"), arm("on"), CPU]
    )
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
    (noted,) = with_small_ubatches([cell], [arm("off", least=least), arm("on", least=least)])
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
    (noted,) = with_small_ubatches([cell], [arm("off"), arm("on")])
    assert noted.notes[-1].endswith(f"below --op-offload-min-batch 32: off, on {said}")


@pytest.mark.parametrize(
    ("n_bytes", "host_ns", "distinct", "said"),
    [
        (9, 5, 0.1, "divided the experts between CPU and device."),
        (0, 5, 0.1, "left all experts to the CPU."),
        (9, 0, 0.1, "left all experts to the device."),
        (0, 5, None, "used the host weights on the CPU and copied none."),
        (9, 5, None, "used FFN weights on the CPU, but copied weights outside the FFN all the same (9 B with the "
         "activations)."),
    ],
)  # fmt: skip
def test_arms_that_divide_say_who_had_the_experts(
    tmp_path: Path, n_bytes: int, host_ns: int, distinct: float | None, said: str
) -> None:
    """And none that there are any on a dense model."""
    cell = _routed(_copying(_cell(tmp_path, 0, n_gen=4, n_ubatch=512), "decode", n_bytes, host_ns), distinct)
    dividing = replace(arm("off"), traits=find_traits("both"))
    (noted,) = with_small_ubatches([cell], [dividing])
    assert noted.notes[-1] == f"Decode goes token by token, below --op-offload-min-batch 32: off {said}"


def test_arms_that_divide_say_how_much_of_it_the_link_took(tmp_path: Path) -> None:
    cell = _copying(_cell(tmp_path, 512, n_gen=4, n_ubatch=512), "decode", 9)
    (noted,) = with_small_ubatches([_routed(cell, 0.08, 0.02)], [replace(arm("off"), traits=find_traits("both"))])
    assert noted.notes[-1].endswith("divided the experts between CPU and device: 25.0 % of those in use were copied.")


def _routed(cell: Cell, distinct: float | None, copied: float | None = None) -> Cell:
    """The cell as of a model of which so many experts were used, and so many copied; None: it has none."""
    shares = {"distinct_share": distinct, "copied_share": copied}
    told = {name: None if share is None else estimate([share]) for name, share in shares.items()}
    arms = {
        name: replace(arm, figures={scope: {**figures, **told} for scope, figures in arm.figures.items()})
        for name, arm in cell.arms.items()
    }
    return replace(cell, arms=arms)


def test_arms_that_divide_say_so(tmp_path: Path) -> None:
    cell = _routed(_cell(tmp_path, 0, n_gen=4, n_ubatch=512), 0.1)
    alike = replace(arm("off"), name="both", traits=find_traits("both"))
    banked = replace(
        alike, options={**alike.options, "effective": {"host_bytes": 1, "vram_bank": 1}}, name="both+cache"
    )
    both = replace(cell, arms={"off": cell.arms["off"], "both": cell.arms["on"], "both+cache": cell.arms["on"]})
    (noted,) = with_small_ubatches([both], [arm("off"), alike, banked])
    assert (
        "; both divided the experts between CPU and device; both+cache took experts from the bank, divided "
        in (noted.notes[-1])
    )


def test_arms_that_copied_different_amounts_are_told_apart(tmp_path: Path) -> None:
    cell = _cell(tmp_path, 512, n_gen=4, n_ubatch=512)
    quiet = _copying(cell, "decode", 0).arms["off"]
    (noted,) = with_small_ubatches([replace(cell, arms={**cell.arms, "off": quiet})], [arm("off"), arm("on")])
    assert (
        "off used the host weights on the CPU and copied none; on used FFN weights on the CPU, but copied weights"
        in noted.notes[-1]
    )


def test_an_arm_with_a_bank_takes_small_batches_from_it(tmp_path: Path) -> None:
    cell = _copying(_cell(tmp_path, 512, n_gen=4, n_ubatch=512), "decode", 0)
    cached = arm("on", requested="on+cache", bank_bytes=9)
    (noted,) = with_small_ubatches([cell], [arm("off"), cached])
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
    assert with_small_ubatches([cell], arms) == [cell]


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
