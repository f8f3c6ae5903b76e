"""Operators by their schema, tensors as runs of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiler.watching.memory import MOST_RUNS, byte_runs
from profiler.watching.operators import operator_of

ATEN: Any = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "kind"),
    [
        (ATEN.mm.default, "launch"),
        (ATEN.add_.Tensor, "launch"),
        (ATEN._foreach_add_.List, "launch"),
        (ATEN._local_scalar_dense.default, "launch"),
        (ATEN.copy_.default, "copy"),
        (ATEN._to_copy.default, "copy"),
        (ATEN.empty_strided.default, "allocate"),
        (ATEN.view.default, "view"),
        (ATEN.split.Tensor, "view"),
        (ATEN._unsafe_view.default, "view"),
        (ATEN.detach.default, "view"),
        (ATEN.set_.source_Storage, "view"),
        (ATEN.record_stream.default, "lend"),
    ],
)
def test_kinds(func: Any, kind: str) -> None:
    assert operator_of(func).kind == kind


def test_what_is_written_is_not_read() -> None:
    a, b, c = torch.ones(1), torch.ones(1), torch.ones(1)
    read, written = operator_of(ATEN.add.out).touched([a, b, c], (a, b), {"out": c})
    assert [one.data_ptr() for one in read] == [a.data_ptr(), b.data_ptr()]
    assert [one.data_ptr() for one in written] == [c.data_ptr()]
    read, written = operator_of(ATEN._foreach_add_.List).touched([a, b, c, c], ([a, b], [c, c]), {})
    assert (len(read), len(written)) == (2, 2)


slices = st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(1, 3)).map(lambda s: slice(*s))


@given(slices, slices, st.booleans())
def test_runs_are_the_tensors_own_bytes(rows: slice, columns: slice, is_transposed: bool) -> None:
    base = torch.arange(6 * 7, dtype=torch.int16).reshape(6, 7)
    view = base[rows, columns]
    view = view.t() if is_transposed else view
    found = np.zeros(base.numel() * 2, np.int64)
    for start, end in byte_runs(view):
        found[start:end] += 1
    own = np.zeros(base.numel(), np.int64)
    own[view.flatten().numpy()] = 1
    assert found.tolist() == np.repeat(own, 2).tolist()


def test_a_column_of_many_rows_is_cut_and_takes_no_bytes_of_others() -> None:
    base = torch.empty(1000, 4)
    runs = list(byte_runs(base[:, 1]))
    assert len(runs) == MOST_RUNS
    assert runs[:2] == [(4, 8), (20, 24)]
    assert list(byte_runs(base[0].expand(9, 4))) == [(0, 16)]
    assert list(byte_runs(base[0, 0])) == [(0, 4)]
