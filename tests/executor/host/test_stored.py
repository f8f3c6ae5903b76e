"""Products straight from stored bytes: every type, ragged shapes, any choice of experts, any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from executor.host import stored
from executor.host.stored import StoredFfn, StoredMatrix, StoredTensor
from executor.layers.dense import activate
from executor.model import Activation, TensorInfo
from executor.quants import quant_type
from executor.quants.random_blocks import fill_random
from executor.quants.table import row_bytes
from executor.quants.unpack import dequantise

pytestmark = pytest.mark.skipif(not stored.is_available(), reason="needs AVX-512 and a C++ compiler")
N_EXPERTS = 5
EXACT, IN_INTEGERS = 1e-5, 3e-4
"""Limits of the relative error. Activations that meet codes as integers are rounded to 2^-14 of their block's largest
or better."""
CODES = {"Q4_0": (2, 18), "Q4_1": (4, 20), "Q8_0": (2, 34), "Q4_K": (16, 144), "Q5_K": (16, 176), "Q6_K": (0, 192)}
CODES |= {"IQ4_NL": (2, 18), "MXFP4": (1, 17)}
"""The types that are multiplied as integers, and where in a block their codes are."""
INTEGER_TYPES = tuple(CODES)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def projection(quant: str, n_rows: int, n_cols: int, seed: int, *, extras: bool = False) -> StoredMatrix:
    """Random experts whose rows lie apart, as they do between other projections; some with a bias and a scale."""
    n_bytes = row_bytes(quant, n_cols)
    places = torch.empty(N_EXPERTS, n_rows * n_bytes + 7, dtype=torch.uint8)[:, 3:-4].unflatten(-1, (n_rows, n_bytes))
    raw = torch.empty(N_EXPERTS * n_rows * n_bytes, dtype=torch.uint8)
    fill_random(raw, quant, 0.1, seed)
    places.copy_(raw.view(places.shape))
    info = TensorInfo("blk.0.ffn_up_exps.weight", quant, (N_EXPERTS, n_rows, n_cols), places.numel())
    generator = torch.Generator().manual_seed(seed)
    bias = torch.randn(N_EXPERTS, n_rows, generator=generator) if extras else None
    scale = torch.rand(N_EXPERTS, generator=generator) if extras else None
    return StoredMatrix(StoredTensor(info, places), bias, scale)


def experts_of(
    quants: tuple[str, str, str], hidden: int, n_ff: int, *, extras: bool = False
) -> tuple[StoredMatrix, StoredMatrix, StoredMatrix]:
    gate, up = (projection(quant, n_ff, hidden, i, extras=extras) for i, quant in enumerate(quants[:2]))
    return gate, up, projection(quants[2], hidden, n_ff, 2, extras=extras)


def expected(
    parts: tuple[StoredMatrix, StoredMatrix, StoredMatrix],
    rows: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    activation: Activation = "silu",
    *,
    only: torch.Tensor | None = None,
    weighs_input: bool = False,
) -> torch.Tensor:
    """The same in float64, choice by choice."""
    out = torch.zeros(rows.shape, dtype=torch.float64)
    for token, choices in enumerate(ids.tolist()):
        for rank, expert in enumerate(choices):
            if only is not None and not only[expert]:
                continue
            weight = float(weights[token, rank])
            before, after = (weight, 1.0) if weighs_input else (1.0, weight)
            gate, up = (times(part, rows[token], expert) * before * scale(part, expert) + bias(part, expert)
                        for part in parts[:2])  # fmt: skip
            inner = activate(gate, up, activation)
            out[token] += (times(parts[2], inner, expert) + bias(parts[2], expert)) * scale(parts[2], expert) * after
    return out


def times(part: StoredMatrix, x: torch.Tensor, expert: int) -> torch.Tensor:
    matrix = dequantise(part.stored.places[expert], part.stored.info.quant, torch.float32)
    return matrix.double() @ x.double()


def bias(part: StoredMatrix, expert: int) -> torch.Tensor | float:
    return 0.0 if part.bias is None else part.bias[expert].double()


def scale(part: StoredMatrix, expert: int) -> float:
    return 1.0 if part.scale is None else float(part.scale[expert])


def choices(n: int, n_used: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    ids = torch.stack([torch.randperm(N_EXPERTS, generator=generator)[:n_used] for _ in range(n)])
    return ids, torch.rand(n, n_used, generator=generator)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize("quant", stored._QUANTS)
@pytest.mark.parametrize("n", [1, 6])
def test_every_type(quant: str, n: int) -> None:
    block = max(16, quant_type(quant).block_size)
    parts = experts_of((quant, quant, quant), 3 * block, block)
    ids, weights = choices(n, 2)
    rows = torch.randn(n, 3 * block, generator=torch.Generator().manual_seed(1))
    got = StoredFfn(parts, "silu", n_used=2)(rows, ids, weights)
    fill_integers = quant in INTEGER_TYPES and block >= 128
    assert error(got, expected(parts, rows, ids, weights)) < (IN_INTEGERS if fill_integers else EXACT)


@pytest.mark.parametrize(("hidden", "n_ff"), [(32, 32), (96, 32), (160, 352), (2048, 96)])
def test_ragged_shapes_and_types_that_differ(hidden: int, n_ff: int) -> None:
    parts = experts_of(("Q4_0", "MXFP4", "Q8_0"), hidden, n_ff)
    ids, weights = choices(3, 3)
    rows = torch.randn(3, hidden, generator=torch.Generator().manual_seed(hidden))
    got = StoredFfn(parts, "gelu", n_used=3)(rows, ids, weights)
    assert error(got, expected(parts, rows, ids, weights, "gelu")) < IN_INTEGERS


@pytest.mark.parametrize(("hidden", "n_ff"), [(256, 256), (2048, 768), (288, 416)])
@pytest.mark.parametrize(
    "quants",
    [
        *[(one, one, one) for one in INTEGER_TYPES],
        *[("Q4_K", "Q4_K", "Q6_K"), ("Q4_0", "Q4_K", "Q8_0"), ("MXFP4", "Q4_0", "Q3_K"), ("Q2_K", "Q5_K", "Q4_1")],
    ],
)
def test_one_token_in_integers(hidden: int, n_ff: int, quants: tuple[str, str, str]) -> None:
    """Its activations span many powers of two, from block to block and inside them."""
    gate, up, down = quants
    parts = experts_of((fitting(gate, hidden), fitting(up, hidden), fitting(down, n_ff)), hidden, n_ff)
    ids, weights = choices(1, 4)
    generator = torch.Generator().manual_seed(n_ff)
    rows = torch.randn(1, hidden, generator=generator) * torch.exp2(torch.randn(1, hidden, generator=generator) * 4)
    got = StoredFfn(parts, "silu", n_used=4)(rows, ids, weights)
    assert error(got, expected(parts, rows, ids, weights)) < IN_INTEGERS
    assert not StoredFfn(parts, "silu", n_used=4)(torch.zeros_like(rows), ids, weights).any()


def fitting(quant: str, n_cols: int) -> str:
    """A type whose blocks fill rows of so many columns: Q8_0 where `quant` has larger ones."""
    return quant if n_cols % quant_type(quant).block_size == 0 else "Q8_0"


@pytest.mark.parametrize("quant", INTEGER_TYPES)
@pytest.mark.parametrize("size", [3.9, 3.984, 3.99, 4.0])
def test_the_largest_codes_and_activations_do_not_overflow(quant: str, size: float) -> None:
    parts = experts_of((quant, quant, quant), 512, 256)
    ids, weights = torch.tensor([[3]]), torch.ones(1, 1)
    codes = slice(*CODES[quant])
    for value in (0x00, 0x7F, 0x80, 0xFF):
        for part in parts[1:]:  # a gate as large would close, or be all there is
            part.stored.places[3].unflatten(-1, (-1, quant_type(quant).block_bytes))[:, :, codes] = value
        for rows in (torch.full((1, 512), -size), torch.full((1, 512), size)):
            got, want = StoredFfn(parts, "silu")(rows, ids, weights), expected(parts, rows, ids, weights)
            assert float((got.double() - want).norm()) <= IN_INTEGERS * float(want.norm())


@pytest.mark.parametrize("quant", INTEGER_TYPES)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_not_hidden(quant: str, number: float) -> None:
    ffn = StoredFfn(experts_of((quant, quant, quant), 256, 256), "silu", n_used=1)
    rows = torch.ones(1, 256)
    rows[0, 40] = number
    assert ffn(rows, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1)).isnan().all()


@pytest.mark.parametrize("activation", stored._ACTIVATIONS)
@pytest.mark.parametrize("weighs_input", [False, True])
def test_biases_scales_and_weights_on_what_experts_read(activation: Activation, weighs_input: bool) -> None:
    parts = experts_of(("Q4_1", "Q4_1", "Q5_0"), 64, 32, extras=True)
    ids, weights = choices(4, 2)
    rows = torch.randn(4, 64, generator=torch.Generator().manual_seed(4))
    got = StoredFfn(parts, activation, n_used=2, weighs_input=weighs_input)(rows, ids, weights)
    want = expected(parts, rows, ids, weights, activation, weighs_input=weighs_input)
    assert error(got, want) < EXACT


def test_some_experts_alone() -> None:
    """What two machines compute of one layer adds up, and an expert that is left out counts nowhere."""
    parts = experts_of(("Q4_0", "Q4_0", "Q4_0"), 64, 32)
    ffn = StoredFfn(parts, "silu", n_used=3)
    ids, weights = choices(5, 3)
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(5))
    some = torch.tensor([True, False, False, True, False])
    assert error(ffn(rows, ids, weights, some), expected(parts, rows, ids, weights, only=some)) < EXACT
    none = torch.zeros(N_EXPERTS, dtype=torch.bool)
    assert not ffn(rows, ids, weights, none).any()


def test_what_is_no_experts_number_is_left_out() -> None:
    """Where a planted fault drops a wait, the host may read half of one choice and half of another's rows."""
    parts = experts_of(("Q5_0", "Q5_0", "Q5_0"), 64, 32)
    ids, weights = choices(5, 2)
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(5))
    wild, none = ids.clone(), weights.clone()
    wild[1, 0], wild[3, 1], wild[4, 0] = -1, N_EXPERTS, 1 << 40
    none[1, 0], none[3, 1], none[4, 0] = 0, 0, 0
    ffn = StoredFfn(parts, "silu", n_used=2)
    assert error(ffn(rows, wild, weights), expected(parts, rows, ids, none)) < EXACT


