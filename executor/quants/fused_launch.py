"""Launches the fused kernel at little cost on the host: models call it hundreds of times a token."""

from __future__ import annotations

import contextlib
from typing import Any, Final, NamedTuple

import torch

from executor.quants.fused_formats import FORMATS
from executor.quants.fused_kernel import unpack_stack
from executor.quants.fused_pieces import Pieces


class Tiling(NamedTuple):
    """A program decodes `tiles` tiles of `weights` (a power of two, at least 256), one after the other."""

    weights: int
    warps: int
    tiles: int


# Triton's own search for the compiled kernel costs more than everything else here together.
_COMPILED: Final[dict[tuple[object, ...], Any]] = {}


def launch(
    raw: torch.Tensor,
    quant: str,
    pieces: Pieces,
    out: torch.Tensor,
    flags: torch.Tensor | None,
    place_of: torch.Tensor | None,
    tiling: Tiling,
) -> None:
    """Decode `pieces` of `raw` into `out` (contiguous, 16-byte aligned), on the current stream of their device."""
    decode, block_bytes, block_cells, planes, plane_stride, _ = FORMATS[quant]
    n_cells = pieces.n_bytes // block_bytes * block_cells
    tile_cells = tiling.weights // (8 * planes)
    layout = (decode, block_bytes, block_cells, planes, plane_stride, tile_cells, tiling.tiles)
    arguments = (raw, out, flags, place_of, pieces.stride, n_cells, *layout)
    grid = (-(-n_cells // (tile_cells * tiling.tiles)), pieces.number, 1)
    key = (quant, tiling, _specialisation(raw, out, flags, place_of, pieces.stride))
    with _current(raw.device):
        if (compiled := _COMPILED.get(key)) is not None:
            compiled[grid](*arguments)
        else:
            _COMPILED[key] = unpack_stack[grid](*arguments, num_warps=tiling.warps, enable_fp_fusion=False)


def _specialisation(
    raw: torch.Tensor, out: torch.Tensor, flags: torch.Tensor | None, place_of: torch.Tensor | None, stride: int
) -> tuple[object, ...]:
    """Everything about the arguments that Triton compiles into a kernel: types, and what 16 divides."""
    of_flags = None if flags is None else flags.dtype
    of_places = None if place_of is None else place_of.dtype
    divisible = (raw.data_ptr() % 16 == 0, stride % 16 == 0, stride == 1, stride < 2**31)
    return out.dtype, raw.device, of_flags, of_places, divisible


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device. Switching costs microseconds, so only where it is another one."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)
