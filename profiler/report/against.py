"""The closing paragraph's sentences about an arm held against another: what changed, and what that cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from profiler.arithmetic.stats import Comparison
from profiler.manifest import Arm
from profiler.report.data import Cell
from profiler.report.placements import placement_number
from profiler.report.report import Report
from profiler.report.residency import Residency
from profiler.report.units import format_bytes

_MORE_BYTES = 1.005  # fewer more would read as "1.00 times"


def said_against(report: Report, cell: Cell, name: str) -> Iterator[str]:
    """How an arm of a cell compares with its placement's first arm, and that arm with the cell's baseline."""
    first, compared = cell.held_against(name)
    arms = {arm.name: arm for arm in report.arms}
    yield from _changes(first, name, compared)
    if name in arms and first in arms and placement_number(arms[name]) != placement_number(arms[first]):
        yield from _placed(report, cell, first, arms[name])
    else:
        yield from _bytes_changed(cell, first, name)
        yield from _layers_lost(report.residency, first, name)


def said_over_cells(cells: Sequence[Cell]) -> Iterator[str]:
    """How the verdicts are spread where there is more than one cell."""
    if len(cells) < 2:
        return
    for name in dict.fromkeys(name for cell in cells for name in cell.against_baseline):
        verdicts = Counter(verdict for cell in cells if (verdict := _first_verdict(cell, name)) is not None)
        if verdicts:
            spread = ", ".join(f"{verdict} in {count}" for verdict, count in verdicts.most_common())
            own = next((f" against {cell.own_baselines[name]}" for cell in cells if name in cell.own_baselines), "")
            yield f"Over {verdicts.total()} cells {name}{own} is {spread}."


def _first_verdict(cell: Cell, name: str) -> str | None:
    if name not in cell.arms:
        return None
    _, compared = cell.held_against(name)
    found = compared.get("ttft_ns") or compared.get("prefill_tokens_per_s") or compared.get("decode_tokens_per_s")
    return found.verdict if found is not None else None


def _changes(first: str, name: str, compared: Mapping[str, Comparison | None]) -> Iterator[str]:
    words = {"ttft_ns": "time to first token", "decode_tokens_per_s": "decode speed"}
    if compared.get("ttft_ns") is None:
        words = {"prefill_tokens_per_s": "prefill speed", "decode_tokens_per_s": "decode speed"}
    told = [f"{words[key]} {_change(found)}" for key in words if (found := compared.get(key)) is not None]
    if told:
        yield f"{name} against {first}: {'; '.join(told)}."


def _change(found: Comparison) -> str:
    within = f" ({found.low:.3f} to {found.high:.3f})" if found.low is not None and found.high is not None else ""
    return f"x{found.ratio:.3f}{within}, {found.verdict}"


def _bytes_changed(cell: Cell, first: str, name: str) -> Iterator[str]:
    """What copying experts ahead costs in bytes: all of the selective copy, or some of it."""
    saved, kept = (cell.arms[arm].median("selective_saving_bytes") for arm in (first, name))
    if saved and (more := _times_the_bytes(cell, first, name)):
        whole = f"gives up the selective copy, which saved {first} {format_bytes(saved)}: it copied {more}"
        yield f"{name} {f'copied {more} of {first}' if kept else whole}."


def _times_the_bytes(cell: Cell, first: str, name: str) -> str | None:
    """`2.00 times the bytes` where the arm copies more."""
    before, after = (cell.arms[arm].median("bytes_h2d") for arm in (first, name))
    return f"{after / before:.2f} times the bytes" if before and after and after > before * _MORE_BYTES else None


def _layers_lost(residency: Mapping[str, Residency], first: str, name: str) -> Iterator[str]:
    """How many layers an arm keeps fewer than another for its slots and bank, which decode then pays for."""
    before, after = residency.get(first), residency.get(name)
    if before is None or after is None:
        return
    lost = len(after.host_layers) - len(before.host_layers)
    held = after.slots_bytes + after.bank_bytes - before.slots_bytes - before.bank_bytes
    if lost > 0 and held > 0:
        what = "slots and bank" if after.bank_bytes else "slots"
        yield f"Its {what} take {format_bytes(held)} more, so it keeps {_layers(lost)} fewer resident."


def _placed(report: Report, cell: Cell, first: str, arm: Arm) -> Iterator[str]:
    """What another placement means, which is the user's and no doing of the arm."""
    before, after = report.residency.get(first), report.residency.get(arm.name)
    lost = 0 if before is None or after is None else len(after.host_layers) - len(before.host_layers)
    told = [f"keeps {_layers(abs(lost))} {'fewer' if lost > 0 else 'more'} resident"] if lost else []
    more = _times_the_bytes(cell, first, arm.name)
    told += [f"copied {more} of {first}"] if more else []
    if told:
        asked = "its placement" if report.budgets else str(arm.options["placement"])
        yield f"{arm.name} {' and '.join(told)}, as {asked} asks."


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"