def test_a_dense_ffn_in_bf16() -> None:
    parts = tuple(
        StoredMatrix(StoredTensor(part.stored.info, part.stored.places[:1]))
        for part in experts_of(("Q4_K",) * 3, 256, 512)
    )
    assert len(parts) == 3
    rows = torch.randn(2, 256, generator=torch.Generator().manual_seed(2)).bfloat16()
    got = StoredFfn(parts, "silu")(rows)
    want = expected(parts, rows.float(), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1))
    assert got.dtype == torch.bfloat16
    assert error(got, want) < 2**-8


def test_a_layer_beside_other_work_gives_the_same() -> None:
    ffn = StoredFfn(experts_of(("Q4_0", "Q4_0", "Q4_0"), 64, 32), "silu", n_used=2)
    ids, weights = choices(3, 2)
    some = torch.tensor([True, False, True, True, False])
    for n_rows in (3, 3):
        rows = torch.randn(n_rows, 64, generator=torch.Generator().manual_seed(n_rows))
        out = torch.empty_like(rows)
        call = ffn.prepared(out, rows, ids, weights, some)
        call.begin()
        beside = rows @ rows.T
        call.end()
        assert torch.equal(out, ffn(rows, ids, weights, some))
        assert torch.equal(beside, rows @ rows.T)


