"""Every command on captures that other people wrote: their text steers no terminal, and one hides no other."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hprof
from hprof.command_line import COMMANDS
from profiler.capture import Capture, list_captures
from tests.dashboard.test_hostile import hostile
from tests.profiler import makers
from tests.support import ROOT, shared_path

# A formula, a colour, a title of the window, the eight-bit CSI, rich's markup and emoji code, an override of direction.
EVIL = "=1+1|\x1b[31m\x1b]0;owned\x07\x9b2J[red]x[/red]:skull:\u202e<b>"
NO_UTF8 = os.fsdecode(b"caf\xe9\xff")
Captured = pytest.CaptureFixture[str]

ON_CAPTURES = [
    ["report", "{c}"],
    ["check", "{c}"],
    ["predict", "--fit", "{c}"],
    ["predict", "-m", EVIL],
    ["advise", "-m", EVIL],
    ["probe", "--device", "cpu", "--quants", EVIL],
    ["check", "{c}", "--json"],
    ["report", "{c}", "--format", "md"],
    ["report", "{c}", "--json"],
    ["report", "{c}", "{c}", "--json"],
    ["compare", "{c}", "{c}"],
    ["compare", "{c}", "{c}", "--format", "md"],
    ["compare", "{c}", "{c}", "--json"],
    ["compare", "{c}#" + EVIL, "{c}#" + EVIL + "2"],
    ["compare", "{c}#" + EVIL + "3", "{c}"],
    ["list", "{c}/.."],
    ["list", "{c}/..", "--json"],
    *(["export", "{c}", "--format", form, "-o", "{c}-" + form] for form in ("chrome", "csv", "parquet", "html")),
    ["export", "{c}/" + EVIL],
    ["doctor", "{c}/" + EVIL],
    ["models", "{c}/" + EVIL],
    ["run", "--device", "sim", "--arms", EVIL],
    ["run", "--device", "sim", "-m", EVIL],
    ["run", "-" + EVIL],
    ["import", "{c}/" + EVIL],
    ["record", "--", "{c}/" + EVIL],
    ["dashboard", "{c}/" + EVIL],
    [EVIL],
]


def test_every_command_is_tried() -> None:
    assert {words[0] for words in ON_CAPTURES} >= set(COMMANDS)


@pytest.mark.parametrize(
    "words", ON_CAPTURES, ids=lambda words: " ".join(words[:1] + words[2:4]).encode("ascii", "replace").decode()
)
@pytest.mark.parametrize("name", ["plain", NO_UTF8])
def test_no_text_of_a_capture_steers_the_terminal(
    tmp_path: Path, capsys: Captured, words: list[str], name: str
) -> None:
    hostile(tmp_path / name, EVIL)
    code = hprof.main([word.replace("{c}", str(tmp_path / name)) for word in words])
    told = capsys.readouterr()
    steering = {c for c in told.out + told.err if not c.isprintable() and c != "\n"}
    assert not steering
    is_unchecked = words[0] in ("check", "predict")  # it has no records of the order, and no command line
    is_refused = (
        is_unchecked
        or (EVIL in words[-1] and "#" not in words[-1] and words[0] != "doctor")
        or words[1:2] == ["{c}#" + EVIL + "3"]
    )
    assert code == (2 if is_refused else 0), told.err
    if "--json" in words and not is_unchecked:
        assert "skull" in json.dumps(orjson.loads(told.out))
    elif code == 0 and words[0] in ("report", "compare"):
        assert "[red]x[/red]" in told.out.replace("\\", ""), "shown as it is"
        assert ":skull:" in told.out


def test_a_model_file_that_calls_itself_so(tmp_path: Path, capsys: Captured) -> None:
    import gguf

    source = shared_path("data", "gguf", "qwen3moe-e8k2-Q4_K.gguf")
    path = tmp_path / "m.gguf"
    reader = gguf.GGUFReader(source)
    name = reader.fields["general.name"].contents() if "general.name" in reader.fields else None
    if name is None:
        pytest.skip("the sample has no general.name")
    evil = EVIL[: len(name.encode())].encode()[: len(name.encode())].ljust(len(name.encode()), b"x")
    path.write_bytes(source.read_bytes().replace(name.encode(), evil, 1))
    for words in (["models", str(path)], ["models", str(path), "--json"]):
        assert hprof.main(words) == 0
        told = capsys.readouterr()
        assert all(c.isprintable() or c == "\n" for c in told.out + told.err)
        assert "=1+1" in told.out


def test_no_cell_of_an_export_is_a_formula(tmp_path: Path) -> None:
    hostile(tmp_path / "c", EVIL)
    assert hprof.main(["export", str(tmp_path / "c"), "--format", "csv", "-o", str(tmp_path / "t")]) == 0
    cells = [cell for file in (tmp_path / "t").glob("*.csv") for row in csv.reader(file.open()) for cell in row]
    assert any("skull" in cell for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t"))]


def test_an_imported_file_whose_name_is_no_utf8(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / f"{NO_UTF8}.jsonl"
    shutil.copy(ROOT / "tests" / "data" / "llama-bench" / "smollm2.jsonl", trace)
    other = shutil.copy(trace, tmp_path / "other.jsonl")
    for files in ([str(trace)], [str(trace), str(other)], ["--arm", f"{NO_UTF8}={trace}"]):
        assert hprof.main(["import", *files, "-o", str(tmp_path / "c"), "--force", "--json"]) == 0
        assert orjson.loads(capsys.readouterr().out)["source"] == "llama-bench"


def test_one_capture_hides_no_other(tmp_path: Path, capsys: Captured) -> None:
    """One whose name is no UTF-8, one nested too deeply, one with a text that is no UTF-8, one of a pipe, one good."""
    makers.dense_off_on(tmp_path / "good", n_pairs=1)
    makers.dense_off_on(tmp_path / NO_UTF8, n_pairs=1)
    makers.dense_off_on(tmp_path / "text", n_pairs=1)
    part = next((tmp_path / "text" / "passes").glob("*.parquet"))
    part.write_bytes(part.read_bytes().replace(b"off", b"\xff\xfe\xfd"))
    for name, extra in (("deep", b"[" * 900 + b"]" * 900), ("deeper", b'{"a":' * 100_000 + b"1" + b"}" * 100_000)):
        (tmp_path / name).mkdir()
        start = b'{"schema":1,"source":"hprof","state":"complete","argv":[],"extra":{"k":'
        (tmp_path / name / "manifest.json").write_bytes(start + extra + b"}}")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "manifest.json")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert hprof.main(["list", str(tmp_path), "--json"]) == 0
    listed = {entry["name"]: entry for entry in orjson.loads(capsys.readouterr().out)["captures"]}
    assert set(listed) == {"good", "caf??", "text", "deep", "deeper", "pipe"}
    assert listed["good"]["problem"] is listed["caf??"]["problem"] is None
    assert "nested" in listed["deep"]["problem"]
    assert "not valid JSON" in listed["deeper"]["problem"]
    found = next(one for one in list_captures(tmp_path) if one.name == "caf??")
    assert len(Capture.open(found.path).passes) == 4
    assert hprof.main(["report", str(tmp_path), "--json"]) == 2
    told = capsys.readouterr()
    assert len(orjson.loads(told.out)["reports"]) == 2
    assert told.err.count("\n") == 4


def test_a_text_that_is_no_utf8_is_one_sentence(tmp_path: Path, capsys: Captured) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    for table in ("events", "passes"):
        path = tmp_path / table
        shutil.copytree(tmp_path / "c", path)
        part = next((path / table).glob("*.parquet"))
        rows = pq.read_table(part)
        name = "name" if table == "events" else "arm"
        broken = pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
        )
        column = pa.chunked_array([pa.concat_arrays([broken] * rows.num_rows)])
        pq.write_table(rows.set_column(rows.schema.get_field_index(name), name, column), part)
        for words in (["report", str(path), "--json"], ["export", str(path), "-o", str(tmp_path / "out")]):
            assert hprof.main(words) == 2
            error = capsys.readouterr().err
            assert "is not a readable parquet part" in error
            assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["report", "list", "export", "models", "import", "dashboard"])
def test_a_name_that_is_too_long_is_one_sentence(command: str, capsys: Captured, tmp_path: Path) -> None:
    assert hprof.main([command, str(tmp_path / ("x" * 400))]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("hprof: ")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("option", [["-o", "{name}"], ["-m", "{name}"], ["--routing", "trace:{name}"]])
def test_a_run_with_such_a_name_too(option: list[str], capsys: Captured, tmp_path: Path) -> None:
    words = [word.replace("{name}", str(tmp_path / ("x" * 400))) for word in option]
    assert hprof.main(["run", "-m", "tiny-moe", "--device", "sim", "-p", "32", "-n", "1", "-ub", "32", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
