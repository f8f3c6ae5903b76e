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


@pytest.mark.parametrize("command", [["models"], ["run", "--device", "sim", "-m"]])
def test_a_folder_says_what_in_it_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("fetched", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "fetched" / "config.json").write_text("{}")
    for spelled in ("fetched", "./fetched", f"{tmp_path}/fetched/"):
        assert hprof.main([*command, spelled]) == 2
        assert f"--config {Path(spelled) / 'config.json'}" in capsys.readouterr().err
    assert hprof.main([*command, "empty"]) == 2
    assert "empty is a folder and holds no config.json" in capsys.readouterr().err


def test_a_folder_hides_no_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-dense").mkdir()
    assert hprof.main(["models", "tiny-dense"]) == 0


def test_an_unknown_model_names_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["models", "tiny-dens"]) == 2
    assert "did you mean tiny-dense" in capsys.readouterr().err
    assert hprof.main(["models", "x" * 400]) == 2
    assert "no preset 'xxx" in capsys.readouterr().err
