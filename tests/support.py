"""What tests use that a clone of the repository does not hold: one place says where each thing is looked for.

| missing | tests skipped, with the reason | run in a bare clone instead |
|---|---|---|
| `../shared/data` (`shared_path`) | real nsys exports, an A100 trace: not ours | built exports, `tests/data/kineto` |
| SmolLM2 (`smollm2_path`; `make model`) | those marked `model` | the models of `tests/gguf_models.py`, presets |
| a browser (`chromium_path`) | those marked `browser` | Streamlit's AppTest, checks of the page's text |
| a llama-bench (`real_llama_bench`) | one | a script that answers as it does |
| an NVIDIA GPU | those marked `cuda`, `tests/gpu` | devices `cpu` and `sim` |
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def shared_path(*parts: str) -> Path:
    """A file of `tests/PARTS` where the repository holds it, else `../shared/PARTS` beside the checkout."""
    if (own := ROOT.joinpath("tests", *parts)).is_file():
        return own
    path = ROOT.parent.joinpath("shared", *parts)
    if not path.exists():
        pytest.skip(f"no sample at ../shared/{'/'.join(parts)}")
    return path


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as GGUF: `HPROF_SMOLLM2`, else the one that `make model` put into .cache/models."""
    if named := os.environ.get("HPROF_SMOLLM2"):
        return Path(named)
    found = sorted((ROOT / ".cache" / "models").glob("SmolLM2*.gguf"))
    if not found:
        pytest.skip("no SmolLM2 GGUF under .cache/models: run `make model`")
    return found[0]


def chromium_path() -> str:
    """The browser's program: `HPROF_CHROMIUM`, else the first one on the path."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    for name in (os.environ.get("HPROF_CHROMIUM", ""), *_BROWSERS):
        if name and (found := shutil.which(name)):
            return found
    pytest.skip(f"no browser: none of {', '.join(_BROWSERS)} is on the path (apt-get install chromium)")


def real_llama_bench() -> tuple[str, str]:
    """A llama-bench and a small GGUF for it: `LLAMA_BENCH` and `LLAMA_BENCH_MODEL`."""
    program, model = os.environ.get("LLAMA_BENCH"), os.environ.get("LLAMA_BENCH_MODEL")
    if not program or not model:
        pytest.skip("LLAMA_BENCH and LLAMA_BENCH_MODEL name no llama-bench and no model")
    return program, model


def one_sentence(error: BaseException) -> str:
    """What an error says; fails the test where that is no single line that ends as a sentence does."""
    said = str(error)
    assert said.endswith("."), said
    assert "\n" not in said
    return said


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
