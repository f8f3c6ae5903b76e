"""The closing paragraph: what was copied, how fast, how much of it was hidden, what bounds the pass, which arm is
the best, and what each arm changed and cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from executor.units import (
    format_bytes,
    format_count,
    format_gb_s,
    format_in_words,
    format_ns,
    format_share,
    listed,
)
from profiler.arithmetic.stats import Comparison
from profiler.manifest import ManifestArm
from profiler.metrics import FIGURES, CopyFigures, DeviceFigures, Figure
from profiler.report.bound import Part, find_bound
from profiler.report.cells import ArmFigures, Cell, placement_number, telling_cell
from profiler.report.report import Report
from profiler.report.residency import Residency
from profiler.report.verdicts import told_as_fast, told_factor, verdict_word

# An import cannot see what leaves no row: a kernel that reads host memory over the link itself (UVA, zero-copy).
_NO_COPY: Final = "no copy from host to device was recorded (kernels that read host memory themselves leave none)"
_ELSEWHERE: Final = "none of the copies to the device that were recorded lies in its passes"
_MIGRATED: Final = "no copy from host to device was recorded but pages that migrate"
_UNRECORDED: Final = "it copied, and what went which way was not recorded"
_MORE_BYTES = 1.005  # fewer more would read as "1.00 times"
_OTHER_SHARE: Final = 0.05  # passes differ so much in what they hide that the median alone would mislead


def said_against(report: Report, cell: Cell, name: str) -> Iterator[str]:
    """How an arm of a cell compares with its placement's first arm, and that arm with the cell's baseline."""
    first, compared = cell.held_against(name)
    arms = {arm.name: arm for arm in report.arms}
    yield from _changes(first, name, compared, cell.readings)
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
            yield f"Over {verdicts.total()} cells, {name}{own}: {spread}."


def _first_verdict(cell: Cell, name: str) -> str | None:
    if name not in cell.arms:
        return None
    _, compared = cell.held_against(name)
    found = compared.get("ttft_ns") or compared.get("prefill_tokens_per_s") or compared.get("decode_tokens_per_s")
    if found is None:
        return None
    return verdict_word(found) if found.is_same_work or found.is_other_work else found.verdict


def _changes(
    first: str, name: str, compared: Mapping[str, Comparison | None], readings: Mapping[str, Figure]
) -> Iterator[str]:
    words = {"ttft_ns": "time to first token", "decode_tokens_per_s": "decode"}
    if compared.get("ttft_ns") is None:
        words = {"prefill_tokens_per_s": "prefill", "decode_tokens_per_s": "decode"}
    if not any(compared.get(key) for key in words):  # passes of something that counts no tokens
        words = {"wall_ns": "wall time"}
    words |= {key: figure.label for key, figure in readings.items()}
    figures = {**FIGURES, **readings}
    told = [
        f"{told_factor(found, figures[key].better)} x as fast in {words[key]}, {verdict_word(found)}"
        for key in words
        if (found := compared.get(key)) is not None
    ]
    if told:
        yield f"{name} against {first}: {'; '.join(told)}."


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
        yield f"Its {what} take {format_bytes(held)} more, so it keeps {format_count(lost, 'layer')} fewer resident."


def _placed(report: Report, cell: Cell, first: str, arm: ManifestArm) -> Iterator[str]:
    """What another placement means, which is the user's and no doing of the arm."""
    before, after = report.residency.get(first), report.residency.get(arm.name)
    lost = 0 if before is None or after is None else len(after.host_layers) - len(before.host_layers)
    told = [f"keeps {format_count(abs(lost), 'layer')} {'fewer' if lost > 0 else 'more'} resident"] if lost else []
    more = _times_the_bytes(cell, first, arm.name)
    told += [f"copied {more} of {first}"] if more else []
    if told:
        asked = "its placement" if report.budgets else str(arm.options["placement"])
        yield f"{arm.name} {' and '.join(told)}, as {asked} asks."


_BEST_BY: Final = {"ttft_ns": "Shortest time to first token", "prefill_tokens_per_s": "highest prefill speed"}


def best_arms(cell: Cell, arms: Sequence[ManifestArm]) -> dict[str, str]:
    """The best arm by each figure that the cell has; the earlier one of equals.

    Beside one that is resident by design: it is the limit, and not what one chooses among.
    """
    whole = {arm.name for arm in arms if arm.is_resident}
    chosen = [name for name in cell.arms if name not in whole]
    found = {}
    for figure in _BEST_BY:
        known = {name: value for name in chosen if (value := cell.arms[name].median(figure)) is not None}
        if known:
            pick = min if FIGURES[figure].better == "lower" else max
            found[figure] = pick(known, key=lambda name: known[name])
    return found


