"""`hprof models`."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import hprof
from executor.models.presets import preset_names


def test_the_list_has_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in preset_names())


def test_files_at_hand_are_listed_and_broken_ones_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama.cpp"))
    for folder in (".cache/models", "llama.cpp"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "broken[red].gguf").write_bytes(b"GGUF, but not really: " * 9)
    assert hprof.main(["models", "--json"]) == 0
    models = orjson.loads(capsys.readouterr().out)["models"]
    assert [m["origin"] for m in models if m["problem"]] == [
        ".cache/models/broken[red].gguf",
        f"{tmp_path}/llama.cpp/broken[red].gguf",
    ]
    assert hprof.main(["models"]) == 0
    assert "broken[red].gguf" in capsys.readouterr().out


def test_a_model_is_described_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["models", "tiny-dense", "--json"]) == 0
    described = orjson.loads(capsys.readouterr().out)
    assert described["schema"] == 1
    assert described["n_layers"] == 8
    kinds = {kind["name"]: kind for kind in described["tensors"]}
    assert kinds["ffn_up.weight"]["count"] == 8
    assert kinds["ffn_up.weight"]["on_host"]
    assert not kinds["attn_q.weight"]["on_host"]
    assert sum(kind["total_bytes"] for kind in described["tensors"]) == described["n_bytes"]
    placement = described["default_placement"]
    assert placement["host_bytes"] == sum(k["total_bytes"] for k in described["tensors"] if k["on_host"])
    assert placement["host_bytes"] + placement["resident_bytes"] == described["n_bytes"]


def test_the_description_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["models", "tiny-moe", "--quant", "Q8_0"]) == 0
    out = capsys.readouterr().out
    assert "ffn_gate_exps.weight" in out
    assert "6 x attention + experts" in out
    assert "in host memory" in out


def test_an_unknown_model_names_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["models", "tiny-dens"]) == 2
    assert "did you mean tiny-dense" in capsys.readouterr().err
