"""A chosen stretch takes the place of those inside or around it, and ends where others begin."""

from __future__ import annotations

import pytest

from dashboard.stretches import Span, with_span


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((30, 40), [(0, 10), (20, 30), (30, 40)]),
        ((8, 22), [(0, 10), (10, 20), (20, 30)]),
        ((25, 40), [(0, 10), (20, 30), (30, 40)]),
        ((19, 31), [(0, 10), (19, 31)]),
        ((22, 25), [(0, 10), (22, 25)]),
        ((-5, 12), [(0, 12), (20, 30)]),
    ],
)
def test_stretches_do_not_overlap(span: Span, expected: list[Span]) -> None:
    assert with_span([(0, 10), (20, 30)], span) == expected
