"""The benchmarks of what recording costs a decode: their arithmetic, and a run of each against stand-ins."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.gpu import record_candidates, record_kinds
from executor.compiling import find_compiler
from executor.errors import HprofError
from profiler.importers.cupti_spool.spool import RECORD, RecordType, read_spool, spool_bytes
from profiler.recording.cupti_files import find_headers
from tests.profiler.recording.standin import PROGRAM, compiled_standin

TURN_NS = record_kinds.TURN_MS * 1_000_000


def decode(path: Path, token_us: dict[str, float], rounds: int) -> Path:
    """A spool of turns: tokens take `token_us` while that is left out; "": nothing is."""
    names = [name for other in token_us if other for name in ("", other)] * rounds + [""]
    texts = {1: "cudaGraphLaunch", 2: "cuGraphLaunch", 3: "cudaMemcpyAsync"}
    rows: list[tuple[RecordType, int, int, int]] = []  # type, kind, name, start
    for number, name in enumerate([*names, ""]):
        text = "trial without: " + name
        key = next((key for key, known in texts.items() if known == text), len(texts) + 1)
        texts[key] = text
        begin = 10**15 + number * TURN_NS
        rows.append((RecordType.MARK, 0, key, begin))
        starts = np.arange(begin, begin + TURN_NS, token_us[name] * 1e3).astype(np.int64)
        for start in starts.tolist():  # a call of the runtime, and the driver's that it makes
            rows += [(RecordType.CALL, kind, kind + 1, start + kind) for kind in (0, 1)]
            rows.append((RecordType.CALL, 0, 3, start - 100))
    records = np.zeros(len(rows), RECORD)
    for field, values in zip(("type", "kind", "name", "start"), zip(*rows, strict=True), strict=True):
        records[field] = values
    path.write_bytes(spool_bytes(1, records, texts))
    return path


def test_what_a_kind_costs_is_the_time_that_tokens_take_longer_with_it(tmp_path: Path) -> None:
    spool = decode(tmp_path / "1-0.hspool", {"": 1600.0, "no_copies": 1550.0, "no_waits": 1590.0}, rounds=7)
    copies, waits = record_kinds.costs(read_spool(spool))
    assert (copies.left_out, copies.n_turns) == ("no_copies", 7)
    assert (waits.left_out, waits.n_turns) == ("no_waits", 7)
    for found, wanted in (
        (copies.cost_us, 50),
        (copies.low_us, 50),
        (copies.high_us, 50),
        (waits.cost_us, 10),
        (waits.token_us, 1600),
    ):
        assert found == pytest.approx(wanted)


def test_turns_without_tokens_tell_nothing(tmp_path: Path) -> None:
    slow = record_kinds.TURN_MS * 1000 / 5  # us: five tokens a turn
    assert record_kinds.costs(read_spool(decode(tmp_path / "1-0.hspool", {"": slow, "no_copies": slow}, 3))) == []
    empty = tmp_path / "2-0.hspool"
    empty.write_bytes(spool_bytes(2, np.zeros(1, RECORD), {}))
    with pytest.raises(HprofError, match="holds no launch of a CUDA graph"):
        record_kinds.costs(read_spool(empty))


def test_a_candidate_is_held_against_the_runs_around_it() -> None:
    """A machine that slows down by and by makes no candidate slow."""
    without = record_candidates.WITHOUT
    runs = [(without, 100.0), ("a", 90.0), (without, 80.0), ("b", 63.0), (without, 60.0), ("a", 54.0)]
    assert record_candidates.ratios(runs) == {"a": [1.0, 0.9], "b": [0.9]}


BENCH = """
import json, sys
flags = dict(zip(sys.argv[4::2], sys.argv[5::2]))
end = time.monotonic() + 1.2
while time.monotonic() < end:
    at = time.time_ns() - _T0
    graph(9, at, at + 1000)
    time.sleep(0.001)
print(json.dumps([{"samples_ts": [1.0, 700.0, 710.0, 690.0]}]))
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in of llama-bench that replays graphs, on a stand-in of CUPTI."""
    compiler, headers = find_compiler(), find_headers()
    if compiler is None or not headers:
        pytest.skip("no C++ compiler, or no headers of CUPTI: pip install 'hprof[record]'")
    standin = compiled_standin(compiler, headers[0], tmp_path)
    monkeypatch.setenv("HPROF_LIBCUPTI", str(standin))
    binary = tmp_path / "llama-bench"
    start = f"import runpy, sys; sys.argv[1:1] = [{str(standin)!r}, {BENCH!r}, 'sys.exit()']; "
    binary.write_text(f"#!{sys.executable}\n{start}runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return binary


def test_candidates(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--bin", str(bench), "-m", str(bench), "--only", "as it is,no CUPTI", "--seconds", "20", "-o", str(out)]
    done = CliRunner().invoke(record_candidates.main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "without: 700.0 t/s" in done.output
    runs = json.loads(out.read_text())
    assert [run["name"] for run in runs[:3]] == ["without", "as it is", "without"]
    assert all(run["speeds"] == [700.0, 710.0, 690.0] for run in runs)
    assert [run["token_us"] is not None for run in runs[:2]] == [False, True]
    wrong = CliRunner().invoke(record_candidates.main, ["--bin", str(bench), "-m", str(bench), "--only", "nothing"])
    assert "nothing: no such candidate; there are as it is, no CUPTI" in wrong.output


def test_kinds(bench: Path, tmp_path: Path) -> None:
    """On a loaded machine a turn may hold too few tokens: that it runs and what it writes is all that is looked at."""
    out = tmp_path / "out.json"
    words = ["--bin", str(bench), "-m", str(bench), "-o", str(out)]
    done = CliRunner().invoke(record_kinds.main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "700.0 t/s over all turns" in done.output
    assert isinstance(json.loads(out.read_text()), list)
