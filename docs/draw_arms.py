"""Draws docs/img/arms/*.svg, a timeline of each arm, from captures that `hprof run` records: part of `make docs`.

What each drawing shows stands beside it in docs/arms.md, in a comment behind the image: the run, and which of its
ubatches.

python docs/draw_arms.py                  # on the sim device, where every run gives the same drawing
python docs/draw_arms.py --device cuda    # what your own GPU does, into another folder with --into
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final, cast

import click
import numpy as np
import pandas as pd
from timeline_svg import Box, Kind, Picture, draw

import hprof
from profiler.arithmetic.intervals import Intervals, intersect, subtract, union
from profiler.capture import Capture

HERE: Final = Path(__file__).parent / "img" / "arms"
PAGE: Final = Path(__file__).parent / "arms.md"
COPIES: Final = ("h2d", "d2d")
SHOWN: Final = ("h2d", "d2d", "d2h", "compute", "cpu_compute")
TOO_SMALL: Final = 0.003  # share of the width: gaps below it are closed, and flags on their way to the host left out

_IN_PAGE: Final = re.compile(r"\(img/arms/([\w-]+)\.svg\)\n<!-- scene\n(.*?)-->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Scene:
    """One drawing: the first to the last of `ubatches` of the last pass of `run`, whose `--arms` names one arm."""

    name: str
    run: str
    ubatches: tuple[int, int]
    caption: str
    span_ms: float  # the same in drawings that are to be compared
    lead_ms: float = 0.0  # shown of what was before
    waits_for_router: bool = False
    from_end: bool = False  # begin at the end of the first ubatch


def scenes(page: str) -> list[Scene]:
    """The scenes that a page describes, each in TOML in a comment behind its image."""
    return [_scene(name, tomllib.loads(text)) for name, text in _IN_PAGE.findall(page)]


def _scene(name: str, described: dict[str, Any]) -> Scene:
    first, last = described.pop("ubatches")
    return Scene(name, ubatches=(first, last), **described)


def record(scene: Scene, device: str, folder: Path) -> Capture:
    """The capture of a scene's run."""
    path = folder / scene.name
    with redirect_stdout(StringIO()):
        code = hprof.main(["run", *scene.run.split(), "--device", device, "-o", str(path)])
    if code:
        raise click.ClickException(f"hprof run {scene.run} failed.")
    return hprof.open(str(path))


def picture(scene: Scene, capture: Capture) -> Picture:
    """The drawing of a scene from the capture of its run."""
    measured = capture.passes[~capture.passes["warmup"]]
    pass_id, arm = int(measured["pass_id"].iloc[-1]), str(measured["arm"].iloc[-1])
    ubatches = capture.frame("ubatches", pass_ids=[pass_id]).set_index("ubatch").sort_index()
    shown = ubatches.loc[scene.ubatches[0] : scene.ubatches[1]]
    origin = int(shown["t_end" if scene.from_end else "t_start"].iloc[0]) - int(scene.lead_ms * 1e6)
    events = _events(capture, pass_id, origin, scene.span_ms)
    took = _took(shown.iloc[1:] if scene.from_end else shown)
    return Picture(
        f"{arm} · {scene.caption} · {took}",
        f"Timeline of the arm {arm}: {scene.caption}; {took}.",
        scene.span_ms,
        list(_boxes(events, set(shown.index), scene.span_ms)),
        _marks(events, set(shown.index)) if scene.waits_for_router else (),
        _ends(shown, origin, host_is_idle=not (events["kind"] == "cpu_compute").any()),
    )


def _took(shown: pd.DataFrame) -> str:
    n_tokens = int(shown["n_tokens"].sum())
    took_ms = (int(shown["t_end"].iloc[-1]) - int(shown["t_start"].iloc[0])) / 1e6
    return f"{n_tokens} token{'' if n_tokens == 1 else 's'} in {took_ms:.1f} ms"


def _ends(shown: pd.DataFrame, origin_ns: int, *, host_is_idle: bool) -> list[tuple[float, str]]:
    """Where ubatches end; captions stand in the host's lane if it is free."""
    captions = [
        f"{n_tokens} tokens, as {policy}" if n_tokens > 1 else "token"
        for n_tokens, policy in zip(shown["n_tokens"], shown["policy"], strict=True)
    ]
    ends_ms = (shown["t_end"] - origin_ns) / 1e6
    return [(end, caption if host_is_idle else "") for end, caption in zip(ends_ms, captions, strict=True)]