def test_what_an_interrupted_owner_left_running_disturbs_nobody() -> None:
    ffn = StoredFfn(experts_of(("Q6_K",) * 3, 1024, 512), "silu", n_used=3)
    ids, weights = choices(48, 3)
    rows = torch.randn(48, 1024, generator=torch.Generator().manual_seed(5))
    want = ffn(rows, ids, weights)
    for _ in range(5):
        ffn.prepared(torch.empty_like(rows), rows.clone(), ids, weights).begin()
        time.sleep(1e-3)  # it runs, and takes longer
        got = torch.empty_like(rows)
        call = ffn.prepared(got, rows, ids, weights)
        call.begin()
        call.end()
        assert torch.equal(got, want)


ENDING_OWNERS = """
import os, threading, time
import torch
from executor.host.stored import StoredFfn
from tests.executor.host.test_stored import choices, experts_of

ffn = StoredFfn(experts_of(("Q8_0",) * 3, 1024, 1024), "silu", n_used=4)
ids, weights = choices(48, 4)
rows = torch.randn(48, 1024, generator=torch.Generator().manual_seed(5))
torch.set_num_threads(2)
want = ffn(rows, ids, weights)
threads = "/proc/self/task"
n_before = len(os.listdir(threads))
for after_ms in range(10):
    out = torch.zeros_like(rows)
    call = ffn.prepared(out, rows, ids, weights)

    def begin_and_end_soon():
        torch.get_num_threads()
        torch.set_num_threads(2)
        call.begin()
        time.sleep(after_ms / 5e3)

    owner = threading.Thread(target=begin_and_end_soon)
    owner.start()
    owner.join()
    while len(os.listdir(threads)) > n_before:
        time.sleep(1e-3)
    assert torch.equal(out, want) or not out.any(), "all of it or nothing"
print("done")
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc, which lists a process's threads")
def test_an_owner_may_end_while_its_helpers_work() -> None:
    """As the host's stream of a `cpu` device does after Ctrl-C; memory is overwritten as it is freed."""
    command = [sys.executable, "-c", ENDING_OWNERS]
    done = subprocess.run(
        command, env={**os.environ, "MALLOC_PERTURB_": "165"}, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr


def test_no_bit_depends_on_the_number_of_threads() -> None:
    ffn = StoredFfn(experts_of(("Q4_0", "Q4_0", "Q6_K"), 512, 256), "silu", n_used=3)
    ids, weights = choices(4, 3)
    rows = torch.randn(4, 512, generator=torch.Generator().manual_seed(3))
    found = []
    for n_threads in (1, 2, 3, 8):
        torch.set_num_threads(n_threads)
        found.append(ffn(rows, ids, weights))
    assert all(torch.equal(found[0], one) for one in found)


@pytest.mark.parametrize(
    ("asked", "n_cores", "n_threads"), [(16, 16, 15), (15, 16, 15), (8, 16, 8), (2, 2, 2), (16, 2, 16)]
)
def test_a_core_of_many_is_left_to_others(
    asked: int, n_cores: int, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_n_cores", lambda: n_cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: asked)
    assert stored._n_threads() == n_threads


@pytest.mark.parametrize(("quant", "n_cols", "fit"), [("Q4_0", 32, True), ("BF16", 40, False), ("BF16", 48, True)])
def test_rows_that_do_not_fill_registers_are_left_to_pytorch(quant: str, n_cols: int, fit: bool) -> None:
    info = TensorInfo("blk.0.ffn_up.weight", quant, (8, n_cols), 0)
    assert stored.fits(info) == stored.can_multiply(info) == fit
