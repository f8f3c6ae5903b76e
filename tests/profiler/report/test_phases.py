"""What is set by one phase says so and what it costs in the other, and the fastest decoder is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.report.answer import AnswerRoom, answer_blocks
from profiler.report.blocks import Lines, Table
from profiler.report.build import build_report
from profiler.report.report import Report
from profiler.storage.writer import PassKey, new_capture
from tests.profiler.report.answers import joined


def both_phases(path: Path, faster: Mapping[str, tuple[float, float]], *, n_pairs: int = 6) -> Report:
    """A cell in which each arm is so many times as fast as `off` in prefill and in decode."""
    arms = {"off": (1.0, 1.0), **faster}
    writer = new_capture(path, arms=[ManifestArm(name, name, name) for name in arms])
    order = 0
    for repetition in range(n_pairs):
        for name, factors in arms.items():
            key = PassKey(name, 512, 0, 4096, 9, repetition, order, 0)
            prefill_ns, decode_ns = (round(1_000_000 / factor) + repetition for factor in factors)
            writer.add_pass_row(order, key, ttft_ns=prefill_ns, prefill_ns=prefill_ns, decode_ns=decode_ns)
            order += 1
    writer.finish()
    return build_report(Capture.open(path))


@pytest.mark.parametrize(
    ("on", "told"),
    [
        ((1.25, 0.8), "Set: --arms on -ub 512, by prefill (in decode it is 0.80 x as fast, slower)."),
        ((1.25, 1.0), "Set: --arms on -ub 512, by prefill."),
        ((1.25, 1.5), "Set: --arms on -ub 512, by prefill."),
        ((0.8, 1.5), "Set: --arms off -ub 512, for no arm was shown to beat it in prefill."),
        ((1.0, 1.5), "Set: --arms on -ub 512, by decode."),
        ((1.0, 0.8), "Set: --arms off -ub 512, for no arm was shown to beat it in prefill."),
    ],
)
def test_what_is_set_says_by_which_phase_and_whether_it_is_slower_in_the_other(
    tmp_path: Path, on: tuple[float, float], told: str
) -> None:
    assert told in joined(both_phases(tmp_path / "c", {"on": on}))


def test_what_is_not_settled_is_called_slower_in_neither_phase(tmp_path: Path) -> None:
    told = joined(both_phases(tmp_path / "c", {"on": (1.25, 0.8)}, n_pairs=2))
    assert "Set, if it holds: --arms on -ub 512, by prefill. llama.cpp" in told


def timed_apart(path: Path, faster: Mapping[str, tuple[float, float]]) -> Report:
    """The same in two cells of llama-bench, one of prefill and one of decode."""
    arms = {"off": (1.0, 1.0), **faster}
    writer = new_capture(path, source="llama-bench", arms=[ManifestArm(name) for name in arms])
    order = 0
    for at, (phase, n_prompt, n_gen) in enumerate((("prefill", 4096, 0), ("decode", 0, 16))):
        for boot in range(6):
            for name, factors in arms.items():
                key = PassKey(name, 512, 0, n_prompt, n_gen, 0, order, boot)
                writer.add_pass_row(order, key, **{f"{phase}_ns": round(1_000_000 / factors[at]) + boot})
                order += 1
    writer.finish()
    return build_report(Capture.open(path))


def two_columns(report: Report) -> tuple[list[str], str]:
    """The table's columns and the line about decode, where there is room for two arms beside the baseline."""
    blocks = list(answer_blocks(report, AnswerRoom(arms=2)))
    [table] = [block for block in blocks if isinstance(block, Table)]
    [decode] = [line for block in blocks if isinstance(block, Lines) for line in block.lines if "Decode:" in line]
    return list(table.columns), decode


MIDDLE = {"on": (1.4, 1.0), "cpu": (0.5, 0.9)}


def test_the_fastest_decoder_is_named_though_the_table_has_no_column_for_it(tmp_path: Path) -> None:
    columns, decode = two_columns(both_phases(tmp_path / "c", {**MIDDLE, "a": (0.9, 1.5), "b": (0.8, 1.3)}))
    assert columns == ["", "off t/s", "on", "cpu"]
    told = "on 1.000 x as fast (no difference); cpu 0.90 x as fast (slower); a 1.50 x as fast (faster)."
    assert decode.endswith(f"with off; {told}")


@pytest.mark.parametrize(
    "faster",
    [
        {**MIDDLE, "a": (0.9, 0.95), "b": (0.8, 1.0)},  # the baseline decodes fastest
        {"on": (1.4, 1.6), "cpu": (0.5, 0.9), "a": (0.9, 1.5)},  # a column's arm does
    ],
)
def test_no_other_decoder_is_named_than_those_in_the_table(
    tmp_path: Path, faster: Mapping[str, tuple[float, float]]
) -> None:
    columns, decode = two_columns(both_phases(tmp_path / "c", faster))
    assert columns == ["", "off t/s", "on", "cpu"]
    assert "; a " not in decode
    assert "; b " not in decode


def test_of_phases_that_were_timed_apart_the_fastest_decoder_is_named_too(tmp_path: Path) -> None:
    report = timed_apart(tmp_path / "c", {**MIDDLE, "a": (0.9, 1.5)})
    blocks = answer_blocks(report, AnswerRoom(told=1))
    [decode] = [line for block in blocks if isinstance(block, Lines) for line in block.lines if "In decode:" in line]
    assert decode == "In decode: on (1.000 x as fast, no difference), a (1.50 x as fast, faster)."
