"""Puts measured tables and plots into docs/thread-tables.md, between `<!-- a -->` and `<!-- /a -->`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.thread import plots
from benchmarks.thread.devices import device_tables
from benchmarks.thread.host_layers import host_layers_table
from benchmarks.thread.load_modes import MODES, MODES_FILE, load_table
from benchmarks.thread.markdown import arms_table, ratio, sweep_table, table, with_interval
from benchmarks.thread.markdown import number as said
from benchmarks.thread.reuse import reuse_distances
from benchmarks.thread.rows import Row, cell_rows, report_of
from benchmarks.thread.tables import TABLES
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.metrics.experts import adjacent_layer_jaccard
from profiler.report.build import machine_label
from profiler.report.sweep import Crossover, crossover


def draw_table(letter: str, captures: Path, docs: Path) -> str:
    """Draw one table into `docs`; returns its markdown. Raises HprofError where a capture is missing or unreadable."""
    names = capture_names(letter)
    missing = [name for name in names if not (captures / name).exists()]
    if missing:
        raise HprofError(
            f"{captures} has no {', '.join(missing)}, which table ({letter}) is made of; "
            f"run `python -m benchmarks.thread measure {letter}` first"
        )
    images = docs / "img" / "thread"
    images.mkdir(parents=True, exist_ok=True)
    if letter == "e":
        text = _load_modes(json.loads((captures / MODES_FILE).read_text()), images)
    elif letter == "f":
        text = "\n".join(device_tables(captures))
    else:
        drawn = {"a": _sweep, "b": _sweep, "c": _laguna, "d": _decode}[letter]
        text = "\n".join(drawn(letter, captures, images))
    commands = "\n".join(shlex.join(run.argv(f"traces/thread/{run.name}")) for run in TABLES[letter].runs)
    measured_on = f"Measured on: {machines(captures / name for name in names if name != MODES_FILE)}.\n\n"
    block = (f"```\n{commands}\n```\n\n" if commands else "") + measured_on + text
    _put(docs / "thread-tables.md", letter, block)
    return block


def capture_names(letter: str) -> list[str]:
    """What a table is made of, under the folder of captures."""
    if letter == "e":
        return [MODES_FILE, *(f"e-{number:02d}" for number in range(len(MODES)))]
    return [run.name for run in TABLES[letter].runs]


def machines(captures: Iterable[Path]) -> str:
    """Where these were measured, each machine once: a page must not pass a simulation for a GPU."""
    labels = (machine_label(Capture.open(str(path)).manifest) for path in captures)
    return "; ".join(dict.fromkeys(label or "a machine that the capture does not name" for label in labels))


def _put(page: Path, letter: str, block: str) -> None:
    start, end = f"<!-- {letter} -->", f"<!-- /{letter} -->"
    text = page.read_text(encoding="utf-8")
    marked = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    if not marked.search(text):
        raise ValueError(f"{page} has no {start} … {end} to fill")
    page.write_text(marked.sub(lambda _: f"{start}\n{block}\n{end}", text), encoding="utf-8")


def _rows(captures: Path, name: str) -> list[Row]:
    return cell_rows(report_of(str(captures / name)))


def _image(images: Path, name: str, alternative: str) -> str:
    return f"![{alternative}](img/{images.name}/{name})\n"


def _sweep(letter: str, captures: Path, images: Path) -> Iterator[str]:
    (run,) = TABLES[letter].runs
    rows = _rows(captures, run.name)
    plots.sweep_plot(rows, TABLES[letter].title, images / f"{letter}.png")
    yield sweep_table(rows)
    yield _image(images, f"{letter}.png", f"Prefill speed over depth of arms off, on and full; {TABLES[letter].title}")


def _laguna(letter: str, captures: Path, images: Path) -> Iterator[str]:
    short, long, budget = (_rows(captures, name) for name in ("c-short", "c-long", "c-budget"))
    shown = [("34 tokens: MiB moved", "copied_mib", short), ("34 tokens: TTFT, ms", "ttft_ms", short)]
    shown += [("10,240 tokens: prefill, t/s", "prefill", long), ("decode under a budget, t/s", "decode", budget)]
    plots.bar_plot(shown, TABLES[letter].title, images / "c.png")
    yield arms_table([*short, *long], decode=False)
    yield _image(images, "c.png", "Bytes, TTFT, prefill and decode of arms off, off-whole, on and gated")
    yield "Batch sizes, each prompt one ubatch:\n"
    sweep = _rows(captures, "c-sweep")
    at = batch_crossover(sweep)
    plots.crossover_plot(
        sweep, at.n_ubatch if at else None, "Laguna-S-2.1: on against off by batch", images / "c-sweep.png"
    )
    yield arms_table(sweep, decode=False)
    yield _crossover_sentence(at)
    yield _image(images, "c-sweep.png", "TTFT of on over off by batch size")
    yield "At a depth of 88,064 tokens:\n"
    yield arms_table(_rows(captures, "c-deep"), decode=False)
    yield "Under a budget of VRAM, each arm with as many resident layers as fit beside its slots:\n"
    yield arms_table(budget)
    yield _placements(Capture.open(str(captures / "c-budget")))
    yield "Decode of the first 30 layers, by how many of them have their experts on the host:\n"
    yield host_layers_table(Capture.open(str(captures / "c-host")))


def batch_crossover(rows: list[Row]) -> Crossover | None:
    """Where `on` becomes faster than `off`, over prompts that are one ubatch each."""
    own = [row for row in rows if row["arm"] == "on"]
    frame = pd.DataFrame(
        {
            **{name: [row["n_prompt"] for row in own] for name in ("n_ubatch", "n_prompt")},
            **{key: [row[f"ttft_ms_{key}"] for row in own] for key in ("ratio", "ratio_low", "ratio_high")},
        }
    )
    return crossover(frame.astype(float).assign(word=[row["ttft_ms_word"] for row in own]))


def _crossover_sentence(at: Crossover | None) -> str:
    if at is None:
        return "`on` and `off` never cross in this range.\n"
    if at.n_ubatch is None:
        return (
            f"Crossover: `on` is the faster one from a batch between {said(at.below)} and {said(at.above)} tokens up.\n"
        )
    bounds = f" ({said(at.low)} to {said(at.high)})" if at.low is not None and at.high is not None else ""
    return f"Crossover: `on` is the faster one from a batch of {said(at.n_ubatch)}{bounds} tokens up.\n"


def _placements(capture: Capture) -> str:
    columns = ["arm", "layers with their FFN on the host", "slots GiB", "resident GiB"]
    lines = []
    for arm in capture.manifest.arms:
        used = arm.effective_options
        sizes = (used["vram_slots"] / 2**30, used["vram_resident"] / 2**30)
        lines.append([arm.name, str(len(used["host_layers"])), *map(said, sizes)])
    return table(columns, lines)


def _decode(letter: str, captures: Path, images: Path) -> Iterator[str]:
    rows = _rows(captures, "d-cache")
    pageable = [row | {"arm": "off, pageable"} for row in _rows(captures, "d-pageable")]
    yield _decode_table([*rows, *pageable])
    single = _longest(_rows(captures, "d-batch1"))
    plots.bar_plot(
        [("decode, t/s", "decode", [*rows, *pageable]), ("batch 1: decode, t/s", "decode", single)],
        TABLES[letter].title,
        images / "d.png",
    )
    yield _image(images, "d.png", "Decode speed by arm")
    yield "One token at a time, everything streamed:\n"
    yield _decode_table(single)
    yield _routing_sentences(Capture.open(str(captures / "d-cache")))


def _longest(rows: list[Row]) -> list[Row]:
    """The cell with the most generated tokens."""
    most = max(row["n_gen"] for row in rows)
    return [row for row in rows if row["n_gen"] == most]


def _decode_table(rows: list[Row]) -> str:
    columns = ["arm", "decode t/s", "against off", "MiB copied a pass's decode", "cache hits", "VRAM GiB"]
    return table(columns, (_decode_line(row) for row in rows))


def _decode_line(row: Row) -> list[str]:
    hits = "" if row["hit_rate"] is None else f"{row['hit_rate']:.1%}"
    return [
        row["arm"],
        with_interval(row, "decode"),
        ratio(row, "decode"),
        said(row["decode_copied_mib"]),
        hits,
        said(row["vram_gib"]),
    ]


def _routing_sentences(capture: Capture) -> str:
    experts = capture.table("experts")
    overlap = adjacent_layer_jaccard(experts)
    by_size = overlap.groupby("n_tokens")["jaccard"].mean()
    within = reuse_distances(experts).share_within(1)
    sizes = ", ".join(f"{value:.3f} at {n:,} token{'' if n == 1 else 's'}" for n, value in by_size.items())
    return (
        f"Overlap (Jaccard) of the experts of adjacent layers: {sizes}. "
        f"Of a token's experts, {within:.1%} were those of the token before it.\n"
    )


def _load_modes(rows: list[dict[str, Any]], images: Path) -> str:
    bars = [row | {"arm": row["mode"].replace(", ", "\n").replace(" +", "\n+")} for row in rows]
    panels = [(f"{when} pass: GB/s", f"{key}_gb_s", bars) for when, key in (("first", "first"), ("later", "warm"))]
    plots.wide_bars(panels, TABLES["e"].title, images / "e.png")
    return f"{load_table(rows)}\n{_image(images, 'e.png', 'Copy speed by kind of host memory')}"
