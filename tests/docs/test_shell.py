"""docs/shell.md lists every environment variable that hprof reads or sets for programs it starts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

PAGE = (ROOT / "docs" / "shell.md").read_text(encoding="utf-8")
_TOLD_BY_HPROF = re.compile("HPROF_SPOOL_")  # what `hprof record` tells the programs it starts, no setting


def variables_of(path: Path) -> Iterator[str]:
    """Names that the file looks up in the environment: as literals, or as constants of its own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=where, attr="get" | "setdefault"), args=[name, *_]):
                pass
            case ast.Subscript(value=where, slice=name):
                pass
            case _:
                continue
        if ast.unparse(where) == "os.environ":
            value = name.value if isinstance(name, ast.Constant) else constants.get(ast.unparse(name))
            yield value if isinstance(value, str) else ast.unparse(name)


@pytest.mark.parametrize("package", ["executor", "profiler", "dashboard", "hprof"])
def test_every_variable_that_is_read_is_listed(package: str) -> None:
    listed = set(re.findall(r"`([A-Z][A-Z0-9_]+)", PAGE)) | {"name"}  # of a loop over names that are listed too
    found = {name for path in (ROOT / package).rglob("*.py") for name in variables_of(path)}
    assert found - listed == set()


def test_what_the_recorder_reads_is_hprofs_own() -> None:
    native = (ROOT / "profiler" / "recording" / "native").glob("*.[ch]pp")
    found = {name for path in native for name in re.findall(r'getenv\("(\w+)"\)', path.read_text(encoding="utf-8"))}
    assert found
    assert {name for name in found if not _TOLD_BY_HPROF.match(name)} == set()


def test_a_constant_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('import os\nNAME: str = "A_B"\nos.environ.get(NAME)\nos.environ["C"]\n')
    assert list(variables_of(tmp_path / "a.py")) == ["A_B", "C"]
