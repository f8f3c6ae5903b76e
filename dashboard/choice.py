"""What is being looked at: a capture, a cell and two arms, chosen in the sidebar and kept in the address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import streamlit as st

from dashboard import address, load, placements, trace_root
from dashboard.text import arm_label, cell_key, escape_markdown, subject
from profiler.capture import Capture, CaptureSummary
from profiler.manifest import ManifestArm
from profiler.report.cells import Cell, CellSizes, cell_sizes, telling_cell
from profiler.report.report import Report
from profiler.report.shown_cells import told_comparison

_STATE: Final = "_choice"
_SIZE_TITLES: Final = {"n_ubatch": "Ubatch", "n_depth": "Depth", "n_prompt": "Prompt", "n_gen": "Generated"}
_FIRM: Final = ("faster", "slower", "no difference")
_LARGE: Final = 1_000_000  # events; reading more takes over a second


@dataclass(frozen=True, slots=True)
class Choice:
    """`sizes` (the cell), `a` and `b` are null where the capture has no passes; `b` also where it has a single arm."""

    found: trace_root.CaptureRef
    capture: Capture
    sizes: CellSizes | None
    a: str | None
    b: str | None

    @property
    def report(self) -> Report:
        """The capture's report with arm A as the baseline, without findings; made on first use, for large ones take
        a while."""
        return load.report(self.found, self.a)

    @property
    def whole_report(self) -> Report:
        """The report with its findings."""
        return replace(self.report, findings=load.findings(self.found))

    @property
    def cell(self) -> Cell:
        """The chosen cell of the report; only where there are passes."""
        return self._cell_of(self.report)

    @property
    def is_large(self) -> bool:
        """Whether reading all events takes so long that what is known without them is better shown first."""
        return load.n_events(self.found) > _LARGE

    @property
    def headline_cell(self) -> Cell:
        """The chosen cell; in large captures without the figures that are made of events."""
        return self._cell_of(self.headline_report)

    @property
    def headline_report(self) -> Report:
        """The report; in large captures without the figures that are made of events."""
        return load.headline(self.found, self.a) if self.is_large else self.report

    def _cell_of(self, report: Report) -> Cell:
        assert self.sizes is not None
        return next(cell for cell in report.cells if cell.key == self.sizes.key)

    def cell_with(self, n_depth: int, **sizes: int) -> CellSizes | None:
        """The capture's cell of this depth and these sizes (`n_ubatch=64`), its other sizes the chosen one's; null
        where there is none. A depth that the capture does not know stays unknown.
        """
        assert self.sizes is not None
        wanted = replace(self.sizes.key, n_depth=None if self.sizes.n_depth is None else n_depth, **sizes)
        numbered = self.capture.passes[self.capture.passes["pass_id"].notna()]
        return next((cell for cell in cell_sizes(numbered, self.capture.manifest.arms) if cell.key == wanted), None)

    @property
    def arms_of_cell(self) -> list[ManifestArm]:
        """What the manifest says of the arms on show."""
        return [arm for arm in self.capture.manifest.arms if arm.name in self.arms]

    @property
    def other_placement(self) -> placements.OtherPlacement | None:
        """How the placements of A and B differ; null where they do not."""
        if self.a is None or self.b is None:
            return None
        return placements.other_placement(self.capture.manifest, self.a, self.b)

    @property
    def b_as_subject(self) -> str:
        """B as the subject of a sentence: what it does, or its name where its weights lie elsewhere than A's."""
        if self.other_placement is not None:
            return f"The arm {self.b}"
        return subject(_known_arms(self.capture).get(self.b or "", ManifestArm(self.b or "")))

    @property
    def arms(self) -> list[str]:
        """The arms on show: A, then B."""
        return [arm for arm in (self.a, self.b) if arm is not None]


def choose(root: trace_root.TraceRoot) -> Choice | None:
    """Draw the sidebar's controls; null where the root holds no capture that can be read."""
    address.follow_jump()
    summaries = trace_root.captures(root)
    readable = [one for one in summaries if one.problem is None]
    for one in summaries:
        if one.problem is not None:
            st.warning(f"{escape_markdown(one.name)}: {escape_markdown(one.problem)}")
    if not readable:
        st.session_state[_STATE] = None
        return None
    if st.query_params.get("capture", readable[0].name) not in {one.name for one in readable}:
        st.warning("The capture that the address names is not here, or not any more; this is another one.")
    names, first = [one.name for one in readable], first_choice(readable)
    name = address.select("Capture", names, "capture", _labels(readable).__getitem__, first=first)
    found = trace_root.find_capture(root, name)
    capture = load.open_capture(found)
    choice = _choose_arms(found, capture)
    st.session_state[_STATE] = choice
    return choice


