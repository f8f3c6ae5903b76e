"""CSV and parquet hold what the capture holds."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.export import FORMATS, export
from profiler.storage.writer import conform, new_capture
from tests.profiler.makers import dense_off_on, imported_without_passes, moe_off_on, passes_without_events


def test_csv_has_every_row_and_the_figures_of_every_pass(tmp_path: Path) -> None:
    capture = dense_off_on(tmp_path / "c")
    written = export([capture], "csv", tmp_path / "out")
    assert [path.name for path in written] == ["events.csv", "passes.csv", "ubatches.csv", "figures.csv"]
    events = pd.read_csv(tmp_path / "out" / "events.csv")
    assert len(events) == capture.table("events").num_rows
    assert events[["kind", "bytes", "stream"]].iloc[0].tolist() == ["h2d", 8000, "compute"]
    assert pd.read_csv(tmp_path / "out" / "passes.csv").loc[0, "tokens"] == "[5,7]"
    figures = pd.read_csv(tmp_path / "out" / "figures.csv").query("scope == 'pass'").set_index("pass_id")
    assert figures["hidden_copy_ns"].loc[7] == 300_000
    assert figures["distinct_share"].isna().all()


def test_figures_say_which_pass_they_are_of(tmp_path: Path) -> None:
    capture = moe_off_on(tmp_path / "c")
    export([capture], "parquet", tmp_path / "out")
    figures = pq.read_table(tmp_path / "out" / "figures.parquet")
    of_pass = ["arm", "warmup", "n_prompt", "n_gen", "n_ubatch", "n_depth", "repetition", "boot"]
    assert figures.column_names[:11] == ["pass_id", "scope", *of_pass, "ttft_ns"]
    passes = capture.table("passes", ["pass_id", *of_pass]).sort_by("pass_id")
    assert len(set(passes["arm"].to_pylist())) == 2
    for scope in ("pass", "prefill", "decode"):
        rows = figures.filter(pc.equal(figures["scope"], scope)).sort_by("pass_id")
        assert rows.select(["pass_id", *of_pass]).to_pydict() == passes.to_pydict()


def test_names_are_no_formulas_in_csv_and_unchanged_in_parquet(tmp_path: Path) -> None:
    names = ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "gemm = a", None]
    writer = new_capture(tmp_path / "c", source="nsys")
    columns = {"kind": ["compute"] * 8, "name": names, "t_start": range(8), "t_end": range(1, 9)}
    writer.write_part("events", conform("events", columns), "part")
    writer.finish()
    capture = Capture.open(tmp_path / "c")
    export([capture], "csv", tmp_path / "csv")
    export([capture], "parquet", tmp_path / "parquet")
    with (tmp_path / "csv" / "events.csv").open(newline="") as file:
        told = [row["name"] for row in csv.DictReader(file)]
    assert told == [*(f"'{name}" for name in names[:6]), "gemm = a", ""]
    assert pq.read_table(tmp_path / "parquet" / "events.parquet")["name"].to_pylist() == names


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_nothing_of_an_older_export_stays(tmp_path: Path, form: Any) -> None:
    export([moe_off_on(tmp_path / "moe")], form, tmp_path / "out")
    assert (tmp_path / "out" / f"experts.{form}").exists()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    written = export([dense_off_on(tmp_path / "dense")], form, tmp_path / "out", force=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*(path.name for path in written), "notes.txt"}


def test_byte_strings_are_hex_in_csv(tmp_path: Path) -> None:
    export([moe_off_on(tmp_path / "c")], "csv", tmp_path / "out")
    assert pd.read_csv(tmp_path / "out" / "experts.csv", dtype=str).loc[0, "used"] == "05"


def test_parquet_is_one_file_a_table_and_equal(tmp_path: Path) -> None:
    capture = dense_off_on(tmp_path / "c")
    export([capture], "parquet", tmp_path / "out")
    read = pq.read_table(tmp_path / "out" / "events.parquet")
    assert read.to_pydict() == capture.table("events").to_pydict()
    assert pq.read_table(tmp_path / "out" / "figures.parquet").num_rows == 3 * 14


def test_passes_limit_every_table(tmp_path: Path) -> None:
    export([dense_off_on(tmp_path / "c")], "csv", tmp_path / "out", "3,5")
    assert set(pd.read_csv(tmp_path / "out" / "events.csv")["pass_id"]) == {3, 5}
    assert set(pd.read_csv(tmp_path / "out" / "figures.csv")["pass_id"]) == {3, 5}


def test_tables_without_rows_are_left_out(tmp_path: Path) -> None:
    assert [p.name for p in export([imported_without_passes(tmp_path / "a")], "csv", tmp_path / "out")] == [
        "events.csv"
    ]
    names = [p.name for p in export([passes_without_events(tmp_path / "b")], "csv", tmp_path / "out2")]
    assert names == ["passes.csv", "figures.csv"]


def test_only_chrome_takes_several_captures(tmp_path: Path) -> None:
    captures = [dense_off_on(tmp_path / name, 1) for name in "ab"]
    with pytest.raises(HprofError, match="takes one capture"):
        export(captures, "csv", tmp_path / "out")


def test_a_dash_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for form in FORMATS:
        with pytest.raises(HprofError, match='"-" names no file'):
            export([dense_off_on(tmp_path / form, 1)], form, Path("-"), force=True)
    assert not Path("-").exists()
