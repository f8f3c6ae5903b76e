"""Memory: what the device held, at the peak and over time, and what slots and bank cost in resident layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
import streamlit as st

from dashboard import address, passes, placements, show
from dashboard.choice import Choice, current
from dashboard.empty_pages import NO_MEMORY
from dashboard.figures.memory import MAX_BARS, PART_LABELS, parts_figure
from dashboard.slots import SlotsOfPass, slots_of
from dashboard.table_columns import in_one_unit
from dashboard.text import about_layers, escape_markdown
from executor.units import format_bytes, format_value
from profiler.metrics.memory import HeldOverTime, typical_memory
from profiler.report.residency import Residency, all_residency


def main(choice: Choice) -> None:
    show.head("What does the device hold, and what do slots cost?", choice)
    if choice.sizes is None:
        show.nothing(NO_MEMORY, "`hprof run` records it for every pass.")
        return
    found = all_residency(choice.capture.manifest)
    rows = passes.passes_of_cell(choice)
    parts = typical_memory(rows).reindex(choice.arms)
    if parts["peak"].isna().all() and parts["slots"].isna().all():
        show.nothing(NO_MEMORY, "`hprof run` records it for every pass.")
    else:
        at_the_peak(choice, parts, found)
    what_stays(choice, found)
    over_time(choice)


def at_the_peak(choice: Choice, parts: pd.DataFrame, found: Mapping[str, Residency]) -> None:
    st.header("At the peak", anchor=False)
    told = [cost_sentence(str(arm), float(row["reserved"]), found.get(str(arm))) for arm, row in parts.iterrows()]
    st.markdown("  \n".join(map(escape_markdown, told)))
    known = parts.drop(columns="reserved")
    table = pd.DataFrame(in_one_unit({PART_LABELS.get(str(part), str(part)): known[part] for part in known}, "bytes"))
    labels = [f"{letter}  {arm}" for letter, arm in zip("AB", choice.arms, strict=False)]
    peaks = ", ".join(f"{arm} {format_value(None if pd.isna(n) else n, 'bytes')}" for arm, n in parts["peak"].items())
    show.figure(
        parts_figure(parts, labels),
        alt=f"device memory of each arm at its peak, as resident weights, slots, bank and the rest: {peaks}",
        key="parts",
        table=table.rename_axis("arm").reset_index(),
        name="memory-at-the-peak",
    )


def what_stays(choice: Choice, found: dict[str, Residency]) -> None:
    """Which layers each arm keeps on the device; every arm of the capture is in the table."""
    if not found:
        return
    st.header("Which layers stay", anchor=False)
    st.markdown(
        "  \n".join(
            escape_markdown(placements.residency_sentence(arm, found[arm])) for arm in choice.arms if arm in found
        )
    )
    show.table(
        placements.residency_table(found), alt="what each arm keeps on the device", key="stays", name="residency"
    )
    by_device = placements.residency_by_device(found)
    if not by_device.empty:
        st.markdown("By device:")
        show.table(by_device, alt="what each arm holds on each device", key="by-device", name="residency-by-device")


def cost_sentence(arm: str, reserved_bytes: float, placed: Residency | None) -> str:
    """What an arm's slots and bank take, in bytes, and in layers of its own placement where the capture says that."""
    if math.isnan(reserved_bytes):
        return f"What {arm} reserves for slots and bank is not known."
    if reserved_bytes == 0:
        return f"{arm} reserves neither slots nor a bank."
    layers = placed.cost_in_layers if placed is not None else None
    instead = f", room in which {about_layers(layers, 'more ')} could stay resident" if layers is not None else ""
    return f"{arm} reserves {format_bytes(reserved_bytes)} for slots and bank{instead}."


def over_time(choice: Choice) -> None:
    """What the slots of one pass held."""
    st.header("Over time", anchor=False)
    with st.container(horizontal=True, gap="medium"):
        shown = passes.choose_repetition(choice, width=220)
        titles = {one.arm: one for one in shown}
        one = titles[address.segments("Arm", list(titles), "arm", escape_markdown, first=len(titles) - 1)]
    held = slots_of(choice, one)
    if held is None:
        say_no_slots(choice, one.arm, is_recorded=len(passes.lines(choice, [one])[0]) > 0)
    else:
        drawn_over_time(held)


def say_no_slots(choice: Choice, arm: str, *, is_recorded: bool) -> None:
    """That nothing was copied into slots, or that nobody can tell: only hprof's own records name the slots."""
    if not is_recorded:
        show.nothing("No copies of this pass were recorded, so it is not known what its slots held.")
    elif choice.capture.manifest.source == "hprof":
        show.nothing(f"{arm} copied nothing into slots in this pass.")
    else:
        show.nothing("This source does not say which slot a copy went into, so it is not known what the slots held.")


def drawn_over_time(slots: SlotsOfPass) -> None:
    """Device memory above what each slot held, on one axis."""
    n_slots, n_fillings = slots.fillings["slot"].nunique(), len(slots.fillings)
    show.figure(
        slots.figure,
        alt=f"over the pass, device memory (weights that stay and what the slots hold, at most "
        f"{format_bytes(slots.held.most_bytes)}) above what each of {n_slots} slots held: {n_fillings:,} fillings",
        key="held",
        table=readable(slots.fillings),
        name="slots",
    )
    if n_fillings > MAX_BARS:
        st.caption(f"The first {MAX_BARS:,} of {n_fillings:,} fillings are drawn.")
    show.sentences(peak_sentences(slots.held))
    with st.expander("Memory over time as a table"):
        table = pd.DataFrame(
            in_one_unit({"time": slots.steps["t_ns"]}, "ns")
            | in_one_unit({"held in slots": slots.steps["bytes"]}, "bytes")
        )
        show.table(table, alt="what the slots held over the pass", key="held-steps", name="memory-over-time")


def peak_sentences(found: HeldOverTime) -> list[str]:
    """How the most that is drawn and the pass's peak hang together; nothing where one of them is unknown."""
    if found.peak_bytes is None:
        return []
    bank = ", the bank" if "bank" in found.stays else ""
    return [
        f"Weights that stay{bank} and what lies in the slots come to {format_bytes(found.most_bytes)} at most. The "
        f"device's peak, {format_bytes(found.peak_bytes)}, also counts the empty room in the slots, activations and "
        "the KV cache."
    ]


def readable(held: pd.DataFrame) -> pd.DataFrame:
    return held[["slot", "layer", "tensor"]].assign(
        **in_one_unit({"bytes": held["bytes"]}, "bytes"),
        **in_one_unit({"from": held["start_ns"], "until": held["end_ns"]}, "ns"),
    )


main(current())
