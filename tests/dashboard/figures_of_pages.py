"""What a page of the dashboard shows, read back as numbers: its tables in base units, its charts by the names of their
traces, its sentences; and the JSON of hprof's commands to hold them against.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

import hprof
from tests.dashboard.pages import APP, said

UNITS: Final = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9} | {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
"""Of headers and sentences, in ns and bytes."""
_OTHER_UNITS: Final = {"%": 0.01, "t/s": 1, "GB/s": 1}
RUNS: Final = {
    "dense": "-m tiny-dense --layers 2 --device sim --arms off,on,full -p 64 -n 2 -ub 32,64 -r 2",
    "moe": "-m tiny-moe --layers 3 --device sim --arms off,on,hot+cache --moe-cache-mib 1 -p 96 -n 2 -ub 32,48 -r 6",
    "cpu": "-m tiny-dense --layers 2 --device cpu --arms off,on -p 64 -n 2 -ub 32 -r 2",
}
"""What the captures that pages are held to measure, by name."""
_RENAMED: Final = ("what_if", "import_")
"""Pages whose address is not their file's name, which AppTest finds only after a first run."""
_SIZES: Final = ("prompt", "gen", "ubatch", "depth")
_DIGITS: Final = 6e-4  # a table has four of them
_SENTENCE: Final = 6e-3  # a sentence three
_AMOUNT: Final = re.compile(rf"([\d,.]+) ({'|'.join(sorted(UNITS, key=len, reverse=True))})\b")
_TYPES: Final = {"f8": np.float64, "f4": np.float32, "i1": np.int8, "i2": np.int16, "i4": np.int32, "u1": np.uint8}


class Measured:
    """A capture, and what is known of it without a page."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report = as_json("report", str(path))
        self.arms: list[str] = [arm["name"] for arm in self.report["arms"]]
        self.opened = hprof.open(str(path))
        self._frames: dict[str, pd.DataFrame] = {}

    def figures(self, level: Any, arm: str, n_ubatch: int) -> pd.DataFrame:
        """The Python API's rows of an arm in the cell of this ubatch."""
        if level not in self._frames:
            self._frames[level] = self.opened.figures(level)
        passes = self.opened.passes.query("arm == @arm and n_ubatch == @n_ubatch")["pass_id"]
        found = self._frames[level]
        return found[found["pass_id"].isin(passes)].copy()


def measure(name: str, folder: Path) -> Measured:
    """The capture of this name in RUNS, in a folder of its own."""
    path = folder / name
    assert hprof.main(["run", *RUNS[name].split(), "-o", str(path)]) == 0
    return Measured(path)


