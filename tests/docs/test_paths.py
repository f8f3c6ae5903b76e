"""Pages name files that exist, and the checks name the Pythons that the package does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

PAGES = [path for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md") if path.name != "CHANGELOG.md"]
_IN_CODE = re.compile(r"`((?:executor|profiler|dashboard|hprof|docs|tests|benchmarks|traces|\.ci|\.github)/[\w./-]*)`")
_LINK = re.compile(r"\]\(([^)#:]+)\)")
# What a worked example of a page asks its reader to write.
_TO_BE_WRITTEN = re.compile(r"every[-_]other|/peaks\.py$|^traces/mine$")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {name: ROOT / name for name in _IN_CODE.findall(text)}
    named |= {name: page.parent / name for name in _LINK.findall(text)}
    lost = {name for name, path in named.items() if not path.exists() and not _TO_BE_WRITTEN.search(name)}
    assert lost == set()


def test_hosted_checks_run_on_every_python_that_the_package_names() -> None:
    workflow = (ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8")
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [matrix] = re.findall(r"python: \[(.*)\]", workflow)
    assert re.findall(r"[\d.]+", matrix) == re.findall(r"Python :: ([\d.]+)", package)
    assert "- run: .ci/run\n" in workflow
