"""Several files in one capture: clocks, pass ids, arms and boots do not collide, and nothing is lost."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow.compute as pc
import pytest

import hprof
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.importers import TraceInput, import_files, read_file
from profiler.importers.base import trace_format
from profiler.metrics import load_tables, pass_figures, pieces
from profiler.report.build import build_report
from tests.profiler.importers.kineto import traces
from tests.profiler.importers.llama_bench.samples import as_json, jsonl, row
from tests.profiler.importers.nsys.exports import KERNEL, MEMCPY, RUNTIME, call, copy, kernel, write_export
from tests.profiler.importers.nsys.test_stats import HEADER_AND_ROW


def _export(path: Path, offset_ns: int = 0, n_bytes: int | None = 1000) -> Path:
    copies = [copy(offset_ns, offset_ns + 40, bytes=n_bytes)]
    return write_export(path, {KERNEL: [kernel(offset_ns + 50, offset_ns + 90)], MEMCPY: copies})


def test_arms_are_passes_one_after_the_other(tmp_path: Path) -> None:
    off, on = _export(tmp_path / "a.sqlite", 10**12), _export(tmp_path / "b.sqlite")
    capture = Capture.open(import_files([TraceInput(off, "off"), TraceInput(on, "on")], tmp_path / "out"))
    passes = capture.table("passes").sort_by("order").to_pylist()
    assert [(p["pass_id"], p["arm"], p["order"], p["boot"], p["bytes_h2d"]) for p in passes] == [
        (0, "off", 0, 0, 1000),
        (1, "on", 1, 0, 1000),
    ]
    assert (passes[0]["t_start"], passes[0]["t_end"]) == (0, 90)
    assert passes[1]["t_start"] > 90
    events = capture.table("events").sort_by("t_start").to_pylist()
    assert [(row["pass_id"], row["kind"]) for row in events] == [
        (0, "h2d"),
        (0, "compute"),
        (1, "h2d"),
        (1, "compute"),
    ]
    assert [arm.name for arm in capture.manifest.arms] == ["off", "on"]
    assert [file["arm"] for file in capture.manifest.extra["files"]] == ["off", "on"]


def test_an_arm_that_is_a_file_lasts_as_long_as_its_devices_worked(tmp_path: Path) -> None:
    tables = {RUNTIME: [call(0, 500), call(1095, 9000)], MEMCPY: [copy(1000, 1040)], KERNEL: [kernel(1050, 1090)]}
    trace = write_export(tmp_path / "a.sqlite", tables)
    capture = Capture.open(import_files([TraceInput(trace, "off")], tmp_path / "out"))
    (passed,) = capture.table("passes").to_pylist()
    assert (passed["t_start"], passed["t_end"]) == (1000, 1090)
    assert capture.table("events").num_rows == 4
    figures = pass_figures(*load_tables(capture))["pass"]
    assert (figures["wall_ns"][0], figures["idle_ns"][0]) == (90, 10)


def test_two_arms_of_more_events_than_a_piece_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics cut large tables between passes; figures of devices, which span passes, are the same as of one table."""
    arms = [TraceInput(_export(tmp_path / "a.sqlite"), "off"), TraceInput(_export(tmp_path / "b.sqlite"), "on")]
    capture = Capture.open(import_files(arms, tmp_path / "whole"))
    whole = build_report(capture).to_json()
    monkeypatch.setattr(pieces, "_PIECE_ROWS", 1)
    assert build_report(capture).to_json() == whole
    assert build_report(Capture.open(import_files(arms, tmp_path / "cut"))).devices == (build_report(capture).devices)
    (device,) = whole["devices"]
    assert (device["compute"]["kernels"], device["copies"]["h2d"]["bytes"]) == (2, 2000)


def test_an_arm_given_again_is_its_next_boot(tmp_path: Path) -> None:
    arms = ("off", "on", "on", "off")
    files = [TraceInput(_export(tmp_path / f"{number}.sqlite", number), arm) for number, arm in enumerate(arms)]
    capture = Capture.open(import_files(files, tmp_path / "out"))
    passes = capture.table("passes").sort_by("order").to_pylist()
    assert [(p["arm"], p["boot"]) for p in passes] == [("off", 0), ("on", 0), ("on", 1), ("off", 1)]


def test_files_that_share_only_some_arms_have_boots_of_their_own(tmp_path: Path) -> None:
    """The second file's `on` is in the boot of its `off`; the third's must not take its place."""
    files = []
    for name, prefetch in (("off", [0]), ("both", [0, 1]), ("on", [1])):
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text(jsonl([row(prefetch_weights=each, test_time=name) for each in prefetch]))
    passes = Capture.open(import_files(files, tmp_path / "out")).table("passes").sort_by("order").to_pylist()
    boots = [(p["arm"], p["boot"]) for p in passes if p["repetition"] == 0]
    assert boots == [("off", 0), ("off", 1), ("on", 1), ("on", 2)]


