"""The plots beside the tables, as PNG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.thread.rows import Row, by_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by colour-blind readers too; the marker says it once more.
STYLE: Final = {
    "off": ("#000000", "o"),
    "off, pageable": ("#777777", "o"),
    "off-whole": ("#D55E00", "v"),
    "on": ("#0072B2", "s"),
    "gated": ("#009E73", "D"),
    "hot": ("#CC79A7", "P"),
    "cache": ("#E69F00", "X"),
    "cpu": ("#56B4E9", "<"),
    "full": ("#999999", "^"),
}


def sweep_plot(rows: Sequence[Row], title: str, path: Path) -> None:
    """Prefill speed over depth, one panel a ubatch, with what max(C, T) would allow `on`."""
    ubatches = sorted({row["n_ubatch"] for row in rows})
    figure, panels = _panels(len(ubatches), title)
    for panel, n_ubatch in zip(panels, ubatches, strict=True):
        own = sorted((row for row in rows if row["n_ubatch"] == n_ubatch), key=lambda row: row["n_depth"])
        for arm in dict.fromkeys(row["arm"] for row in own):
            draw_line(panel, [row for row in own if row["arm"] == arm], "n_depth", "prefill", arm)
        limit = [(cell["on"]["n_depth"], _limit(cell)) for cell in by_cell(own)]
        panel.plot(*zip(*limit, strict=True), "--", color="#0072B2", linewidth=1, label="max(C, T)")
        panel.set(title=f"ubatch {n_ubatch:,}", xlabel="depth, tokens", ylabel="prefill, tokens/s")
        panel.set_ylim(bottom=0)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.tick_params(axis="x", labelrotation=30)
    panels[0].legend()
    _save(figure, path)


def _limit(cell: dict[str, Row]) -> float:
    return float(cell["on"]["n_prompt"] / max(cell["full"]["compute_ms"], cell["on"]["copy_ms"]) * 1e3)


def draw_line(panel: Axes, rows: Sequence[Row], x: str, y: str, arm: str) -> None:
    """One arm, with intervals."""
    colour, marker = STYLE[arm]
    low = [row[y] - (row[f"{y}_low"] or row[y]) for row in rows]
    high = [(row[f"{y}_high"] or row[y]) - row[y] for row in rows]
    xs, ys = [row[x] for row in rows], [row[y] for row in rows]
    panel.errorbar(xs, ys, [low, high], color=colour, marker=marker, markersize=4, capsize=2, linewidth=1.5, label=arm)


def bars(panel: Axes, rows: Sequence[Row], value: str, label: str) -> None:
    """One bar a row with its interval, the figure written on it; a row that does not know it has none."""
    rows = [row for row in rows if row[value] is not None]
    heights = [row[value] for row in rows]
    low = [h - (row.get(f"{value}_low") or h) for h, row in zip(heights, rows, strict=True)]
    high = [(row.get(f"{value}_high") or h) - h for h, row in zip(heights, rows, strict=True)]
    colours = [STYLE.get(row["arm"], ("#0072B2", ""))[0] for row in rows]
    names = [row["arm"] for row in rows]
    drawn = panel.bar(names, heights, yerr=[low, high], color=colours, capsize=3, ecolor="#888888")  # seen on black too
    panel.bar_label(drawn, [f"{h:,.0f}" if h >= 100 else f"{h:.3g}" for h in heights], padding=2, fontsize=8)
    panel.set(title=label)
    panel.margins(y=0.15)


def bar_plot(panels: Iterable[tuple[str, str, Sequence[Row]]], title: str, path: Path) -> None:
    """Bars side by side: (label, figure, rows)."""
    wanted = list(panels)
    figure, axes = _panels(len(wanted), title)
    for axis, (label, value, rows) in zip(axes, wanted, strict=True):
        bars(axis, rows, value, label)
    _save(figure, path)


def wide_bars(panels: Iterable[tuple[str, str, Sequence[Row]]], title: str, path: Path) -> None:
    """The same with many bars: lying, one panel a figure."""
    wanted = list(panels)
    figure, axes = _panels(len(wanted), title)
    for axis, (label, value, rows) in zip(axes, wanted, strict=True):
        names = [row["arm"].replace("\n", " ") for row in rows]
        drawn = axis.barh(names, [row[value] for row in rows], color="#0072B2")
        axis.bar_label(drawn, fmt="{:.1f}", padding=2, fontsize=8)
        axis.invert_yaxis()
        axis.set(title=label)
        axis.margins(x=0.15)
        axis.tick_params(axis="y", labelsize=7)
    _save(figure, path)


def crossover_plot(rows: Sequence[Row], at: float | None, title: str, path: Path) -> None:
    """`on` against `off` by batch: below 1 prefetch wins."""
    own = sorted((row for row in rows if row["arm"] == "on"), key=lambda row: row["n_prompt"])
    figure, (panel,) = _panels(1, title)
    draw_line(panel, own, "n_prompt", "ttft_ms_ratio", "on")
    panel.axhline(1, color="black", linewidth=1)
    if at is not None:
        panel.axvline(at, color="#0072B2", linestyle=":", label=f"crossover {at:,.0f}")
        panel.legend()
    panel.set_xscale("log", base=2)
    panel.set_xticks([row["n_prompt"] for row in own], [f"{row['n_prompt']:,}" for row in own])
    panel.set(xlabel="tokens of the batch", ylabel="TTFT, on / off")
    _save(figure, path)


def _panels(n: int, title: str) -> tuple[Any, list[Axes]]:
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    figure, axes = plt.subplots(1, n, figsize=(max(4.2 * n, 6), 3.8), squeeze=False, layout="constrained")
    figure.suptitle(title)
    return figure, list(axes[0])


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