def _events(capture: Capture, pass_id: int, origin_ns: int, span_ms: float) -> pd.DataFrame:
    """The rows that touch the window, with times in ns from its start."""
    events = capture.frame("events", pass_ids=[pass_id])
    events = events[events["kind"].isin(SHOWN) & (events["name"] != "embed")].copy()
    events[["t_start", "t_end"]] -= origin_ns
    inside = (events["t_end"] > 0) & (events["t_start"] < span_ms * 1e6)
    return events[inside].sort_values("t_start")


def _marks(events: pd.DataFrame, ubatches: set[int]) -> list[float]:
    known = events[(events["name"] == "copy flags") & events["ubatch"].isin(ubatches)]
    return [float(end) / 1e6 for end in known["t_end"]]


def _boxes(events: pd.DataFrame, ubatches: set[int], span_ms: float) -> Iterator[Box]:
    """Copies cut where compute begins or ends to hide them, then everything else, neighbours of a layer joined."""
    computing = _union(events[events["kind"] == "compute"])
    least_ns = TOO_SMALL * span_ms * 1e6
    for (stream, kind, ubatch, layer), rows in _joined(events, least_ns):
        faded, label = ubatch not in ubatches, "head" if layer < 0 else str(layer)
        if kind != "h2d":
            yield from _pieces(stream, kind, rows, label, faded)
            continue
        hidden, exposed = _pieces_of(intersect(rows, computing)), _pieces_of(subtract(rows, computing))
        longest = max([*hidden, *exposed], key=lambda piece: piece[1] - piece[0])
        for pieces, name in ((hidden, "h2d"), (exposed, "exposed")):
            for piece in pieces:
                yield _box(stream, piece, cast(Kind, name), label if piece == longest else "", faded)


def _joined(events: pd.DataFrame, least_ns: float) -> Iterator[tuple[tuple[str, str, int, int], Intervals]]:
    """Runs of rows of one stream, kind, ubatch and layer whose gaps are too small to see."""
    for stream, rows in events.groupby(events["stream"].astype(str)):
        keys = list(zip(rows["kind"], rows["ubatch"], rows["layer"].fillna(-1).astype(int), strict=True))
        starts, ends = rows["t_start"].to_numpy(np.int64), rows["t_end"].to_numpy(np.int64)
        begin = 0
        for i in range(1, len(keys) + 1):
            if i < len(keys) and keys[i] == keys[i - 1] and starts[i] - ends[i - 1] < least_ns:
                continue
            if keys[begin][0] != "d2h" or ends[i - 1] - starts[begin] > least_ns:
                kind, ubatch, layer = keys[begin]
                yield (str(stream), kind, int(ubatch), layer), Intervals(starts[begin : begin + 1], ends[i - 1 : i])
            begin = i


def _pieces(stream: str, kind: str, rows: Intervals, label: str, faded: bool) -> Iterator[Box]:
    for piece in _pieces_of(rows):
        yield _box(stream, piece, cast(Kind, kind), label, faded)


def _pieces_of(intervals: Intervals) -> list[tuple[int, int]]:
    return list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True))


def _box(stream: str, piece: tuple[int, int], kind: Kind, label: str, faded: bool) -> Box:
    return Box(stream, piece[0] / 1e6, piece[1] / 1e6, kind, label, faded)


def _union(rows: pd.DataFrame) -> Intervals:
    return union(rows["t_start"].to_numpy(np.int64), rows["t_end"].to_numpy(np.int64))


def draw_all(into: Path, wanted: Sequence[Scene], device: str) -> list[Path]:
    """Record and draw; returns the files."""
    into.mkdir(parents=True, exist_ok=True)
    files = []
    with tempfile.TemporaryDirectory() as folder:
        for scene in wanted:
            files.append(into / f"{scene.name}.svg")
            files[-1].write_text(draw(picture(scene, record(scene, device, Path(folder)))), encoding="utf-8")
    return files


@click.command(help=__doc__)
@click.option("--device", default="sim", show_default=True, type=click.Choice(["sim", "cpu", "cuda"]))
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), default=HERE)
def main(device: str, into: Path) -> None:
    files = draw_all(into, scenes(PAGE.read_text(encoding="utf-8")), device)
    click.echo(f"Wrote {len(files)} drawings of arms to {into}")


if __name__ == "__main__":
    main()
