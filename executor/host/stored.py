"""Gated FFNs multiplied from their bytes as they are stored: all chosen experts of a layer as one job.

`native/` is compiled where it is first needed, and needs AVX-512. It has as many threads of its own as PyTorch is told
to take: OpenMP's go to sleep between layers where another thread has a team as well, and all wait for the slowest.
Where it cannot be had, PyTorch's products serve (`host.products`).
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from executor.compiling import NativeLibrary, find_compiler
from executor.errors import HprofError
from executor.model import Activation, TensorInfo
from executor.quants import quant_type

_NATIVE: Final = Path(__file__).parent / "native"
_INSTRUCTIONS: Final = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c")
_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", *_INSTRUCTIONS)
_QUANTS: Final = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
)
_ACTIVATIONS: Final[tuple[Activation, ...]] = ("silu", "gelu", "oai_swiglu")
_NUMBERS: Final = {torch.float32: 0, torch.bfloat16: 1}
_LANES: Final = 16  # weights that are read at a time
_MANY_CORES: Final = 8
MOST_ROWS: Final = 64
"""Rows a matrix, beyond which a product of dequantised weights costs less."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it is stored: `places` (places, rows, row_bytes) uint8, rows contiguous."""

    info: TensorInfo
    places: torch.Tensor


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """One matrix of each expert. `bias` (experts, rows) and `scale` (experts,) are float32, or None.

    Gate's and up's scale counts before their bias, down's after it.
    """

    stored: StoredTensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None


class _FfnMatrices(ctypes.Structure):
    """`Matrices` of native/ffn.cpp."""

    _fields_ = (
        ("at", ctypes.c_void_p),
        ("place_stride", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("n_rows", ctypes.c_int32),
        ("n_cols", ctypes.c_int32),
        ("quant", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("bias", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
    )


class _FfnLayer(ctypes.Structure):
    """`Layer` there."""

    _fields_ = (
        ("gate", _FfnMatrices),
        ("up", _FfnMatrices),
        ("down", _FfnMatrices),
        ("n_experts", ctypes.c_int32),
        ("n_used", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("weighs_input", ctypes.c_int32),
    )


class _FfnTokens(ctypes.Structure):
    """`Tokens` there."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("only", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("numbers", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("n_threads", ctypes.c_int32),
    )


class StoredFfn:
    """A layer's experts, or its dense FFN as the one expert of all tokens. `projections`: gate, up and down."""

    def __init__(
        self,
        projections: Sequence[StoredMatrix],
        activation: Activation,
        *,
        n_used: int = 1,
        weighs_input: bool = False,
    ) -> None:
        self._kept = tuple(projections)
        self.begun: StoredCall | None = None
        """The call that was begun last: its memory stays, as its owner may be interrupted."""
        n_experts = len(projections[0].stored.places)
        parts = (_matrices(part) for part in self._kept)
        self._layer = _FfnLayer(*parts, n_experts, n_used, _ACTIVATIONS.index(activation), weighs_input)

    def __call__(
        self,
        rows: torch.Tensor,
        ids: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        only: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The weighted sums (n, hidden) of what the chosen experts make of rows (n, hidden), bf16 or float32.

        `ids` (n, n_used) int64 are the choices, `weights` (n, n_used) float32 what each counts; None: expert 0, once.
        `only` (n_experts,) bool leaves other experts out. Computed in float32, experts added up in their order.
        """
        out = torch.empty_like(rows)
        self.prepared(out, rows, ids, weights, only)()
        return out

    def prepared(
        self,
        out: torch.Tensor,
        rows: torch.Tensor,
        ids: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        only: torch.Tensor | None = None,
    ) -> StoredCall:
        """The same into `out`, to be called when what it reads is there; copies are made now of what lies scattered."""
        kept = [None if one is None else one.contiguous() for one in (rows, ids, weights, only)]
        addresses = (None if one is None else one.data_ptr() for one in (*kept, out))
        tokens = _FfnTokens(*addresses, _NUMBERS[rows.dtype], rows.shape[0], 1)
        return StoredCall(self, self._layer, tokens, [*kept, out])


class StoredCall:
    """A call whose arguments lie ready. It keeps their memory."""

    def __init__(self, ffn: StoredFfn, layer: _FfnLayer, tokens: _FfnTokens, kept: object) -> None:
        library = _library()
        assert library is not None, "is_available() says whether there is one"
        self._native, self._ffn, self._tokens, self._kept = library, ffn, tokens, kept
        self._arguments = ctypes.byref(layer), ctypes.byref(tokens)

    def __call__(self) -> None:
        """Compute, on this thread and others: as many as PyTorch gives the thread that calls, or one less."""
        self._tokens.n_threads = _n_threads()
        self._native.hprof_ffn(*self._arguments)

    def begin(self) -> None:
        """Compute on threads beside this one, which goes on; who begins another waits for them first."""
        self._tokens.n_threads = _n_threads()
        self._native.hprof_ffn_begin(*self._arguments)
        self._ffn.begun = self

    def end(self) -> None:
        """Help with what was begun until it is done."""
        self._native.hprof_ffn_end()


def _n_threads() -> int:
    """As PyTorch is told; one less where that is all of many cores.

    Whoever else wants a core would put a thread aside for longer than a layer takes, and the layer waits for its chunk.
    """
    n, n_cores = torch.get_num_threads(), _n_cores()
    return n - 1 if n == n_cores >= _MANY_CORES else n


@functools.cache
def _n_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _matrices(part: StoredMatrix) -> _FfnMatrices:
    info, places = part.stored.info, part.stored.places
    extras = (None if one is None else one.data_ptr() for one in (part.bias, part.scale))
    strides, n_rows, n_cols = places.stride(), *info.shape[-2:]
    return _FfnMatrices(places.data_ptr(), *strides[:2], n_rows, n_cols, _QUANTS.index(info.quant), 0, *extras)


def fits(info: TensorInfo) -> bool:
    """Whether a matrix (..., out, in) can be multiplied so, on a machine that has what it takes."""
    return info.quant in _QUANTS and info.shape[-1] % math.lcm(_LANES, quant_type(info.quant).block_size) == 0


def can_multiply(info: TensorInfo) -> bool:
    """Whether this machine multiplies such a matrix so."""
    return fits(info) and is_available()


def is_available() -> bool:
    """Whether this machine has the instructions, and the library or what compiles it (some seconds, once)."""
    return _library() is not None


@functools.cache
def _library() -> ctypes.CDLL | None:
    compiler = find_compiler()
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512") or compiler is None:
        return None
    library = NativeLibrary(
        name="hprof-host",
        what="the library of host products",
        sources=_NATIVE,
        objects=[[*_FLAGS, str(_NATIVE / "ffn.cpp")]],
        links=[["-shared", "-pthread"]],
    )
    try:
        loaded = ctypes.CDLL(str(library.built(compiler)))
    except (HprofError, OSError):  # no C++ that works
        return None
    for function in (loaded.hprof_ffn, loaded.hprof_ffn_begin, loaded.hprof_ffn_end):
        function.restype = None
    return loaded
