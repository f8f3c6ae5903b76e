"""Products of a few rows straight from stored bytes: no widened copy of a weight is ever written. Needs Triton.

Rows come as `direct_rows.SplitRows`, weights are decoded by `direct_words`, and `direct_kernels` multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from executor.quants.direct_kernels import chosen_products, chosen_sums, dense_products
from executor.quants.direct_rows import SplitRows
from executor.quants.direct_words import WORDS, WordFormat
from executor.quants.fused import launching_on
from executor.quants.stored import Stored

MOST_MATRICES: Final = 3
"""Of one layout and width, in one launch."""
_WORD_BYTES: Final = 4


class Onto(NamedTuple):
    """Rows (m, n_rows), contiguous, that a product times `scale` is added to in place."""

    rows: torch.Tensor
    scale: float


class Tile(NamedTuple):
    """A program's `rows` of a matrix, the `units` of each that it takes at once, and its warps; powers of two."""

    rows: int
    units: int
    warps: int


def dense(
    matrices: Sequence[Stored], x: SplitRows, dtype: torch.dtype, tile: Tile | None = None, onto: Onto | None = None
) -> tuple[torch.Tensor, ...]:
    """x (m, in) by each matrix's transpose, (m, n_rows) each, side by side in one buffer; or `onto` given rows.

    Up to `MOST_MATRICES` of one layout and width, each uint8 (n_rows, row_bytes).
    """
    form = WORDS[matrices[0].layout]
    raws = [matrix.raw for matrix in matrices]
    numbers = [raw.shape[0] for raw in raws]
    none = MOST_MATRICES - len(raws)
    m, n_halves = x.sums.shape
    tile = tile or (_ONE_ROW if m == 1 else _SEVERAL_ROWS)
    out = torch.empty((m, sum(numbers)), dtype=dtype, device=x.sums.device) if onto is None else onto.rows
    x_rows = min(1 << (m - 1).bit_length(), _MOST_X_ROWS)
    grid = (sum(-(-number // tile.rows) for number in numbers) * -(-m // x_rows),)
    with launching_on(out.device):
        dense_products[grid](
            *raws, *[None] * none, out, 1.0 if onto is None else onto.scale, *_of_rows(x), *numbers, *[0] * none,
            raws[0].shape[1], _units(form, raws[0]), n_halves, m, *_of_format(form),
            X_ROWS=x_rows, ROWS=tile.rows, UNITS=tile.units, ADDS=onto is not None,
            num_warps=tile.warps, enable_fp_fusion=False,
        )  # fmt: skip
    return tuple(out.split(numbers, dim=1))


def gate_and_up(
    gate: Stored,
    up: Stored,
    ids: torch.Tensor,
    place_of: torch.Tensor | None,
    x: SplitRows,
    tile: Tile | None = None,
) -> torch.Tensor:
    """(choices, 2, n_rows) float32: the gate and up of the experts `ids` (m, n_used) by rows x (m, in).

    Stacks (places, n_rows, row_bytes) of one layout and shape, strided between places; `place_of` (n_experts,) says
    where an expert lies, None: at its own number.
    """
    form = WORDS[gate.layout]
    _, n_rows, row_bytes = gate.raw.shape
    n_units = _units(form, gate.raw)
    tile = tile or _ONE_ROW
    out = torch.empty((ids.numel(), 2, n_rows), dtype=torch.float32, device=ids.device)
    with launching_on(out.device):
        chosen_products[2 * -(-n_rows // tile.rows), ids.numel()](
            gate.raw, up.raw, out, ids, place_of, *_of_rows(x), gate.raw.stride(0), up.raw.stride(0),
            n_rows, row_bytes, n_units, x.sums.shape[1], ids.shape[1], *_of_format(form),
            ROWS=tile.rows, UNITS=tile.units, num_warps=tile.warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def weighted_down(
    down: Stored,
    ids: torch.Tensor,
    place_of: torch.Tensor | None,
    weights: torch.Tensor,
    x: SplitRows,
    dtype: torch.dtype,
    tile: Tile | None = None,
    onto: Onto | None = None,
) -> torch.Tensor:
    """(m, n_rows): the choices' rows x (m * n_used, in) by their experts' down, summed by weights (m, n_used).

    Or `onto` given rows.
    """
    form = WORDS[down.layout]
    _, n_rows, row_bytes = down.raw.shape
    n_units = _units(form, down.raw)
    tile = tile or _SUMS
    out = torch.empty((ids.shape[0], n_rows), dtype=dtype, device=ids.device) if onto is None else onto.rows
    with launching_on(out.device):
        chosen_sums[-(-n_rows // tile.rows), ids.shape[0]](
            down.raw, out, ids, place_of, weights, *_of_rows(x), down.raw.stride(0),
            n_rows, row_bytes, n_units, x.sums.shape[1], ids.shape[1], 1.0 if onto is None else onto.scale,
            *_of_format(form), ROWS=tile.rows, UNITS=tile.units, ADDS=onto is not None,
            num_warps=tile.warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out


# Found on an H200 (`python -m benchmarks.gpu.direct_products --sweep`): one warp, its threads on neighbouring units.
# More rows share the activations that are read; more threads along a row would idle where rows are short.
_MOST_X_ROWS: Final = 4  # rows of activations a program: sums of more do not fit in registers
_ONE_ROW: Final = Tile(rows=2, units=32, warps=1)
_SEVERAL_ROWS: Final = Tile(rows=4, units=32, warps=1)
_SUMS: Final = Tile(rows=1, units=64, warps=2)


def readable(matrix: Stored) -> bool:
    """Whether the kernels read such bytes (…, n_rows, row_bytes): an integer type, whole blocks, aligned.

    Matrices of a size that words do not divide are refused wherever they lie: in a slot the next one may begin between
    two words, and all layouts have to be computed alike.
    """
    form, raw = WORDS.get(matrix.layout), matrix.raw
    if form is None or raw.stride(-1) != 1 or raw.stride(-2) != raw.shape[-1] or raw.shape[-1] % form.block_bytes:
        return False
    if raw.shape[-2] * raw.shape[-1] % _WORD_BYTES:
        return False
    strides = [raw.stride(0)] if raw.dim() == 3 else []
    steps = [raw.shape[-1], *strides] if form.alignment > _WORD_BYTES else []
    return all(number % form.alignment == 0 for number in (raw.data_ptr(), *steps))


def _units(form: WordFormat, raw: torch.Tensor) -> int:
    """Units of a row."""
    return raw.shape[-1] // form.block_bytes * form.units


def _of_rows(x: SplitRows) -> tuple[object, ...]:
    return x.words, x.scales, x.sums, x.words[0].numel()


def _of_format(form: WordFormat) -> tuple[object, ...]:
    return (form.decode, form.block_bytes, form.units, form.groups, form.distance, form.zero, form.has_minimum)
