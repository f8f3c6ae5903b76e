"""Products straight from stored bytes, by Triton's interpreter on the CPU: `TRITON_INTERPRET=1 pytest`.

The interpreter must be chosen before a kernel is imported, so `test_dispatch` runs this file in a process of its own.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.layers.dense import activate
from executor.model import Activation
from executor.quants import QUANTS
from executor.quants.relaid import RELAID, quant_of, relay
from executor.quants.stored import Stored
from tests.executor.quants.direct_cases import INTEGER_TYPES, LARGEST_ERROR, error, matrix, product

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs with TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")

from executor.quants import direct, fused
from executor.quants.direct import Onto, Tile
from executor.quants.direct_rows import split, split_gated

SMALL = Tile(rows=4, units=8, warps=1)  # several programs and steps of these small matrices
TALL = Tile(rows=16, units=8, warps=1)


def activations(n: int, k: int, seed: int) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).half()


def relaid(raw: torch.Tensor, layout: str) -> Stored:
    raw = raw.clone()
    relay(raw.view(-1), layout)
    return Stored(raw, layout)


@pytest.mark.parametrize("quant", INTEGER_TYPES)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(n=st.sampled_from([1, 2, 3, 5]), n_rows=st.integers(1, 5), blocks=st.integers(1, 3), seed=st.integers(0, 99))
def test_every_type_with_ragged_shapes(quant: str, n: int, n_rows: int, blocks: int, seed: int) -> None:
    k = blocks * QUANTS[quant].block_size
    raw, x = matrix(quant, n_rows, k, seed=seed), activations(n, k, seed)
    (got,) = direct.dense([Stored(raw, quant)], split(x), torch.float32, SMALL)
    assert error(got, product(x, raw, quant)) < LARGEST_ERROR


def test_sixteen_rows() -> None:
    raw, x = matrix("Q4_0", 3, 96, seed=2), activations(16, 96, seed=2)
    (got,) = direct.dense([Stored(raw, "Q4_0")], split(x), torch.float32, SMALL)
    assert error(got, product(x, raw, "Q4_0")) < LARGEST_ERROR


def test_onto_rows_that_are_there() -> None:
    raw, x = matrix("Q5_K", 5, 256, seed=4), activations(3, 256, seed=4)
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(4))
    wanted = rows.double() + 0.5 * product(x, raw, "Q5_K")
    (got,) = direct.dense([Stored(raw, "Q5_K")], split(x), torch.float32, SMALL, Onto(rows, 0.5))
    assert got is rows or got.data_ptr() == rows.data_ptr()
    assert error(rows, wanted) < LARGEST_ERROR


def test_several_matrices_in_one_launch() -> None:
    parts, x = [matrix("Q5_K", n_rows, 256, seed=n_rows) for n_rows in (3, 1, 4)], activations(3, 256, seed=1)
    for n in (1, 2, 3):
        got = direct.dense([Stored(raw, "Q5_K") for raw in parts[:n]], split(x), torch.float32, SMALL)
        assert len(got) == n
        for out, raw in zip(got, parts, strict=False):
            assert error(out, product(x, raw, "Q5_K")) < LARGEST_ERROR


@pytest.mark.parametrize("layout", RELAID)
def test_both_layouts_give_the_same_bits(layout: str) -> None:
    quant = quant_of(layout)
    raw, x = matrix(quant, 3, 512, seed=3), activations(2, 512, seed=3)
    outs = [direct.dense([one], split(x), torch.float32, SMALL)[0] for one in (Stored(raw, quant), relaid(raw, layout))]
    assert torch.equal(*outs)
    weights = [
        fused.dequantise(one.raw, one.layout, torch.float32) for one in (Stored(raw, quant), relaid(raw, layout))
    ]
    assert weights[0] is not None
    assert weights[1] is not None
    assert torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("placed", [True, False])
def test_chosen_experts(placed: bool) -> None:
    """Two tokens of three experts each, at scattered places of a slot that keeps an expert together."""
    gates, ups, downs = (matrix(q, 6, rows, k, seed=i) for i, (q, rows, k) in enumerate(STACKS))
    slab = torch.cat([t.flatten(1) for t in (gates, ups, downs)], dim=1)
    views, offset = [], 0
    for stack, (quant, *_) in zip((gates, ups, downs), STACKS, strict=True):
        strides = (slab.shape[1], stack.shape[2], 1)
        views.append(Stored(slab.as_strided(stack.shape, strides, offset), quant))
        offset += stack[0].numel()
    ids = torch.tensor([[2, 0, 3], [1, 2, 0]])
    place_of = torch.tensor([5, 0, 4, 2], dtype=torch.int32) if placed else None
    places = ids if place_of is None else place_of[ids].long()
    x, weights = activations(2, 256, seed=4), torch.rand(2, 3, generator=torch.Generator().manual_seed(4))
    both = direct.gate_and_up(views[0], views[1], ids, place_of, split(x), TALL)
    assert both.shape == (6, 2, 32)
    inner = split_gated(both[:, 0], both[:, 1], "silu")
    got = direct.weighted_down(views[2], ids, place_of, weights, inner, torch.float32, SMALL)
    for token in range(2):
        wanted = torch.zeros(3, dtype=torch.float64)
        for place, weight in zip(places[token], weights[token], strict=True):
            row = x[token : token + 1]
            gate, up = product(row, gates[place], "Q4_0"), product(row, ups[place], "Q4_0")
            wanted += weight.double() * product(F.silu(gate) * up, downs[place], "Q8_0")[0]
        assert error(got[token], wanted) < LARGEST_ERROR
    rows = torch.ones_like(got)
    direct.weighted_down(views[2], ids, place_of, weights, inner, torch.float32, SMALL, Onto(rows, 2.0))
    torch.testing.assert_close(rows, 1 + 2 * got)


STACKS = [("Q4_0", 32, 256), ("Q4_0", 32, 256), ("Q8_0", 3, 32)]


@pytest.mark.parametrize("activation", ["silu", "gelu", "oai_swiglu"])
def test_activations_are_those_of_the_layers(activation: Activation) -> None:
    gate, up = (8 * activations(2, 64, seed=seed).float() for seed in (5, 6))
    raw = matrix("Q8_0", 4, 64, seed=5)
    (got,) = direct.dense([Stored(raw, "Q8_0")], split_gated(gate, up, activation), torch.float32, SMALL)
    assert error(got, product(activate(gate, up, activation), raw, "Q8_0")) < LARGEST_ERROR


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_so(number: float) -> None:
    raw, x = matrix("Q4_0", 4, 64, seed=6), activations(2, 64, seed=6)
    x[0, 3] = number
    (got,) = direct.dense([Stored(raw, "Q4_0")], split(x), torch.float32, SMALL)
    assert not got[0].isfinite().any()
    assert got[1].isfinite().all()


def test_zeros_and_the_smallest_numbers_give_zeros() -> None:
    raw = matrix("Q4_K", 4, 256, seed=7)
    x = torch.zeros(2, 256)
    x[1] = 1e-40
    (got,) = direct.dense([Stored(raw, "Q4_K")], split(x), torch.float32, SMALL)
    assert torch.equal(got, torch.zeros(2, 4))


def test_bytes_that_the_kernels_cannot_read_are_refused() -> None:
    raw = matrix("Q4_0", 4, 64, seed=8)
    assert direct.readable(Stored(raw, "Q4_0"))
    assert not direct.readable(Stored(raw, "F32"))
    assert not direct.readable(Stored(raw[:, :18], "Q4_0"))
    shifted = torch.cat([raw.new_zeros(1), raw.flatten()])[1:].view(raw.shape)
    assert not direct.readable(Stored(shifted, "Q4_0"))
    assert not direct.readable(Stored(matrix("Q4_K", 4, 256, seed=8).flatten()[4:-140].view(3, 144), "Q4_K"))