def said_best(cell: Cell, arms: Sequence[ManifestArm]) -> Iterator[str]:
    """One sentence where there are more than two arms; of two the verdict says it."""
    best = best_arms(cell, arms)
    if len(cell.arms) > 2 and best:
        text = "; ".join(f"{_BEST_BY[figure]}: {_told(cell, figure, name, arms)}" for figure, name in best.items())
        yield f"{text[0].upper()}{text[1:]}."


def _told(cell: Cell, figure: str, name: str, arms: Sequence[ManifestArm]) -> str:
    compared = cell.against_baseline.get(name, {}).get(figure)
    against = (
        f"{told_as_fast(compared, figure)} as {cell.baseline}, {verdict_word(compared)}"
        if compared is not None
        else None
    )
    limits = [
        f"{arm.name}: {_value(cell, figure, arm.name)}" for arm in arms if arm.is_resident and arm.name in cell.arms
    ]
    beside = "; ".join(part for part in (against, *limits) if part)
    return f"{name} with {_value(cell, figure, name)}{f' ({beside})' if beside else ''}"


def _value(cell: Cell, figure: str, name: str) -> str:
    return format_in_words(cell.arms[name].median(figure), FIGURES[figure].unit)


_MAX_ARMS = 4


def summarise(report: Report) -> str:
    """A few sentences in plain words about the telling cell, or about the devices where there are no passes."""
    if report.cells:
        cell = telling_cell(report.cells)
        told = [*_cell_sentences(cell, report), *said_over_cells(report.cells)]
        return " ".join(told or _nothing_known(cell, report))
    if report.devices and report.source == "hprof":
        return (
            "There is nothing to judge: no measured pass was completed, and passes for warming up measure nothing. "
            "Run it again."
        )
    if report.devices:
        return " ".join(_device_sentences(report))
    return "There is nothing to judge: no completed pass, and no copy or computing kernel on a device."


def _nothing_known(cell: Cell, report: Report) -> Iterator[str]:
    """Where no copy is known and no arm is compared: what each one took, if times may be told."""
    for name, arm in cell.arms.items():
        took = arm.median("wall_ns")
        if took is not None and not report.measured.is_untimed:
            yield f"{name} took {format_ns(took)} in one pass; its copies are not known."
        else:
            yield f"{name}: its copies are not known."


def _cell_sentences(cell: Cell, report: Report) -> Iterator[str]:
    told = list(dict.fromkeys([*list(cell.arms)[:_MAX_ARMS], *best_arms(cell, report.arms).values()]))
    copying = [text for name in told if (text := _copied(name, cell.arms[name], report))]
    if copying:
        yield f"In one pass ({cell.in_words}), {'; '.join(copying)}."
    if not report.measured.is_untimed and (bound := _bound(cell)):
        yield bound
    for name in told[1:]:
        yield from said_against(report, cell, name)
    if not report.measured.is_untimed:
        yield from said_best(cell, report.arms)
    if more := len(cell.arms) - len(told):
        yield f"{more} more {'arm is' if more == 1 else 'arms are'} in the table."


def _copied(name: str, arm: ArmFigures, report: Report) -> str | None:
    n_bytes, busy_ns = arm.median("bytes_h2d"), arm.median("busy_copy_ns")
    hidden = arm.median("hidden_ratio")
    if n_bytes is None:
        return None
    if n_bytes == 0 and not arm.n_copying:
        return f"{name} copied nothing to the device" if report.source == "hprof" else f"{name}: {_no_copy(report)}"
    shown = f", {format_share(hidden)} of it hidden behind compute{_of_all(arm, hidden)}" if hidden is not None else ""
    if n_bytes == 0:
        return f"{name} copied to the device in {arm.n_copying} of {format_count(arm.n_passes, 'pass')}{shown}"
    if not busy_ns:
        return f"{name} copied {format_bytes(n_bytes)} to the device"
    speed, link_gb_s = n_bytes / busy_ns, report.link_h2d_gb_s
    share = f" ({speed / link_gb_s * 100:.0f} % of the link's {format_gb_s(link_gb_s)})" if link_gb_s else ""
    return f"{name} copied {format_bytes(n_bytes)} to the device at {format_gb_s(speed)}{share}{shown}"


