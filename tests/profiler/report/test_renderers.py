"""Terminal, markdown and units: the same figures, and no text of a capture that acts as markup."""

from __future__ import annotations

import io
from pathlib import Path

import orjson
import pytest
from rich.console import Console

import hprof
from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.plain_text import json_text
from profiler.report.build import build_report
from profiler.report.markdown import render_markdown
from profiler.report.report import Report
from profiler.report.terminal import print_report
from profiler.storage.writer import PassKey, new_capture
from tests.profiler import makers

HOSTILE = "[red]x[/red] <script>alert(1)</script> | `a` \x1b[2J\n# head"


def terminal(report: Report, width: int = 100) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=width))
    return out.getvalue()


def test_all_three_show_the_same_figures(tmp_path: Path) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c"))
    for text in (terminal(report), render_markdown(report)):
        for figure in ("642 us", "1.39 faster", "46.9 KiB", "83.3 %", "same tokens, logits bit-identical"):
            assert figure in text
        assert "no overlap can bring on's prompt below 400 us" in " ".join(text.split())
    assert orjson.loads(json_text(report.to_json())) == report.to_json()


def test_an_import_gets_one_table_a_device(tmp_path: Path) -> None:
    text = terminal(build_report(makers.imported_without_passes(tmp_path / "c")))
    assert "Process 4711, device 0: 1 kernel, 150 us busy, stream 7" in text
    assert "Process 4711, device 1: no kernels" in text
    assert "which layer a copy belongs to" in text


@pytest.mark.parametrize("width", [80, 120, 250])
def test_many_arms_are_split_and_repeat_the_baseline(tmp_path: Path, width: int) -> None:
    names = ["off", "off-whole", "on", "gated", "auto", "hot", "cache"]
    writer = new_capture(tmp_path / "c", arms=[ManifestArm(name) for name in names])
    for order, name in enumerate(names):
        writer.add_pass_row(order, PassKey(name, repetition=0, order=order, boot=0), ttft_ns=1_000_000 + order)
    text = terminal(build_report(Capture.open(tmp_path / "c")), width)
    headers = [words for line in text.splitlines() if (words := line.split())[:1] == ["off"] and {*words} <= {*names}]
    assert [name for line in headers for name in line[1:]] == names[1:]
    assert max(map(len, text.splitlines())) <= width


def test_text_of_a_capture_is_never_markup(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", arms=[ManifestArm(HOSTILE, "on", HOSTILE)], model={"name": HOSTILE})
    writer.add_pass_row(0, PassKey(HOSTILE, 4, 0, 8, 2, 0, 0, 0), ttft_ns=5)
    writer.update_manifest(warnings=[HOSTILE], cannot_say=[HOSTILE])
    report = build_report(Capture.open(tmp_path / "c"))
    shown = terminal(report)
    assert "\x1b[2J" not in shown
    assert "[red]x[/red]" in shown
    text = render_markdown(report)
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\n# head" not in text
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {3}


def test_an_error_that_quotes_a_file_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "evil"
    capture.mkdir()
    (capture / "manifest.json").write_text('{"schema": 1, "state": "\\u001b]0;owned\\u0007"}')
    for name in (str(capture), str(tmp_path / "no\x1b[31m\nwhere")):
        assert hprof.main(["report", name]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert error.rstrip("\n").isprintable()
