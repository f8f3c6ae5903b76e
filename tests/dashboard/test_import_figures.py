"""What the Import page says of a capture that it made is what `hprof import` says of it, and what its JSON says."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

import pytest

import hprof
from executor.units import format_factor
from tests.dashboard.figures_of_pages import amounts, as_json, page_of

DATA: Final = Path(__file__).parents[1] / "data" / "kineto"


def test_an_import_says_what_the_command_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # so that the answer names the capture shortly
    monkeypatch.setenv("COLUMNS", "100")
    for arm in ("off", "on"):
        shutil.copy(DATA / f"h200_llama8b_4layers_{arm}.json.gz", f"{arm}.json.gz")
    told = io.StringIO()
    with redirect_stdout(told):
        assert hprof.main(["import", "--arm", "off=off.json.gz", "--arm", "on=on.json.gz", "-o", "by-command"]) == 0
    with page_of(tmp_path / "by-command", "import_") as app:
        pick = app.multiselect(key="pick")
        for file in pick.options:
            pick.select(file)
        app.run()
        app.button[0].click().run()
        assert not app.exception
        (summary,) = (block.value for block in app.code)
    wrote, _, answer = told.getvalue().partition("\n")
    assert wrote == f"Wrote {tmp_path / 'by-command'}"
    assert summary.replace(" report off ", " report by-command ").split() == answer.split()
    (cell,) = as_json("report", "off")["cells"]
    assert f"on was {format_factor(1 / cell['against_baseline']['on']['wall_ns']['ratio'])} x as fast" in summary
    row = next(line for line in summary.splitlines() if line.startswith("ub="))
    assert amounts(row) == pytest.approx([cell["arms"]["off"]["wall_ns"]["median"]], rel=6e-3)
    why = next(line for line in summary.splitlines() if line.startswith("Why:"))
    known = [cell["arms"]["on"][name]["median"] for name in ("busy_copy_ns", "busy_compute_ns")]
    assert amounts(why) == pytest.approx(known, rel=6e-3)