def test_an_arm_of_several_boots_is_followed_by_the_next_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text("".join(as_json([row(test_time=str(run))]) + "\n" for run in range(3)))
    second.write_text(as_json([row(test_time="later")]))
    out = import_files([TraceInput(first, "off"), TraceInput(second, "off")], tmp_path / "out")
    passes = Capture.open(out).table("passes").sort_by("order").to_pylist()
    assert [p["boot"] for p in passes if p["repetition"] == 0] == [0, 1, 2, 3]


def test_an_arm_begins_when_all_rows_of_the_one_before_have_ended(tmp_path: Path) -> None:
    """The host's rows go on long after the devices' last work, at which the pass ends."""
    tables = {RUNTIME: [call(0, 500), call(1095, 5_000_000)], KERNEL: [kernel(1050, 1090)]}
    files = [TraceInput(write_export(tmp_path / f"{arm}.sqlite", tables), arm) for arm in ("off", "on")]
    capture = Capture.open(import_files(files, tmp_path / "out"))
    on = capture.table("passes").filter(pc.field("arm") == "on").to_pylist()[0]
    assert on["t_start"] >= 5_000_000 + 1050


def test_arms_of_a_file_that_is_an_arm_keep_their_names_behind_its(tmp_path: Path) -> None:
    file = tmp_path / "pw.jsonl"
    file.write_text(jsonl([row(prefetch_weights=each) for each in (0, 1)]))
    capture = Capture.open(import_files([TraceInput(file, "b1")], tmp_path / "out"))
    assert [arm.name for arm in capture.manifest.arms] == ["b1/off", "b1/on"]
    assert set(capture.table("passes")["arm"].to_pylist()) == {"b1/off", "b1/on"}


def test_several_plain_files_are_arms_called_after_them(tmp_path: Path) -> None:
    files = [_export(tmp_path / "3.1_off.sqlite"), _export(tmp_path / "3.1_on.sqlite")]
    capture = Capture.open(import_files(files, tmp_path / "out"))
    assert capture.table("passes")["arm"].to_pylist() == ["3.1_off", "3.1_on"]


def test_plain_files_of_one_name_are_boots_and_a_warning_says_so(tmp_path: Path) -> None:
    files = []
    for number, folder in enumerate(("off", "on")):
        (tmp_path / folder).mkdir()
        files.append(_export(tmp_path / folder / "trace.sqlite", number))
    capture = Capture.open(import_files(files, tmp_path / "out"))
    assert [(p["arm"], p["boot"]) for p in capture.table("passes").to_pylist()] == [("trace", 0), ("trace", 1)]
    (warning,) = capture.manifest.warnings
    assert "2 files are named 'trace'" in warning
    named = Capture.open(import_files([TraceInput(file, "trace") for file in files], tmp_path / "named"))
    assert named.manifest.warnings == []


def test_one_plain_file_has_no_passes(tmp_path: Path) -> None:
    capture = Capture.open(import_files([_export(tmp_path / "a.sqlite")], tmp_path / "out"))
    assert capture.table("passes").num_rows == 0
    assert capture.table("events")["pass_id"].to_pylist() == [None, None]


@pytest.mark.parametrize("damage", ["empty", "cut off"])
def test_a_trace_without_all_of_its_work_is_a_boot_of_unknown_figures(tmp_path: Path, damage: str) -> None:
    """A pass of 0 ns, or of the half that is left, would count as a faster one."""
    work = [traces.h2d(100, 50), *(traces.kernel(200 + 20 * number, 10) for number in range(9))]
    whole = [traces.write(tmp_path / f"{name}.json", work) for name in ("off", "on")]
    broken = traces.write(tmp_path / "off-1.json", [] if damage == "empty" else work)
    if damage == "cut off":
        broken.write_text(broken.read_text()[:1500])
    files = [TraceInput(whole[0], "off"), TraceInput(whole[1], "on"), TraceInput(broken, "off")]
    capture = Capture.open(import_files(files, tmp_path / "out"))
    passes = capture.table("passes").sort_by("order").to_pylist()
    assert [(p["arm"], p["boot"], p["bytes_h2d"]) for p in passes] == [
        ("off", 0, 100),
        ("on", 0, 100),
        ("off", 1, None),
    ]
    assert (passes[2]["t_start"], passes[2]["t_end"]) == (None, None)
    (cell,) = build_report(capture).to_json()["cells"]
    off = cell["arms"]["off"]
    assert (off["wall_ns"]["median"], off["wall_ns"]["n"]) == (270_000, 1)
    assert (off["busy_copy_ns"]["median"], off["bytes_h2d"]["median"]) == (50_000, 100)
    assert any(warning.startswith("off-1.json: ") for warning in capture.manifest.warnings)


