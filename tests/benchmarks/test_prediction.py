"""`python -m benchmarks.prediction`: its JSON, and the targets on the shared sweeps where they are there."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from benchmarks.prediction import SHARED, capture_errors, main, shared_sweeps
from tests.support import ROOT

EXAMPLE = ROOT / "traces" / "example-sweep"


def test_json_names_folders_and_figures() -> None:
    done = CliRunner().invoke(main, [str(EXAMPLE), "--json"])
    assert done.exit_code == 0
    found = orjson.loads(done.stdout)
    assert set(found) == {"example-sweep"}
    assert {"ttft", "prefill", "decode"} <= set(found["example-sweep"])
    assert set(found["example-sweep"]["ttft"]) == {"median", "p90"}
    assert found["example-sweep"]["ttft"]["median"] < 0.05


@pytest.mark.skipif(not (SHARED / "captures").is_dir(), reason="the shared captures are not beside this checkout")
def test_shared_sweeps_are_met(tmp_path: Path) -> None:
    sweeps = list(shared_sweeps(tmp_path))
    assert sweeps
    for _, path in sweeps:
        errors = capture_errors(path)
        for figure in ("ttft", "prefill"):
            assert errors[figure]["median"] <= 0.05
            assert errors[figure]["p90"] <= 0.12
        assert errors["decode"]["median"] <= 0.08
        assert errors["bytes"]["median"] <= 0.03
