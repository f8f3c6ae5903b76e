"""Pages name files that exist, and the checks name the Pythons that the package does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

PAGES = [path for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md") if path.name != "CHANGELOG.md"]
_IN_CODE = re.compile(r"`((?:executor|profiler|dashboard|hprof|docs|tests|benchmarks|traces|\.ci|\.github)/[\w./-]*)`")
_LINK = re.compile(r"\]\(([^)#:]+)\)")
_CAPTURE = "traces/mine"  # what a reader's own run writes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {name: ROOT / name for name in _IN_CODE.findall(text)}
    named |= {name: page.parent / name for name in _LINK.findall(text)}
    assert {name for name, path in named.items() if not _is_there(path, page) and name != _CAPTURE} == set()


def _is_there(path: Path, page: Path) -> bool:
    """Worked examples ask their readers to write files, into folders that exist."""
    return path.exists() or (page.name.startswith("adding-") and path.parent.is_dir())


def test_hosted_checks_run_on_every_python_that_the_package_names() -> None:
    workflow = (ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8")
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [matrix] = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"[\d.]+", matrix) == re.findall(r"Python :: ([\d.]+)", package)
    assert "- run: .ci/run\n" in workflow
