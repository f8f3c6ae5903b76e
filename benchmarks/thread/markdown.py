"""Rows as the markdown tables of docs/thread-tables.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from benchmarks.thread.rows import Row, by_cell

UNKNOWN: Final = "–"


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A markdown table."""
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in lines)]) + "\n"


def sweep_table(rows: Iterable[Row]) -> str:
    """Speed, speed-up and full-offload ceiling at each depth and ubatch, with C, T, T' and D beside them."""
    columns = ["depth", "ubatch", "off t/s", "on t/s", "full t/s", "on / off", "C ms", "T' ms", "T ms", "D"]
    columns += ["on / max(C, T)", "hidden"]
    return table(columns, (_sweep_line(cell) for cell in _in_order(rows)))


def _in_order(rows: Iterable[Row]) -> list[dict[str, Row]]:
    return sorted(by_cell(rows), key=lambda cell: (cell["off"]["n_ubatch"], cell["off"]["n_depth"]))


def _sweep_line(cell: dict[str, Row]) -> list[str]:
    off, on, full = cell["off"], cell["on"], cell["full"]
    limit_ms = max(full["compute_ms"], on["copy_ms"])
    return [
        f"{on['n_depth']:,}",
        f"{on['n_ubatch']:,}",
        *(with_interval(row, "prefill") for row in (off, on, full)),
        ratio(on, "prefill"),
        number(full["compute_ms"]),
        number(off["copy_ms"]),
        number(on["copy_ms"]),
        share(off["distinct_share"]),
        f"{on['ttft_ms'] / limit_ms:.3f}",
        share(on["hidden_share"]),
    ]


def arms_table(rows: Iterable[Row], *, decode: bool = True) -> str:
    """Each arm of each prompt: TTFT, prefill, decode and bytes moved."""
    columns = ["prompt", "arm", "TTFT ms", "against off", "prefill t/s", "against off", "MiB moved", "MiB / off"]
    columns += ["C ms", "T ms", "D"] + (["decode t/s", "against off", "VRAM GiB"] if decode else [])
    cells = [list(cell.values()) for cell in by_cell(rows)]
    return table(columns, (_arm_line(row, cell[0], decode) for cell in cells for row in cell))


def _arm_line(row: Row, off: Row, decode: bool) -> list[str]:
    more = [with_interval(row, "decode"), ratio(row, "decode"), number(row["vram_gib"])] if decode else []
    return [
        f"{row['n_prompt']:,}",
        row["arm"],
        with_interval(row, "ttft_ms"),
        ratio(row, "ttft_ms"),
        with_interval(row, "prefill"),
        ratio(row, "prefill"),
        number(row["copied_mib"]),
        number(row["copied_mib"] / off["copied_mib"]) if off["copied_mib"] else UNKNOWN,
        number(row["compute_ms"]),
        number(row["copy_ms"]),
        share(row["distinct_share"]),
        *more,
    ]


def number(value: float | None) -> str:
    """Three significant digits, all digits above a hundred."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def with_interval(row: Row, name: str) -> str:
    """`902 [899, 905]`."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    bounds = "" if low is None or high is None else f" [{number(low)}, {number(high)}]"
    return number(row[name]) + bounds


def ratio(row: Row, name: str) -> str:
    """`x1.147 [1.142, 1.151] faster`."""
    value: Any = row[f"{name}_ratio"]
    if value is None:
        return ""
    low, high = row[f"{name}_ratio_low"], row[f"{name}_ratio_high"]
    bounds = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"x{value:.3f}{bounds} {row[f'{name}_verdict']}"