@pytest.mark.parametrize("arm", ["off", None])
def test_no_pass_of_a_cut_off_trace_has_figures(tmp_path: Path, arm: str | None) -> None:
    """Steps that it names, too: the file is not in the order of time, and each may lack kernels."""
    events = []
    for step in range(6):
        t = step * 100
        events += [
            traces.annotation(f"ProfilerStep#{step}", t, 50),
            traces.call(t + 10, 1, step + 1, tid=77),
            traces.kernel(t + 60, 30, correlation=step + 1),
        ]
    trace = traces.write(tmp_path / "a.json", events)
    whole = Capture.open(import_files([TraceInput(trace, arm)], tmp_path / "whole"))
    assert whole.table("passes")["t_end"].null_count == 0
    trace.write_text(trace.read_text()[:-400])
    capture = Capture.open(import_files([TraceInput(trace, arm)], tmp_path / "out"))
    passes = capture.table("passes").to_pylist()
    assert passes
    assert {(p["t_start"], p["t_end"], p["bytes_h2d"]) for p in passes} == {(None, None, None)}
    events_left = capture.table("events")
    assert events_left.num_rows
    assert events_left["pass_id"].null_count == events_left.num_rows
    assert not [
        f
        for cell in build_report(capture).to_json()["cells"]
        for a in cell["arms"].values()
        for f in a.values()
        if isinstance(f, dict) and f.get("n")
    ]
    assert any("ends inside" in warning for warning in capture.manifest.warnings)


def test_that_a_trace_was_cut_off_is_on_the_first_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Why one arm has no times is told before what is missing for it, and nothing is told to be set."""
    events = [traces.kernel(1, 9), traces.kernel(20, 9), traces.kernel(40, 9)]
    whole, cut = (traces.write(tmp_path / f"{name}.json", events) for name in ("whole", "cut"))
    cut.write_text(cut.read_text()[:-60])
    told = "The trace is incomplete: the file ends inside its array of events: whole events before that point were kept"
    assert hprof.main(["import", str(cut), "-o", str(tmp_path / "one")]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    arms = [f"--arm=off={whole}", f"--arm=on={cut}"]
    assert hprof.main(["import", *arms, "-o", str(tmp_path / "both")]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert screen.index(f"cut.json: {told}") < screen.index("Not compared with off")
    assert "Set:" not in screen
    assert hprof.main(["report", str(tmp_path / "both"), "--json"]) == 0
    assert told in capsys.readouterr().out


def test_an_arm_of_unknown_times_is_not_said_to_have_run_at_other_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = [("off", []), ("on", [traces.kernel(1, 9)])]
    files = [f"--arm={name}={traces.write(tmp_path / f'{name}.json', events)}" for name, events in arms]
    assert hprof.main(["import", *files, "-o", str(tmp_path / "out")]) == 0
    assert "Not compared with off, for no size has times of both: on." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("arm", ["off", None])
def test_a_file_given_twice_is_not_two_boots(tmp_path: Path, arm: str | None) -> None:
    file = _export(tmp_path / "a.sqlite")
    (tmp_path / "again.sqlite").symlink_to(file)
    files = [TraceInput(file, arm), TraceInput(tmp_path / "again.sqlite" if arm else file, arm)]
    with pytest.raises(HprofError, match="is given twice for arm"):
        import_files(files, tmp_path / "out")
    both = import_files([TraceInput(file, "off"), TraceInput(file, "on")], tmp_path / "both")
    assert Capture.open(both).n_passes == 2


@pytest.mark.parametrize("kind", ["nsys", "llama-bench", "kineto", "cupti-spool"])
def test_a_copy_of_a_file_is_no_other_process(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Six copies would be six processes that agree: a verdict out of one."""
    endings = {"nsys": "sqlite", "llama-bench": "jsonl", "kineto": "json", "cupti-spool": "hspool"}
    files = [tmp_path / f"{number}.{endings[kind]}" for number in range(6)]
    for file in files:
        file.write_bytes(trace_format(kind).sample())
    with pytest.raises(
        HprofError, match=r"1\.\w+ holds the same bytes as .*0\.\w+, given for arm 'off' too, and a file is"
    ):
        import_files([TraceInput(file, "off") for file in files], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    arms = [f"--arm={name}={file}" for name, file in zip(("off", "on"), files, strict=False)]
    assert hprof.main(["import", *arms, "-o", str(tmp_path / "both")]) == 0
    told = f"off and on were read from {files[0].name} and {files[1].name}, which hold the same bytes"
    assert told in " ".join(capsys.readouterr().out.split())
    assert told in Capture.open(tmp_path / "both").manifest.warnings[0]


def test_what_a_copy_is_called_and_packed_in_does_not_matter(tmp_path: Path) -> None:
    trace = traces.write(tmp_path / "a.json", [traces.kernel(1, 9)])
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    with pytest.raises(HprofError, match=r"b\.json\.gz holds the same bytes as"):
        import_files([TraceInput(trace, "off"), TraceInput(tmp_path / "b.json.gz", "off")], tmp_path / "out")
    other = traces.write(tmp_path / "c.json", [traces.kernel(2, 9)])
    assert other.stat().st_size == trace.stat().st_size
    both = import_files([TraceInput(trace, "off"), TraceInput(other, "off")], tmp_path / "both")
    assert Capture.open(both).manifest.warnings == []


def test_a_copy_whose_rows_say_the_arm_is_no_other_process(tmp_path: Path) -> None:
    rows = [row(n_prompt=64, n_cpu_moe=layers) for layers in (0, 24)]
    files = [tmp_path / name for name in ("a.jsonl", "copy-of-a.jsonl")]
    for file in files:
        file.write_text(jsonl(rows))
    with pytest.raises(HprofError, match=r"copy-of-a\.jsonl holds the same bytes"):
        import_files(files, tmp_path / "out")


def test_a_spool_is_in_the_folder_that_holds_it(tmp_path: Path) -> None:
    sample = trace_format("cupti-spool").sample()
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "1-0.hspool").write_bytes(sample)
    (tmp_path / "alone.hspool").write_bytes(sample)
    with pytest.raises(HprofError, match="holds the same bytes"):
        import_files([TraceInput(folder, "off"), TraceInput(tmp_path / "alone.hspool", "off")], tmp_path / "out")
    (folder / "copy.hspool").write_bytes(sample)
    with pytest.raises(HprofError, match=r"run holds copy\.hspool, which has the same bytes as 1-0\.hspool"):
        read_file(folder)


