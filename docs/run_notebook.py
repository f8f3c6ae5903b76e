"""Runs a notebook's cells without Jupyter and stores what they show.

`python -m docs.run_notebook examples/first-look.ipynb`. A cell shows its last expression, as text and, where the value
has `_repr_html_`, as HTML.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run in order in one namespace. What a cell raises comes through."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, number = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            shown = run_cell("".join(cell["source"]), names)
            cells.append(cell | {"execution_count": number, "outputs": _outputs(shown, number)})
        else:
            cells.append(cell)
    return notebook | {"cells": cells}


def run_cell(source: str, names: dict[str, Any]) -> object:
    """Run statements; the value of the last one, where it is an expression, else None."""
    tree = ast.parse(source)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        shown = ast.Assign([ast.Name("_", ast.Store())], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(shown, last))
    names["_"] = None
    exec(compile(tree, "<cell>", "exec"), names)
    return names["_"]


def _outputs(shown: object, number: int) -> list[Cell]:
    if shown is None:
        return []
    data = {"text/plain": repr(shown).splitlines(keepends=True)}
    if callable(draw := getattr(shown, "_repr_html_", None)):
        data["text/html"] = draw().splitlines(keepends=True)
    return [{"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}]


def main(path: Path) -> None:
    notebook = executed(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
