"""Findings of `hprof check` lead to the events that a timeline draws."""

from __future__ import annotations

import pytest

import hprof
from profiler.capture import Capture
from profiler.ordering.check import check_capture
from profiler.ordering.on_timeline import MATCHED_COLUMNS, marked_pairs

RUN = ["run", "-m", "tiny-dense", "--device", "sim", "--arms", "on", "-p", "96", "-n", "2", "-ub", "32", "-r", "2"]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    path = tmp_path_factory.mktemp("faulty") / "c"
    assert hprof.main([*RUN, "--record-ordering", "--inject", "drop-wait", "-o", str(path)]) == 0
    return Capture.open(str(path))


def test_both_operations_of_each_finding_are_found_among_the_events(capture: Capture) -> None:
    pass_id = max(capture.passes["pass_id"])  # beyond the first findings of the capture
    found = check_capture(capture, name_in=pass_id).violations
    assert found
    assert {one.pass_id for one in found} == {pass_id}
    events = capture.table("events", MATCHED_COLUMNS, pass_ids=[pass_id])
    pairs = marked_pairs(events, found)
    assert len(pairs) == len(found)
    rows = events.to_pylist()
    for pair, one in zip(pairs, found, strict=True):
        assert pair.text == str(one)
        assert pair.first is not None
        assert pair.second is not None
        assert one.first is not None
        for row, place in ((rows[pair.first], one.first), (rows[pair.second], one.second)):
            where = (place.device, place.stream, place.ubatch, place.layer, place.name)
            assert tuple(row[name] for name in ("device", "stream", "ubatch", "layer", "name")) == where
        assert (rows[pair.first]["kind"], rows[pair.second]["kind"]) == ("h2d", "compute")


def test_an_operation_that_is_no_event_has_no_mark(capture: Capture) -> None:
    found = check_capture(capture).violations
    nothing = capture.table("events", MATCHED_COLUMNS).slice(0, 0)
    assert marked_pairs(nothing, found) == []