def _of_all(arm: ArmFigures, hidden: float) -> str:
    if arm.hidden_of_all is None or abs(arm.hidden_of_all - hidden) < _OTHER_SHARE:
        return ""
    return f" ({format_share(arm.hidden_of_all)} over all {format_count(arm.n_passes, 'pass')})"


def _no_copy(report: Report) -> str:
    """Why an arm of another tool's trace has no copies in its passes."""
    recorded = {direction for device in report.devices for direction in device.copies}
    if "h2d" in recorded:
        return _ELSEWHERE
    return _MIGRATED if "uvm_h2d" in recorded else _NO_COPY


_DOING: Final[dict[Part, str]] = {"copy": "copying", "compute": "computing", "host": "computing on the host"}


def _bound(cell: Cell) -> str | None:
    """What bounds the arm that hides most of its copies: no overlap can beat its longest part."""
    found = {name: bound for name, arm in cell.arms.items() if (bound := find_bound(arm)) and "copy" in bound.parts}
    if not found:
        return None
    name = max(found, key=lambda name: cell.arms[name].median("hidden_ratio", found[name].scope) or 0)
    bound = found[name]
    doing = {
        part: f"{format_ns(bound.parts[part])} of {words}" for part, words in _DOING.items() if part in bound.parts
    }
    beside = f", beside {doing.pop('host')}" if "host" in doing else ""
    told = f"{' against '.join(doing.values())}{beside}"
    took = f"; it took {format_ns(bound.took_ns)}." if bound.took_ns else "."
    if bound.is_summed:
        return f"{name}: {told}, summed over devices{took}"
    what = "prompt" if bound.scope == "prefill" else "pass"
    limit = f"no overlap can bring {name}'s {what} below {format_ns(bound.longest_ns)}{took}"
    if not bound.bounding:
        return f"No part alone bounds the {what} ({name}: {told}); {limit}"
    bounding = listed(_DOING[part] for part in bound.bounding)
    verb = "bound" if len(bound.bounding) > 1 else "bounds"
    return f"{bounding[0].upper()}{bounding[1:]} {verb} the {what} ({name}: {told}), so {limit}"


def _device_sentences(report: Report) -> Iterator[str]:
    for device in report.devices[:4]:
        yield from _device_sentence(device, report.link_h2d_gb_s, is_unrecorded=report.has_unrecorded_copies)
    if (n_more := len(report.devices) - 4) > 0:
        yield f"{format_count(n_more, 'more device')} {'is' if n_more == 1 else 'are'} in the table."


def _device_sentence(device: DeviceFigures, link_gb_s: float | None, *, is_unrecorded: bool) -> Iterator[str]:
    where = device.title
    copies = device.copies.get("h2d") or device.copies.get("uvm_h2d")
    if copies is None:
        kernels = f"{format_count(device.kernels, 'kernel')}, {format_ns(device.compute_busy_ns)} busy"
        yield f"{where}: {kernels}; {_UNRECORDED if is_unrecorded else _NO_COPY}."
        return
    amount = format_bytes(copies.bytes) if copies.bytes is not None else f"an unknown amount ({copies.count:,} times)"
    speed = f" at {format_gb_s(copies.gb_s)}" if copies.gb_s else ""
    share = f" ({copies.gb_s / link_gb_s * 100:.0f} % of the link)" if link_gb_s and copies.gb_s else ""
    kinds = copies.memory_kinds
    memory = f" from {' and '.join(kinds)} memory" if kinds else ""
    took = f"{memory}{speed}{share} in {format_ns(copies.busy_ns)}{_on_streams(device, copies)}"
    yield f"{where}: {amount} went to the device{took}; {_hidden(device, copies)}."


def _on_streams(device: DeviceFigures, copies: CopyFigures) -> str:
    shared = [stream for stream in copies.streams if stream in device.kernel_streams]
    if not shared:
        return ""
    return " on the stream of the kernels" if len(shared) == len(copies.streams) else " partly on streams of kernels"


def _hidden(device: DeviceFigures, copies: CopyFigures) -> str:
    if not device.kernels:
        return "no kernel ran that could hide it"
    kernels = f"{format_ns(device.compute_busy_ns)} of kernels"
    longer = "copying" if copies.busy_ns > device.compute_busy_ns else "computing"
    if copies.hidden_ns is None:
        return "how much of it was hidden cannot be told, for a kernel that waits for a page looks busy"
    share = format_share(copies.hidden_ratio) if copies.hidden_ratio is not None else "none"
    return f"{kernels} hid {share} of it, and {longer} takes longer"
