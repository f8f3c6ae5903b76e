"""Where tests find files that the repository does not hold; a test is skipped, with the reason, when one is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shared_path(*parts: str) -> Path:
    """`../shared/PARTS` next to the repository: samples that are read there and never copied."""
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