@contextmanager
def page_of(capture: Path, page: str, **address: str) -> Iterator[AppTest]:
    """The page over this capture, opened by its address; fails if it raises."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["app.py", "--traces", str(capture.parent)])
        app = AppTest.from_file(str(APP), default_timeout=60)
        for name, value in ({"capture": capture.name} | address).items():
            app.query_params[name] = value
        if page in _RENAMED:
            app.run()
        app.switch_page(f"views/{page}.py").run()
        assert not app.exception, app.exception[0].value + "\n".join(app.exception[0].stack_trace)
        yield app


def as_json(*command: str) -> dict[str, Any]:
    """What a command prints with `--json`."""
    told = io.StringIO()
    with redirect_stdout(told):
        assert hprof.main([*command, "--json"]) == 0
    found: dict[str, Any] = orjson.loads(told.getvalue())
    return found


def table(app: AppTest, *titles: str) -> pd.DataFrame:
    """The one table of the page with these columns, in ns, bytes, shares and rates; units are off its headers."""
    tables = [_in_base_units(one.value) for one in app.dataframe]
    (found,) = (one for one in tables if set(titles) <= set(one))
    return found


def _in_base_units(shown: pd.DataFrame) -> pd.DataFrame:
    columns = {}
    for header in map(str, shown):
        title, _, unit = header.rpartition(", ")
        scale = (UNITS | _OTHER_UNITS).get(unit)
        columns[header if scale is None else title] = shown[header] if scale is None else shown[header] * scale
    return pd.DataFrame(columns)


class Chart:
    """A chart's traces, in ns, bytes and shares where an axis names a unit."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.traces = {trace.get("name", ""): trace for trace in spec["data"]}
        self._layout = spec["layout"]

    def drawn(self, name: str, axis: str = "y") -> list[float]:
        """What the trace of this name draws along an axis."""
        return [value * self._scale(axis) for value in _numbers(self.traces[name][axis])]

    def whiskers(self, name: str) -> tuple[list[float], list[float]]:
        """The lower and upper ends of a trace's intervals."""
        middle, bars = self.drawn(name), self.traces[name]["error_y"]
        low, high = (
            [end * self._scale("y") for end in map(_or_nan, _numbers(bars[side]))] for side in ("arrayminus", "array")
        )
        return (
            [at - down for at, down in zip(middle, low, strict=True)],
            [at + up for at, up in zip(middle, high, strict=True)],
        )

    def heat(self) -> tuple[list[float], float]:
        """Of a heatmap of percents over time: how long each row was busy, and how long the axis is."""
        (trace,) = self.traces.values()
        step = trace["dx"] * self._scale("x")
        shares = [[0.01 * percent for percent in row] for row in _numbers(trace["z"])]
        return [sum(row) * step for row in shares], len(shares[0]) * step

    def _scale(self, axis: str) -> float:
        title = self._layout[f"{axis}axis"].get("title", {}).get("text", "")
        found = [scale for unit, scale in (UNITS | {"%": 0.01}).items() if unit in re.split(r"[ ,:]+", title)]
        return found[0] if found else 1


def chart(app: AppTest, key: str) -> Chart:
    """The chart of the page with this key."""
    (spec,) = (one.proto.spec for one in app.get("plotly_chart") if one.proto.id.endswith(f"-{key}"))
    return Chart(orjson.loads(spec))


def _numbers(told: Any) -> Any:
    """Plotly packs arrays as base64."""
    if isinstance(told, dict) and "bdata" in told:
        flat = np.frombuffer(base64.b64decode(told["bdata"]), _TYPES[told["dtype"]])
        shape = told.get("shape")
        return (flat if shape is None else flat.reshape([int(n) for n in str(shape).split(",")])).tolist()
    return told


def same(shown: Iterable[Any], known: Iterable[Any]) -> None:
    """Numbers of a table or a chart are those that are known, to a table's digits; null and NaN are alike."""
    assert [*map(_or_nan, shown)] == pytest.approx([*map(_or_nan, known)], rel=_DIGITS, abs=1e-12, nan_ok=True)


def _or_nan(value: Any) -> float:
    return math.nan if value is None else float(value)


def amounts(sentence: str) -> list[float]:
    """The times and sizes that a sentence tells, in ns and bytes: `off moved 9.6 MiB`."""
    return [float(number.replace(",", "")) * UNITS[unit] for number, unit in _AMOUNT.findall(sentence)]


def tells(app: AppTest, beginning: str, known: Sequence[float | None]) -> str:
    """The line of the page that begins so tells these times and sizes, and no others; the line."""
    (line,) = (line.strip() for line in said(app).splitlines() if line.strip().startswith(beginning))
    assert amounts(line) == pytest.approx([one for one in known if one is not None], rel=_SENTENCE), line
    return line


def cell_of(report: Mapping[str, Any], **sizes: int) -> dict[str, Any]:
    """The report's cell of these sizes."""
    (found,) = (cell for cell in report["cells"] if sizes.items() <= cell.items())
    return dict(found)


def cell_name(cell: dict[str, Any]) -> str:
    """As the address spells it."""
    return "-".join(f"{flag}{cell[f'n_{name}']}" for flag, name in zip(("p", "n", "ub", "d"), _SIZES, strict=True))


def median(arm: Mapping[str, Any], name: str, phase: str | None = None) -> float | None:
    """An arm's figure of a cell, of a pass or of a phase; None where there is none."""
    found = (arm if phase is None else arm[phase])[name]
    return None if found is None else found["median"]
