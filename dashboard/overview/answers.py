"""The Overview's answers in words: what B costs, why, and what bounds the prompt."""

from __future__ import annotations

from typing import Final

from dashboard.text import about_layers
from executor.units import format_bytes, format_ns, listed
from profiler.report.bound import Part, find_bound
from profiler.report.cells import ArmFigures, Cell
from profiler.report.residency import Residency

_ALIKE: Final = 0.005  # of the bytes: less is no change


def cost(cell: Cell, a: str, b: str, residency: dict[str, Residency], *, same_placement: bool = True) -> str | None:
    """Bytes copied, device memory and layers that B takes beyond A; null where the capture says neither.

    Where the placements differ, the policy is not what more bytes are laid to.
    """
    parts = [_bytes(cell.arms[a], cell.arms[b], same_placement=same_placement), _memory(cell.arms[a], cell.arms[b])]
    told = [part for part in parts if part]
    if not told:
        return None
    sentence = listed(told)
    return f"{sentence[0].upper()}{sentence[1:]}.{_room(residency.get(a), residency.get(b), b)}"


def _bytes(a: ArmFigures, b: ArmFigures, *, same_placement: bool) -> str | None:
    before, after = a.median("bytes_h2d"), b.median("bytes_h2d")
    if before is None or after is None:
        return None
    if abs(after - before) <= _ALIKE * max(before, after):
        return "no more bytes to copy" if after else "no bytes to copy in either"
    saved, still_saved = a.median("selective_saving_bytes"), b.median("selective_saving_bytes")
    gave_up = saved is not None and still_saved is not None and saved > still_saved
    cause = ", for it gives up the selective copy" if same_placement and after > before and gave_up else ""
    return f"{_change(before, after)} to copy ({format_bytes(after)} instead of {format_bytes(before)}{cause})"


def _memory(a: ArmFigures, b: ArmFigures) -> str | None:
    before, after = a.median("vram_peak_bytes"), b.median("vram_peak_bytes")
    if before is None or after is None:
        return None
    if before == after:
        return "no more device memory"
    return f"{_change(before, after)} of device memory at the peak"


def _change(before: float, after: float) -> str:
    return f"{format_bytes(abs(after - before))} {'more' if after > before else 'less'}"


def _room(a: Residency | None, b: Residency | None, name: str) -> str:
    """What B's slots and bank cost in layers; nothing where it has none, or as many as A."""
    layers = b.cost_in_layers if b is not None else None
    if not layers or (a is not None and a.cost_in_layers == layers):
        return ""
    than = f" (the baseline's: {about_layers(a.cost_in_layers)})" if a is not None and a.cost_in_layers else ""
    what = "slots and bank" if b is not None and b.bank_bytes else "slots"
    return f" The {what} of {name} take the room of {about_layers(layers)} that could stay resident{than}."


def why(cell: Cell, a: str, b: str) -> str | None:
    """What each arm left exposed of its copies, and which of copy and compute bounds B; null without copies."""
    copy_ns, compute_ns = (cell.arms[b].median(name) for name in ("busy_copy_ns", "busy_compute_ns"))
    if copy_ns is None or compute_ns is None:
        return None
    if copy_ns > 0:
        return " ".join(told for told in (_exposed(cell, a, b, copy_ns), bound_sentence(cell.arms[b])) if told)
    before, host_ns = cell.arms[a].median("busy_copy_ns"), cell.arms[b].median("host_compute_ns")
    spared = f", where {a} copies for {format_ns(before)}" if before else ""
    on_host = f" The host computed for {format_ns(host_ns)}." if host_ns else ""
    return f"{b} {_copies_nothing(cell.arms[b], 'copies')}{spared}; it computes for {format_ns(compute_ns)}.{on_host}"


def _exposed(cell: Cell, a: str, b: str, copy_ns: float) -> str:
    """Told by the exposed part, which the cards and the bars show too."""
    of_b, of_a = (cell.arms[arm].median("exposed_copy_ns") for arm in (b, a))
    copy_a = cell.arms[a].median("busy_copy_ns")
    against = f"; with {a}, {_part(of_a, copy_a)}" if copy_a else ""
    if copy_a == 0:
        against = f"; {a} {_copies_nothing(cell.arms[a], 'copied')}"
    return f"With {b}, {_part(of_b, copy_ns)} of copying is exposed, beside no compute{against}."


def _copies_nothing(arm: ArmFigures, verb: str) -> str:
    """What an arm with a median of 0 did: it may have copied in some of its passes."""
    where = f" in {arm.n_passes - arm.n_copying} of {arm.n_passes} passes" if arm.n_copying else ""
    return f"{verb} nothing to the device{where}"


def _part(exposed_ns: float | None, copy_ns: float) -> str:
    if exposed_ns is None:
        return f"an unknown part of its {format_ns(copy_ns)}"
    told, whole = format_ns(exposed_ns), format_ns(copy_ns)
    return f"{'none' if not exposed_ns else 'all' if told == whole else told} of its {whole}"


_PARTS: Final[dict[Part, str]] = {"copy": "copies", "compute": "compute", "host": "computing on the host"}


def bound_sentence(arm: ArmFigures) -> str | None:
    """Copies, compute and the host's part of the prompt (of the pass, where no prompt copies) against its time."""
    found = find_bound(arm)
    if found is None:
        return None
    what = "prompt" if found.scope == "prefill" else "pass"
    told = listed(f"{format_ns(found.parts[part])} of {words}" for part, words in _PARTS.items() if part in found.parts)
    if found.took_ns is None or found.is_summed:
        return f"Its {what} holds {told}{', summed over devices' if found.is_summed else ''}."
    took = format_ns(found.took_ns)
    bounding = [words for part, words in _PARTS.items() if part in found.bounding]
    if not bounding:
        none = {1: "which does not bound it", 2: "neither of which bounds it alone"}
        return f"Its {what} takes {took}: {told}, {none.get(len(found.parts), 'none of which bounds it alone')}."
    verb = "bounds" if bounding in (["compute"], ["computing on the host"]) else "bound"
    return f"Its {listed(bounding)} {verb} the {what}, which takes {took}: {told}."
