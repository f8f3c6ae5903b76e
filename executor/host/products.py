"""How a weight is multiplied on the host: as it is stored, as packed int4, as bf16, or as float32.

Tensors of one step with the same input may be stacked along their rows, so that one product serves both. A
tensor's places are its experts; a dense tensor has one. Products are prepared piece by piece on all cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Literal, Protocol

import torch
import torch.nn.functional as F

from executor.host import int4, stored
from executor.host.stored import StoredTensor
from executor.model import TensorInfo
from executor.quants.dispatch import dequantise, is_stored_as
from executor.quants.unpack import dequantise_into

ProductKind = Literal["stored", "int4", "bf16", "f32"]
PrepareJob = Callable[[], None]
"""One piece of the preparation; the pieces are independent."""

_PIECE: Final = 1 << 20  # weights that are prepared together: their temporaries stay in a core's cache
# On 2 threads `mv` takes half the GEMM's time at any size; on 16 it takes twice the GEMM's for a dense FFN's matrix.
_LARGE_MATRIX: Final = 1 << 24  # weights
_FEW_THREADS: Final = 4
_MOST_PACKED_ROWS: Final = 64  # beyond, to unpack a matrix once costs less than to do so with every few rows


class Product(Protocol):
    """One tensor, or a few stacked along their rows."""

    def __call__(self, rows: torch.Tensor, place: int) -> torch.Tensor:
        """rows (n, in), contiguous, times the matrix at `place`: (n, out)."""


def product_kind(info: TensorInfo, dtype: torch.dtype) -> ProductKind:
    """How a tensor is multiplied where the host computes in `dtype`. Float32 stays as on the device, to the bit.

    PyTorch's 8-bit product has one scale a row, which no block type fits; without the stored one, those go as bf16.
    """
    if dtype != torch.bfloat16:
        return "f32"
    if stored.can_multiply(info):
        return "stored"
    return "int4" if int4.can_pack(info.quant, info.shape) else "bf16"


def product_bytes(info: TensorInfo, dtype: torch.dtype) -> int:
    """Memory that a tensor's product needs beside the stored bytes; nothing where those are used as they are."""
    n_weights = math.prod(info.shape)
    if is_stored_as(info, dtype) or product_kind(info, dtype) == "stored":
        return 0
    return int4.packed_bytes(n_weights) if product_kind(info, dtype) == "int4" else n_weights * dtype.itemsize


def can_stack(first: TensorInfo, second: TensorInfo, dtype: torch.dtype) -> bool:
    """Whether one product can serve both. Float32 is left as it is everywhere else, to the bit."""
    same = first.quant == second.quant and first.shape == second.shape and first.shape[-2] % int4.BLOCK_ROWS == 0
    return same and dtype == torch.bfloat16 and not is_stored_as(first, dtype)


def make_product(parts: Sequence[StoredTensor], dtype: torch.dtype, jobs: list[PrepareJob]) -> Product:
    """The product of `parts`, stacked; it is ready when what is added to `jobs` has run."""
    first = parts[0]
    kind = product_kind(first.info, dtype)
    if kind == "stored":
        return WidenedProduct(parts)
    if len(parts) == 1 and (numbers := _in_place(first, dtype)) is not None:
        return MatrixProduct(numbers)
    n_rows, n_cols = sum(part.info.shape[-2] for part in parts), first.info.shape[-1]
    n_places = len(first.places)
    if kind == "int4":
        packed, scales = int4.empty_packed(n_places, n_rows, n_cols)
        for place, at, raw in _pieces(parts):
            jobs.append(partial(int4.pack_into, packed[place, at], scales[place, :, at], raw, first.info.quant))
        return PackedProduct(packed, scales, parts)
    numbers = torch.empty((n_places, n_rows, n_cols), dtype=dtype)
    for place, at, raw in _pieces(parts):
        jobs.append(partial(dequantise_into, numbers[place, at], raw, first.info.quant))
    return MatrixProduct(numbers)


class MatrixProduct:
    """Numbers (places, out, in) in the dtype that is computed in."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._places = numbers.unbind()

    def __call__(self, rows: torch.Tensor, place: int) -> torch.Tensor:
        matrix = self._places[place]
        if rows.shape[0] == 1 and rows.dtype == torch.bfloat16 and _one_thread_suffices(matrix):
            return torch.mv(matrix, rows[0]).unsqueeze(0)
        return F.linear(rows, matrix)


def _one_thread_suffices(matrix: torch.Tensor) -> bool:
    """Whether `mv`, which runs on one thread, beats the GEMM of one row, which runs on all but starts slowly."""
    return matrix.numel() < _LARGE_MATRIX or torch.get_num_threads() <= _FEW_THREADS


class WidenedProduct:
    """Dequantised for the moment: the product of many rows, which nothing is kept for."""

    def __init__(self, parts: Sequence[StoredTensor]) -> None:
        self._parts = parts

    def __call__(self, rows: torch.Tensor, place: int) -> torch.Tensor:
        products = [F.linear(rows, dequantise(p.places[place], p.info.quant, rows.dtype)) for p in self._parts]
        return products[0] if len(products) == 1 else torch.cat(products, dim=-1)


class PackedProduct:
    """Packed int4. Many rows at once go through bf16, which then is faster."""

    def __init__(self, packed: torch.Tensor, scales: torch.Tensor, parts: Sequence[StoredTensor]) -> None:
        self._packed, self._scales, self._of_many_rows = packed.unbind(), scales.unbind(), WidenedProduct(parts)

    def __call__(self, rows: torch.Tensor, place: int) -> torch.Tensor:
        if rows.shape[0] <= _MOST_PACKED_ROWS:
            return int4.multiply(rows, self._packed[place], self._scales[place])
        return self._of_many_rows(rows, place)


def _in_place(part: StoredTensor, dtype: torch.dtype) -> torch.Tensor | None:
    """The stored bytes as numbers where they are that, and lie so that they can be read as such."""
    raw = part.places
    offsets = (raw.storage_offset(), *raw.stride()[:-1])
    if not is_stored_as(part.info, dtype) or any(offset % dtype.itemsize for offset in offsets):
        return None
    return raw.view(dtype)


def _pieces(parts: Sequence[StoredTensor]) -> Iterator[tuple[int, slice, torch.Tensor]]:
    """(place, rows of the stack, the stored rows that go there), small enough to be prepared in the cache."""
    above = 0
    for part in parts:
        n_rows, n_cols = part.info.shape[-2:]
        step = max(_PIECE // n_cols // int4.BLOCK_ROWS, 1) * int4.BLOCK_ROWS
        for place, raw in enumerate(part.places):
            for start in range(0, n_rows, step):
                end = min(start + step, n_rows)
                yield place, slice(above + start, above + end), raw[start:end]
        above += n_rows


def run_jobs(jobs: Sequence[PrepareJob]) -> None:
    """Run them all; raises what the first that failed raised."""
    n_threads = torch.get_num_threads()
    if n_threads == 1 or len(jobs) < 2:
        with torch.inference_mode():
            for job in jobs:
                job()
        return
    try:
        with ThreadPoolExecutor(n_threads, "hprof-prepare", _one_thread) as pool:
            for _ in pool.map(_run, jobs):
                pass
    finally:
        torch.set_num_threads(n_threads)  # what a worker set last is what threads that begin later inherit


def _run(job: PrepareJob) -> None:
    with torch.inference_mode():
        job()


def _one_thread() -> None:
    torch.get_num_threads()  # a thread's first question resets its number, so it must come before
    torch.set_num_threads(1)
