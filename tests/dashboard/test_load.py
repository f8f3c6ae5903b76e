"""Captures are found by name inside the trace root and nowhere else; imports write there and nowhere else."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dashboard import load, trace_root
from executor.errors import HprofError
from tests.profiler import makers
from tests.support import ROOT


def test_root_comes_from_the_command_line(tmp_path: Path) -> None:
    assert trace_root.trace_root(["--traces", f"{tmp_path}/"]) == trace_root.TraceRoot(str(tmp_path.resolve()))
    assert trace_root.trace_root(["--traces", "s3://bucket/traces"]).url == "s3://bucket/traces"
    assert trace_root.trace_root([]).url.endswith("traces")


def test_a_capture_given_as_the_root_stands_alone(tmp_path: Path) -> None:
    makers.empty(tmp_path / "one")
    makers.empty(tmp_path / "two")
    root = trace_root.trace_root(["--traces", str(tmp_path / "one")])
    assert [found.name for found in trace_root.captures(root)] == ["one"]
    with pytest.raises(HprofError, match="no capture 'two'"):
        trace_root.find_capture(root, "two")


@pytest.mark.parametrize("name", ["../secret", "..", "/etc", "one/../../secret", "", "manifest.json", "s3://x"])
def test_names_from_the_address_are_looked_up_not_joined(tmp_path: Path, name: str) -> None:
    makers.empty(tmp_path / "secret")
    root = tmp_path / "root"
    makers.empty(root / "one")
    with pytest.raises(HprofError, match="no capture"):
        trace_root.find_capture(trace_root.TraceRoot(str(root)), name)


def test_links_that_lead_out_of_the_root_are_not_shown(tmp_path: Path) -> None:
    makers.empty(tmp_path / "secret")
    root = tmp_path / "root"
    makers.empty(root / "one")
    (root / "link").symlink_to(tmp_path / "secret")
    assert [found.name for found in trace_root.captures(trace_root.TraceRoot(str(root)))] == ["one"]


def test_fingerprint_changes_when_a_part_is_added(tmp_path: Path) -> None:
    capture = makers.interrupted(tmp_path / "c")
    before = trace_root.fingerprint(capture.path)
    (tmp_path / "c" / "passes" / "pass-000099.parquet").write_bytes(b"")
    assert trace_root.fingerprint(capture.path) != before


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("report.sqlite", "report.sqlite"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("a b<script>.json", "a-b-script-.json"),
        ("....", "trace"),
        ("", "trace"),
        ("x" * 500 + ".json", "x" * 120),
    ],
)
def test_upload_names_are_made_safe(given: str, safe: str) -> None:
    assert trace_root.safe_name(given) == safe


def test_upload_of_nonsense_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(HprofError) as refused:
        trace_root.import_traces(trace_root.TraceRoot(str(tmp_path)), [upload("../evil.sqlite", b"not a trace")])
    assert list(tmp_path.iterdir()) == []
    assert "evil.sqlite" in str(refused.value)
    assert "/" not in str(refused.value).split("evil.sqlite")[0], "no folder of the server"


def upload(name: str, content: bytes) -> trace_root.Upload:
    return trace_root.Upload(name, io.BytesIO(content))


def test_several_traces_become_the_arms_of_one_capture(tmp_path: Path) -> None:
    folder = ROOT / "tests" / "data" / "kineto"
    name = "h200_llama8b_4layers_{}.json.gz"
    lying = tmp_path / "3.1.2_on.json.gz"
    lying.write_bytes((folder / name.format("on")).read_bytes())
    root = trace_root.TraceRoot(str(tmp_path))
    sources: list[trace_root.Upload | trace_root.TraceFile] = [
        upload("3.1.2_off.json.gz", (folder / name.format("off")).read_bytes()),
        *trace_root.files_in(root),
    ]
    assert trace_root.import_traces(root, sources, ["off", "on"]) == "3.1.2_off", "its whole name"
    (found,) = trace_root.captures(root)
    assert found.arms == ["off", "on"]
    assert load.open_capture(trace_root.find_capture(root, found.name)).manifest.argv == [
        *("hprof", "import", "--arm", "off=3.1.2_off.json.gz", "--arm", "on=3.1.2_on.json.gz")
    ]


def test_an_upload_and_its_copy_are_told_to_be_one_trace(tmp_path: Path) -> None:
    sample = (ROOT / "tests" / "data" / "llama-bench" / "smollm2.jsonl").read_bytes()
    root = trace_root.TraceRoot(str(tmp_path))

    def sources() -> list[trace_root.Upload]:
        return [upload("a.jsonl", sample), upload("copy.jsonl", sample)]

    name = trace_root.import_traces(root, sources(), ["off", "on"])
    (fault,) = load.open_capture(trace_root.find_capture(root, name)).manifest.faults
    assert fault.startswith("off and on were read from a.jsonl and copy.jsonl, which hold the same bytes: ")
    with pytest.raises(
        HprofError, match=r"^copy\.jsonl holds the same bytes as a\.jsonl, given for arm 'off' too, and"
    ):
        trace_root.import_traces(root, sources(), ["off", "off"])
    assert len(trace_root.captures(root)) == 1


def test_upload_is_imported_beside_what_is_there(tmp_path: Path) -> None:
    sample = (ROOT / "tests" / "data" / "llama-bench" / "smollm2.jsonl").read_bytes()
    root = trace_root.TraceRoot(str(tmp_path))
    assert trace_root.import_traces(root, [upload("../smollm2.jsonl", sample)]) == "smollm2"
    assert trace_root.import_traces(root, [upload("smollm2.jsonl", sample)]) == "smollm2-2"
    assert sorted(found.name for found in trace_root.captures(root)) == ["smollm2", "smollm2-2"]


def test_only_files_that_lie_in_the_root_can_be_picked(tmp_path: Path) -> None:
    (tmp_path / "outside.json").write_text("[]")
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside.json").write_text("[]")
    (root / "link.json").symlink_to(tmp_path / "outside.json")
    where = trace_root.TraceRoot(str(root))
    assert [file.name for file in trace_root.files_in(where)] == ["inside.json"]
    with pytest.raises(HprofError, match="no longer"):
        trace_root.import_traces(where, [trace_root.TraceFile("link.json", 2)])


def test_the_headline_of_a_capture_is_its_reports_without_what_events_say(tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c")
    found = trace_root.find_capture(trace_root.TraceRoot(str(tmp_path)), "c")
    early, whole = (made.cells[0] for made in (load.headline(found, "on"), load.report(found, "on")))
    for arm, told in early.arms.items():
        figures = whole.arms[arm].figures["pass"]
        for name in ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s", "vram_peak_bytes"):
            assert told.figures["pass"][name] == figures[name] is not None
        assert told.figures["pass"]["exposed_copy_ns"] is None
        assert figures["exposed_copy_ns"] is not None
    assert early.against_baseline["off"]["ttft_ns"] == whole.against_baseline["off"]["ttft_ns"]
    assert (early.same_tokens, early.bit_identical) == (whole.same_tokens, whole.bit_identical)
