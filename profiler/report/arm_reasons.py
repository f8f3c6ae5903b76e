"""Why an arm is as fast as it is, and what it takes for that: sentences from its copies, compute, memory and decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from executor.units import format_bytes, format_count, format_factor, format_ns, format_share, format_value, listed
from profiler.metrics import FIGURES
from profiler.report.cells import Cell
from profiler.report.phases import DECODE_RATE, PHASES, with_fastest
from profiler.report.residency import Residency
from profiler.report.shown_cells import best_and_worst, telling_figure, told_comparison
from profiler.report.verdicts import as_fast, factor_range, verdict_word

_ACTIVATIONS: Final = 0.1  # of an arm's bytes that are weights
_AS_MANY: Final = 0.01  # a byte count that differs by less reads as the same one
_A_PART: Final = 0.1  # of what the CPU computes with the baseline: less is that of a last row


def told_work(cell: Cell, name: str) -> str | None:
    """`copies for 204 ms, 30.7 % of it hidden behind 271 ms of compute, 1.06 x the bytes of off`; None: not recorded.

    Bytes are told where they differ from the baseline's. A baseline that leaves the weights on the host copies
    activations alone: no bytes to hold an arm's against, whose own are told then, and where the baseline's time goes.
    """
    arm, baseline = cell.arms[name], cell.arms[cell.baseline]
    n_bytes, copy_ns, compute_ns = (arm.median(key) for key in ("bytes_h2d", "busy_copy_ns", "busy_compute_ns"))
    if n_bytes is None or copy_ns is None or compute_ns is None:
        return None
    computes = f"computes for {format_ns(compute_ns)}"
    if not copy_ns:
        return f"copies nothing and {computes}"
    before, host_ns = baseline.median("bytes_h2d"), baseline.median("host_compute_ns")
    is_of_weights = before is not None and before >= _ACTIVATIONS * n_bytes
    amount = "" if is_of_weights or before is None else f" {format_bytes(n_bytes)}"
    told = [f"copies{amount} for {format_ns(copy_ns)}, {_hidden(arm.median('hidden_ratio'), compute_ns)}"]
    if before and is_of_weights and abs(n_bytes / before - 1) > _AS_MANY:
        told.append(f"{format_factor(n_bytes / before)} x the bytes of {cell.baseline}")
    if host_ns and not is_of_weights:
        own_ns = arm.median("host_compute_ns") or 0
        both = own_ns > _A_PART * host_ns
        now, then = (f"with {format_ns(own_ns)} of the CPU ", "") if both else ("", " of the CPU")
        told.append(f"{now}in place of {format_ns(host_ns)}{then} with {cell.baseline}")
    return ", ".join(told)


def _hidden(ratio: float | None, compute_ns: float) -> str:
    if ratio is None:
        return f"and computes for {format_ns(compute_ns)}"
    share = format_share(ratio) if ratio else "none"
    return f"{share} of it hidden behind {format_ns(compute_ns)} of compute"


def told_why(cells: Sequence[Cell], name: str, keys: Sequence[str], *, has_worst: bool) -> Iterator[str]:
    """What copying and computing took where the arm did best, and where it did worst. keys: sizes that name a cell."""
    ends = best_and_worst(cells, name)
    if ends is None:
        return
    if ends[0] is ends[1]:
        if (work := told_work(ends[0], name)) is not None:
            yield f"Why: {name} {work}."
        return
    told = []
    for word, cell in zip((f"where {name} does best", "where worst"), ends if has_worst else ends[:1], strict=False):
        if (work := told_work(cell, name)) is not None:
            told.append(f"{word} ({cell.named(keys)}), it {work}")
    if told:
        yield f"Why: {'; '.join(told)}."


def told_price(
    residency: Mapping[str, Residency], baseline: str, names: Sequence[str], cell: Cell, *, most: int
) -> Iterator[str]:
    """The device memory that arms take more than the baseline, at most so many sentences; equal ones share one."""
    by_price: dict[str, list[str]] = {}
    for name in names:
        before, after = residency.get(baseline), residency.get(name)
        if name in cell.arms and before is not None and after is not None and (price := _price(before, after)):
            by_price.setdefault(price, []).append(name)
    for price, alike in list(by_price.items())[:most]:
        yield f"{listed(alike)} {'takes' if len(alike) == 1 else 'take'} {price}."


def _price(before: Residency, after: Residency) -> str:
    told = []
    if extra := after.slots_bytes + after.bank_bytes - before.slots_bytes - before.bank_bytes:
        what = "copy buffers and the expert cache" if after.bank_bytes else "copy buffers"
        told.append(f"{format_bytes(abs(extra))} {'more' if extra > 0 else 'less'} device memory for {what}")
    if lost := len(after.host_layers) - len(before.host_layers):
        told.append(f"weights of {format_count(abs(lost), 'layer')} {'off' if lost > 0 else 'onto'} the device")
    return " and ".join(told)


def told_decode(cell: Cell, names: Sequence[str], choices: Sequence[str], keys: Sequence[str]) -> Iterator[str]:
    """`Decode: 12.3 t/s with off; on 1.24 x as fast (faster); gated did the same work.`; nothing where none was timed.

    names: arms in the table; of the choices the fastest is told beside them. keys: the sizes that tell the cells apart;
    of them the depth changes decode.
    """
    speed = cell.arms[cell.baseline].median(DECODE_RATE)
    if speed is None:
        return
    told, same = [f"{format_value(speed, FIGURES[DECODE_RATE].unit)} t/s with {cell.baseline}"], []
    for name in with_fastest([cell], DECODE_RATE, names, choices):
        found = cell.against_baseline.get(name, {}).get(DECODE_RATE)
        if found is None:
            continue
        if found.is_same_work:
            same.append(name)
        else:
            word = "" if found.n_missing else f" ({verdict_word(found)})"
            told.append(f"{name} {format_factor(as_fast(found.ratio, DECODE_RATE))} x as fast{word}")
    told += [f"{listed(same)} did the same work"] if same else []
    depth = f" at depth {cell.n_depth:,}" if cell.n_depth is not None and "n_depth" in keys else ""
    yield f"Decode{depth}: {'; '.join(told)}."


def told_other_phase(
    cells: Sequence[Cell], telling: Cell, names: Sequence[str], choices: Sequence[str]
) -> Iterator[str]:
    """`In decode: on (0.995 x as fast, no difference).` Of cells that timed the phase which the telling cell did not,
    as llama-bench times prompt and generation apart: of the names, and of the choices the fastest there. The verdict is
    told where all cells share one.
    """
    figure = telling_figure(telling)
    for other in [key for key in PHASES if figure in PHASES and key != figure]:
        told: list[str] = []
        apart = [cell for cell in cells if telling_figure(cell) == other]
        for name in with_fastest(apart, other, names, choices):
            judged = [one[0] for cell in apart if (one := told_comparison(cell, name)) is not None]
            if not judged:
                continue
            words = {"" if one.n_missing else f", {verdict_word(one)}" for one in judged}
            fast = factor_range([as_fast(one.ratio, other) for one in judged])
            told.append(f"{name} ({fast}{words.pop() if len(words) == 1 else ''})")
        if told:
            yield f"In {PHASES[other]}: {', '.join(told)}."
