"""Where tensors begin in a transfer unit: as aligned as their own sizes, whatever types share a step."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from executor.model import TensorInfo
from executor.quants.table import QUANTS
from executor.weights.transfer_units import _stored_order

MATRICES = st.tuples(st.sampled_from(sorted(QUANTS)), st.integers(1, 9), st.integers(1, 5))
N_EXPERTS = 3


def tensor(name: str, quant: str, n_rows: int, n_blocks: int, n_experts: int) -> TensorInfo:
    kind = QUANTS[quant]
    shape = (n_rows, n_blocks * kind.block_size)
    one = n_rows * n_blocks * kind.block_bytes
    return (
        TensorInfo(name, quant, (n_experts, *shape), n_experts * one)
        if n_experts
        else TensorInfo(name, quant, shape, one)
    )


@given(st.lists(MATRICES, min_size=1, max_size=6), st.sampled_from([0, N_EXPERTS]))
def test_every_tensor_begins_at_a_multiple_of_what_divides_it(
    matrices: list[tuple[str, int, int]], n_experts: int
) -> None:
    tensors = [tensor(f"blk.0.{i}.weight", *matrix, n_experts) for i, matrix in enumerate(matrices)]
    in_order = sorted(tensors, key=_stored_order)
    ones = [t.n_bytes // max(n_experts, 1) for t in in_order]
    for sizes in (ones, [t.n_bytes for t in in_order]):  # packed: an expert's parts together; or stack after stack
        for offset, one in zip(accumulate(sizes, initial=0), ones, strict=False):
            assert offset % min(one & -one, 16) == 0


def test_what_is_equally_aligned_goes_by_name() -> None:
    """Float32 vectors and 2-byte floats between blocks of 144 and of 17 bytes."""
    made = [
        tensor("blk.0.a.weight", "MXFP4", 1, 1, 0),
        tensor("blk.0.b.weight", "BF16", 1, 3, 0),
        tensor("blk.0.c.weight", "F32", 1, 3, 0),
        tensor("blk.0.e.weight", "Q4_K", 3, 1, 0),
        tensor("blk.0.d.weight", "Q5_K", 1, 1, 0),
    ]
    assert [t.short_name[0] for t in sorted(made, key=_stored_order)] == ["d", "e", "c", "b", "a"]
