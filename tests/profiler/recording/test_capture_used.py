"""What was recorded reads like any other capture: report, compare, every export, the dashboard; and names that a
program chose to harm reach no terminal and no page raw.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hprof import main
from profiler.importers import import_files
from tests.dashboard.pages import open_page, said, turn_to
from tests.profiler.recording.conftest import Stage

Begin = Callable[..., Stage]
EVIL = r"\x1b[31mred\x07</td><script>x</script>[bold]![x](http://evil.example/x.png)\u202e"
_LIVE = re.compile(r"(?<!\\)(<script>x|!\[x)")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
# three ubatches of four layers: what a layer copies, in line or while the layer before computes, and its kernels
MODEL = """
def model(ahead, evil=""):
    import nvtx
    nvtx.push_range("step" + evil)
    at = 0
    for ubatch in range(3):
        kernel("k_get_rows", at, at + 5_000)
        at += 5_000
        for layer in range(4):
            copy(1, 2, 3, 4 << 20, at if not ahead else at - 60_000, at + 80_000 if not ahead else at + 20_000)
            at += 90_000 if not ahead else 25_000
            for name in ("rms_norm", "mul_mat_q", "flash_attn_ext", "mul_mat_o", "rms_norm", "mul_mat_up", "silu"):
                kernel(name + evil, at, at + 20_000)
                at += 21_000
    sync(3, 7, at, at + 10)
    nvtx.pop_range()
"""


@pytest.fixture
def traces(stage: Begin, tmp_path: Path) -> Path:
    """A folder with two captures, `inline` and `ahead`."""
    folder = tmp_path / "traces"
    for name, line in (("inline", f"model(False, '{EVIL}')"), ("ahead", f"model(True, '{EVIL}')")):
        here = stage()
        here.run(MODEL, line)
        import_files([here.recording.folder], folder / name)
    return folder


def test_all_commands_read_it(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inline, ahead = str(traces / "inline"), str(traces / "ahead")
    assert main(["report", inline, "--all"]) == 0
    shown = capsys.readouterr().out
    assert "48 MiB" in shown
    assert main(["report", inline, "--json"]) == 0
    assert main(["compare", inline, ahead]) in (0, 2)  # no passes: a sentence
    assert main(["list", str(traces)]) == 0
    shown += "".join(capsys.readouterr())
    for form, out in (("chrome", "a.json"), ("html", "a.html"), ("csv", "csv"), ("parquet", "parquet")):
        assert main(["export", inline, "--format", form, "-o", str(tmp_path / out)]) == 0, form
    shown += "".join(capsys.readouterr())
    assert "Traceback" not in shown
    assert not _CONTROL.search(shown)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<script>x</script>" not in page
    assert not _CONTROL.search(page)


def test_the_dashboard_shows_it(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page(monkeypatch, traces, "overview", capture="inline")
    for page in ("overview", "timeline", "layers", "memory"):
        if page != "overview":
            turn_to(app, page)
        assert not app.error, page
        assert not _LIVE.search("\n".join(one.value for one in app.markdown)), page
        assert not _CONTROL.search(said(app)), page


def test_ubatches_and_layers_of_a_program_without_ranges(stage: Begin) -> None:
    """They come from what repeats; where it does not, that is said."""
    here = stage()
    here.run(MODEL, "model(False)")
    found = here.read()
    copies = [row for row in found.tables["events"].to_pylist() if row["kind"] == "h2d"]
    assert [(row["ubatch"], row["layer"]) for row in copies] == [(u, n) for u in range(3) for n in range(4)]
    other = stage()
    other.run("[kernel('flash_attn' if n in (3, 9, 10) else f'k{n}', 10 * n, 10 * n + 5) for n in range(20)]")
    found = other.read()
    assert found.tables["events"]["layer"].null_count == found.tables["events"].num_rows
    assert any(text.startswith("ubatches and layers: no range names them") for text in found.cannot_say)