def test_a_size_that_is_not_known_makes_the_sum_unknown(tmp_path: Path) -> None:
    capture = Capture.open(
        import_files([TraceInput(_export(tmp_path / "a.sqlite", n_bytes=None), "off")], tmp_path / "out")
    )
    assert capture.table("passes")["bytes_h2d"].to_pylist() == [None]


def test_a_remark_names_its_file_unless_it_is_true_of_all_and_drops_add_up(tmp_path: Path) -> None:
    bad = {KERNEL: [kernel(9, 5), kernel(10, 20)]}
    files = [write_export(tmp_path / f"{name}.sqlite", bad) for name in ("a", "b")]
    files.append(write_export(tmp_path / "c.sqlite", {RUNTIME: [call(0, 500)], KERNEL: [kernel(1050, 1090)]}))
    manifest = Capture.open(import_files(files, tmp_path / "out")).manifest
    assert manifest.dropped == {"kernel: end before start": 2}
    alone = [set(read_file(file).cannot_say) for file in files]
    shared = set.intersection(*alone)
    assert shared
    assert alone[2] > shared
    assert sorted(manifest.cannot_say) == sorted(
        [*shared, *(f"{file.name}: {text}" for file, own in zip(files, alone, strict=True) for text in own - shared)]
    )


def test_traces_of_two_tools_do_not_mix(tmp_path: Path) -> None:
    other = tmp_path / "b.json"
    other.write_text(
        '[{"build_commit": "abc", "n_prompt": 8, "n_gen": 0, "avg_ns": 5, "stddev_ns": 0, "samples_ns": [5]}]'
    )
    with pytest.raises(HprofError, match=r"a\.sqlite \(nsys\)|one tool"):
        import_files([_export(tmp_path / "a.sqlite"), other], tmp_path / "out")


def test_sqlite_and_csv_of_nsys_do(tmp_path: Path) -> None:
    other = tmp_path / "b.csv"
    other.write_text(HEADER_AND_ROW)
    path = import_files([_export(tmp_path / "a.sqlite"), other], tmp_path / "out")
    assert Capture.open(path).table("events").num_rows == 3


def test_a_file_that_fails_leaves_no_capture(tmp_path: Path) -> None:
    broken = tmp_path / "b.sqlite"
    broken.write_bytes(b"SQLite format 3\x00")
    with pytest.raises(HprofError, match=r"b\.sqlite"):
        import_files([_export(tmp_path / "a.sqlite"), broken], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    source = _export(tmp_path / "a.sqlite")
    import_files([source], tmp_path / "out")
    with pytest.raises(HprofError, match="--force"):
        import_files([source], tmp_path / "out")
    import_files([source], tmp_path / "out", force=True)


def test_the_time_of_an_import_is_not_when_it_was_recorded(tmp_path: Path) -> None:
    capture = Capture.open(import_files([_export(tmp_path / "a.sqlite")], tmp_path / "out"))
    assert capture.manifest.created_utc == ""