def current() -> Choice:
    """The choice made in the sidebar; where there is none, says how to get a capture and ends the page."""
    choice = st.session_state.get(_STATE)
    if not isinstance(choice, Choice):
        say_no_captures()
        st.stop()
    return choice


def say_no_captures() -> None:
    """How to get a first capture."""
    st.info("There is no capture here yet. Make one, or import another tool's trace:")
    lines = (
        "hprof run                    # a small model on this machine, arms off and on",
        "hprof import report.sqlite   # an Nsight Systems trace",
    )
    st.code("\n".join(lines), language="bash")


def _choose_arms(found: trace_root.CaptureRef, capture: Capture) -> Choice:
    numbered = capture.passes[capture.passes["pass_id"].notna()]
    cells = cell_sizes(numbered, capture.manifest.arms)
    names = list(dict.fromkeys(name for cell in cells for name in cell.arms))
    if not names:
        return Choice(found, capture, None, None, None)
    known = _known_arms(capture)
    labels = {name: arm_label(known.get(name, ManifestArm(name))) for name in names}
    a = address.select("Arm A, the baseline", names, "a", labels.__getitem__)
    others = [name for name in names if name != a]
    first = placements.partner(capture.manifest, others, a)
    b = address.select("Arm B", others, "b", labels.__getitem__, first=first) if others else None
    having_a = [cell for cell in cells if a in cell.arms]
    both = [cell for cell in having_a if b is None or b in cell.arms] or having_a
    chosen = _choose_cell(both, lambda: first_cell(both, Choice(found, capture, both[0], a, b)))
    return Choice(found, capture, chosen, a, b if b in chosen.arms else None)


def _known_arms(capture: Capture) -> dict[str, ManifestArm]:
    return {arm.name: arm for arm in capture.manifest.arms}


def first_cell(cells: Sequence[CellSizes], choice: Choice) -> CellSizes:
    """The one to open first: of those where B has a verdict, or else of all, the one that tells the most."""
    if choice.b is None or len(cells) == 1:
        return telling_cell(cells)
    cells_told = choice.headline_report.cells
    judged = {one.key for one in cells_told if (told := told_comparison(one, choice.b)) and told[0].verdict in _FIRM}
    return telling_cell([cell for cell in cells if cell.key in judged] or cells)


def _choose_cell(cells: list[CellSizes], first: Callable[[], CellSizes]) -> CellSizes:
    """By a control for each size in which the cells differ; the address holds the cell. `first` is asked where it
    names none.
    """
    keys = {cell_key(cell): cell for cell in cells}
    is_named = address.names_one(list(keys), "cell")
    chosen = keys[address.kept(list(keys), "cell", first=0 if is_named else list(keys).index(cell_key(first())))]
    for size, title in _SIZE_TITLES.items():
        values = sorted({getattr(cell, size) for cell in cells}, key=lambda value: -1 if value is None else value)
        if len(values) < 2:
            continue
        widget = f"choose-{size}"
        st.session_state[widget] = getattr(chosen, size)
        st.selectbox(
            title,
            values,
            key=widget,
            format_func=lambda value: "not known" if value is None else f"{value:,}",
            on_change=lambda size=size, widget=widget: address.put(
                cell=cell_key(nearest_cell(cells, chosen, size, st.session_state[widget]))
            ),
        )
    return chosen


def nearest_cell(cells: Sequence[CellSizes], chosen: CellSizes, size: str, value: int | None) -> CellSizes:
    """The cell with this value of one size that shares the most of the other sizes with the chosen one."""

    def shared(cell: CellSizes) -> int:
        return sum(getattr(cell, name) == getattr(chosen, name) for name in _SIZE_TITLES)

    return max((cell for cell in cells if getattr(cell, size) == value), key=shared)


def first_choice(summaries: Sequence[CaptureSummary]) -> int:
    """Which of the captures, newest first, to open: the newest complete one of two arms or more, else the newest."""
    good = (at for at, one in enumerate(summaries) if one.state == "complete" and len(one.arms) > 1)
    return next(good, 0)


def _labels(summaries: list[CaptureSummary]) -> dict[str, str]:
    """Its name, then what tells it from others: the state where it is not complete, model, machine, day."""
    told = {}
    for one in summaries:
        state = None if one.state == "complete" else one.state
        machine = "predicted" if one.source == "predicted" else one.machine
        facts = [state, one.model, machine, one.created_utc[:10] if one.created_utc else None]
        told[one.name] = " · ".join([one.name, *(fact for fact in facts if fact)])
    return told
