"""Busy, hidden, exposed and idle of random traces, against cells of a microsecond grid counted one by one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.arithmetic import intervals
from profiler.metrics import OverlapByPass, device_figures, overlap
from profiler.metrics.events import CPU_COMPUTE, WAIT
from profiler.storage.writer import conform

US = 1000
KINDS = ("h2d", "h2d", "compute", "compute", "d2h", "cpu_compute", "wait", "api")
Row = dict[str, Any]
rows_of = st.lists(
    st.fixed_dictionaries(
        {
            "pass_id": st.sampled_from([None, 0, 0, 1]),
            "phase": st.sampled_from(["prefill", "decode"]),
            "ubatch": st.integers(0, 1),
            "layer": st.sampled_from([None, 0, 1]),
            "process": st.sampled_from([7, 7, 7, None]),
            "device": st.sampled_from([0, 0, 0, 1]),
            "kind": st.sampled_from(KINDS),
            "t_start": st.integers(0, 24),
            "length": st.integers(0, 10),
            "bytes": st.sampled_from([None, 1, 10]),
            "detail": st.sampled_from([None] * 8 + ["uvm", "memset"]),
        }
    ),
    min_size=3,
    max_size=25,
)


def recording_of(rows: list[Row], n_tables: int = 1, *, by_layer: bool = True) -> OverlapByPass:
    """Rows in `n_tables` tables, each pass in one of them."""
    tables = []
    for table in range(n_tables):
        mine = [row for row in rows if (row["pass_id"] or 0) % n_tables == table]
        columns: dict[str, Any] = {name: [row[name] for row in mine] for name in (mine[0] if mine else {})}
        if not columns:
            continue
        length = columns.pop("length")
        columns["t_end"] = [(start + more) * US for start, more in zip(columns["t_start"], length, strict=True)]
        columns["t_start"] = [start * US for start in columns["t_start"]]
        tables.append(conform("events", columns))
    return OverlapByPass(tables, by_layer=by_layer)


def cells(rows: list[Row], kind: str, detail: str | None = None) -> dict[tuple[Any, ...], set[int]]:
    """Busy grid cells by (pass, process, device); copies of the plain kind, or `uvm` ones."""
    found: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for row in rows:
        plain = row["detail"] != "memset" and (row["kind"] not in ("h2d", "d2h") or row["detail"] == detail)
        if row["kind"] == kind and plain:
            context = (row["pass_id"], row["process"], row["device"])
            found[context] |= set(range(row["t_start"], row["t_start"] + row["length"]))
    return found


def groups(rows: list[Row], names: tuple[str, ...]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


@settings(max_examples=60, deadline=None)
@given(rows_of, st.sampled_from([("pass_id",), ("pass_id", "phase"), ("pass_id", "phase", "ubatch", "layer")]))
def test_any_grouping_matches_the_grid(rows: list[Row], names: tuple[str, ...]) -> None:
    overlap = recording_of(rows).overlap(names)
    keys = zip(*([None if k == -1 else k for k in overlap.keys[name].tolist()] for name in names), strict=True)
    found = {key: group for group, key in enumerate(keys)}
    phases = {"prefill": 0, "decode": 1}
    compute = cells(rows, "compute")
    for key, mine in groups(rows, names).items():
        copies, computes = cells(mine, "h2d"), cells(mine, "compute")
        if not copies and not computes:
            continue
        group = found[tuple(phases.get(part, part) for part in key)]
        smaller = sum(min(len(copies[c]), len(computes[c])) for c in {*copies, *computes})
        hidden = sum(len(busy & compute[context]) for context, busy in copies.items())
        assert overlap.busy_copy_ns[group] == sum(map(len, copies.values())) * US
        assert overlap.busy_compute_ns[group] == sum(map(len, computes.values())) * US
        assert overlap.hidden_copy_ns[group] == hidden * US
        assert overlap.exposed_copy_ns[group] + overlap.hidden_copy_ns[group] == overlap.busy_copy_ns[group]
        assert overlap.smaller_busy_ns[group] == smaller * US
        if smaller:
            assert np.isclose(overlap.overlap_efficiency[group], hidden / smaller)
        else:
            assert np.isnan(overlap.overlap_efficiency[group])


@settings(max_examples=60, deadline=None)
@given(rows_of)
def test_pieces_change_nothing(rows: list[Row]) -> None:
    whole, pieces = recording_of(rows), recording_of(rows, n_tables=2)
    names = ("pass_id", "phase", "layer")
    for one, many in ((whole.overlap(names), pieces.overlap(names)), (whole.transfers(names), pieces.transfers(names))):
        assert rows_by_key(one, names) == rows_by_key(many, names)
    assert device_figures(whole, by_pass=True) == device_figures(pieces, by_pass=True)


@settings(max_examples=60, deadline=None)
@given(rows_of, st.integers(1, 5), st.sampled_from([0, 16]))
def test_without_layers_and_in_slices_nothing_changes(rows: list[Row], slice_rows: int, few_groups: int) -> None:
    fine = recording_of(rows)
    with mock.patch.object(overlap, "_SLICE_ROWS", slice_rows), mock.patch.object(intervals, "_FEW_GROUPS", few_groups):
        coarse = recording_of(rows, by_layer=False)
        for names in (("pass_id",), ("pass_id", "phase"), ("pass_id", "device")):
            assert rows_by_key(coarse.overlap(names), names) == rows_by_key(fine.overlap(names), names)
            assert rows_by_key(coarse.transfers(names), names) == rows_by_key(fine.transfers(names), names)
            for role in (WAIT, CPU_COMPUTE):
                told = [one.busy(names, role) for one in (coarse, fine)]
                first, second = ([keys["pass_id"].tolist(), busy_ns.tolist()] for keys, busy_ns in told)
                assert first == second
        for by_pass in (True, False):
            assert device_figures(coarse, by_pass=by_pass) == device_figures(fine, by_pass=by_pass)


def rows_by_key(figures: Any, names: tuple[str, ...]) -> set[tuple[Any, ...]]:
    columns = [figures.keys[name].tolist() for name in names]
    fields = [name for name in type(figures).__dataclass_fields__ if name != "keys"]
    values = [np.nan_to_num(getattr(figures, name), nan=-1.0).tolist() for name in fields]
    return set(zip(*columns, *values, strict=True))


@settings(max_examples=60, deadline=None)
@given(rows_of, st.integers(-2, 30), st.integers(0, 20))
def test_idle_is_what_no_device_row_covers(rows: list[Row], start: int, length: int) -> None:
    windows = (np.array([0]), np.array([start * US]), np.array([(start + length) * US]))
    (found,) = recording_of(rows).idle(*windows)
    busy: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for kind, detail in (("compute", None), ("h2d", None), ("h2d", "uvm"), ("d2h", None), ("d2h", "uvm")):
        for context, some in cells([row for row in rows if row["length"]], kind, detail).items():
            busy[context] |= some
    devices = [some for (pass_id, _, _), some in busy.items() if pass_id == 0]
    window = set(range(start, start + length))
    assert np.isnan(found) if not devices else found == sum(len(window - some) for some in devices) * US


@settings(max_examples=60, deadline=None)
@given(rows_of)
def test_waits_and_host_compute_are_unions(rows: list[Row]) -> None:
    recording = recording_of(rows)
    for kind, role in (("wait", WAIT), ("cpu_compute", CPU_COMPUTE)):
        keys, busy_ns = recording.busy(("pass_id",), role)
        found = dict(zip(keys["pass_id"].tolist(), busy_ns.tolist(), strict=True))
        for (pass_id,), mine in groups(rows, ("pass_id",)).items():
            some = [row for row in mine if row["kind"] == kind and row["detail"] != "memset"]
            covered = {c for row in some for c in range(row["t_start"], row["t_start"] + row["length"])}
            assert found.get(-1 if pass_id is None else pass_id, 0) == len(covered) * US


@settings(max_examples=60, deadline=None)
@given(rows_of)
def test_devices_match_the_grid_across_passes(rows: list[Row]) -> None:
    found = {(f.process, f.device): f for f in device_figures(recording_of(rows), by_pass=False)}
    flat = [row | {"pass_id": None} for row in rows]
    compute = cells(flat, "compute")
    for name, kind, detail in (("h2d", "h2d", None), ("d2h", "d2h", None), ("uvm_h2d", "h2d", "uvm")):
        for (_, process, device), busy in cells(flat, kind, detail).items():
            copies = found[process, device].copies[name]
            assert copies.busy_ns == len(busy) * US
            assert copies.hidden_ns == len(busy & compute[None, process, device]) * US
            mine = [
                row
                for row in rows
                if (row["kind"], row["detail"], row["process"], row["device"]) == (kind, detail, process, device)
            ]
            assert copies.count == len(mine)
            sizes = [row["bytes"] for row in mine]
            assert copies.bytes == (None if None in sizes else sum(sizes))
