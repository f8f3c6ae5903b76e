"""Random weights of any quant type for models that are known by shape only: valid blocks, made at memory speed."""

from __future__ import annotations

import functools
from typing import Final

import gguf
import numpy as np
import torch

from executor.quants.table import QuantType, quant_type
from executor.quants.unpack import PLAIN_DTYPES, dequantise

# About two to four million weights a tile, by block size. The numbers of blocks are prime, so that a tile never
# lines up with the rows of a matrix: no two rows, and no two experts, are equal.
_TILE_BLOCKS: Final = {1: 1_048_573, 32: 131_071, 256: 16_381}

# Where a block's float16 scales are, and by what to multiply the common scale there: minima lie so that values
# centre on 0. MXFP4 (a byte's power of two) and the plain floats have none.
_SCALES: Final[dict[str, tuple[tuple[int, float], ...]]] = {
    "Q8_0": ((0, 1.0),),
    "Q4_0": ((0, 1.0),),
    "Q4_1": ((0, 1.0), (2, -7.5)),
    "Q5_0": ((0, 1.0),),
    "Q5_1": ((0, 1.0), (2, -15.5)),
    "Q2_K": ((80, 1.0), (82, 1.5)),
    "Q3_K": ((108, 1.0),),
    "Q4_K": ((0, 1.0), (2, 7.5)),
    "Q5_K": ((0, 1.0), (2, 15.5)),
    "Q6_K": ((208, 1.0),),
    "IQ4_NL": ((0, 1.0),),
    "IQ4_XS": ((0, 1.0),),
}


def fill_random(out: torch.Tensor, quant: str, std: float, seed: int) -> None:
    """Fill `out` (uint8, 1-D, whole blocks, on the CPU) with blocks whose weights have a standard deviation of `std`.

    The mean is about 0 and all weights are finite. One tile of random blocks (2 to 5 MB, made once for each quant
    and std) is repeated; `seed` says at which of its blocks `out` begins. So the bytes depend on the arguments
    alone, a tensor is filled as fast as memory is written, and tensors larger than a tile repeat themselves.
    """
    kind = quant_type(quant)
    if out.numel() % kind.block_bytes:
        raise ValueError(f"{out.numel()} bytes are not whole {quant} blocks of {kind.block_bytes}")
    tile = _tile(quant, std)
    start = _mixed(seed) % _TILE_BLOCKS[kind.block_size] * kind.block_bytes
    first = min(len(tile) - start, len(out))
    out[:first] = tile[start : start + first]
    for piece in out[first:].split(len(tile)):
        piece.copy_(tile[: len(piece)])


def _mixed(seed: int) -> int:
    """Neighbouring seeds far apart."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])


@functools.lru_cache(maxsize=8)
def _tile(quant: str, std: float) -> torch.Tensor:
    kind = quant_type(quant)
    n_blocks = _TILE_BLOCKS[kind.block_size]
    if kind.block_size == 1:
        return _float_tile(quant, n_blocks, std)
    blocks = _random_bytes(n_blocks, kind.block_bytes)
    if quant == "MXFP4":
        _set_exponents(blocks, std)
    else:
        _set_scales(blocks, quant, std / _unit_std(kind))
    return torch.from_numpy(blocks.ravel())


def _random_bytes(n_blocks: int, block_bytes: int) -> np.ndarray:
    """PCG64's raw stream, which numpy promises never to change."""
    n_bytes = n_blocks * block_bytes
    words = np.random.PCG64(block_bytes).random_raw(-(-n_bytes // 8))
    return words.view(np.uint8)[:n_bytes].reshape(n_blocks, block_bytes)


def _float_tile(quant: str, n: int, std: float) -> torch.Tensor:
    """Uniform on [-sqrt(3) std, sqrt(3) std], whose standard deviation is std."""
    unit = _random_bytes(n, 4).view(np.uint32).ravel() / 2**32
    values = torch.from_numpy((unit * 2 - 1) * (3**0.5 * std))
    return values.to(PLAIN_DTYPES[quant]).view(torch.uint8)


def _set_scales(blocks: np.ndarray, quant: str, scale: float) -> None:
    """Write the scales, negative in every other block on average: codes run from -8 to 7, so one sign has a mean."""
    sign = np.where(np.random.PCG64(0).random_raw(len(blocks)) >> 63, -1.0, 1.0)
    for offset, factor in _SCALES[quant]:
        field = (sign * (scale * factor)).astype("<f2")
        blocks[:, offset : offset + 2] = field.view(np.uint8).reshape(-1, 2)


def _unit_std(kind: QuantType) -> float:
    """The standard deviation of random blocks of scale 1, measured on a few.

    Four digits of it: the rest depends on the order in which a machine sums.
    """
    blocks = _random_bytes(1024, kind.block_bytes).copy()
    _set_scales(blocks, kind.name, 1.0)
    std = dequantise(torch.from_numpy(blocks), kind.name, torch.float32).double().std().item()
    return float(f"{std:.4g}")


def _set_exponents(blocks: np.ndarray, std: float) -> None:
    """Two neighbouring powers of two, mixed so that the variances average to std ** 2."""
    wanted = std / float(np.std(gguf.quants.MXFP4.kvalues))
    low = int(np.floor(np.log2(wanted)))
    share_high = ((wanted / 2.0**low) ** 2 - 1) / 3
    high = np.random.PCG64(0).random_raw(len(blocks)) < share_high * 2.0**64
    blocks[:, 0] = np.clip(128 + low + high, 1, 254)
