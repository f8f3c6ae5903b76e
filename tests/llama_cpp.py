"""llama.cpp's logits for a GGUF file, by the C interface that the wheel `xllamacpp` exports (a dev dependency).

Parameter structs come and go as opaque bytes with llama.cpp's own defaults, so that fields which come and go upstream
do not matter; only the first fields, which have stayed, are set.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

_N_CTX, _N_BATCH, _N_UBATCH = 0, 4, 8  # byte offsets in llama_context_params


class _Params(ctypes.Structure):
    _fields_ = (("raw", ctypes.c_ubyte * 1024),)  # more than either struct has; the callee reads its own part


_Listener = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.c_void_p),
        ("n_seq_id", ctypes.c_void_p),
        ("seq_id", ctypes.c_void_p),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def llama_logits(path: Path, tokens: Sequence[int], n_vocab: int) -> NDArray[np.float32]:
    """The logits (tokens, n_vocab) after each position. Skips the test where the wheel is not installed."""
    library, n = _library(), len(tokens)
    model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
    assert model, f"llama.cpp does not load {path}"
    params = library.llama_context_default_params()
    for offset in (_N_CTX, _N_BATCH, _N_UBATCH):
        ctypes.c_uint32.from_buffer(params, offset).value = max(n, 64)
    context = library.llama_init_from_model(model, params)
    try:
        batch = _Batch(n_tokens=n, token=(ctypes.c_int32 * n)(*tokens), logits=(ctypes.c_int8 * n)(*[1] * n))
        assert library.llama_decode(context, batch) == 0
        found = np.ctypeslib.as_array(library.llama_get_logits(context), (n, n_vocab)).copy()
    finally:
        library.llama_free(context)
        library.llama_model_free(model)
    return found


def compute_buffer_bytes(path: Path, n_context: int, n_ubatch: int) -> float:
    """What llama.cpp says of the buffer that its graph computes in, on the CPU. Skips without the wheel."""
    library, told = _library(), list[str]()
    listener = _Listener(lambda level, text, user: told.append(text.decode(errors="replace")))
    library.llama_log_set(listener, None)
    try:
        model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        params = library.llama_context_default_params()
        for offset, value in ((_N_CTX, n_context), (_N_BATCH, n_ubatch), (_N_UBATCH, n_ubatch)):
            ctypes.c_uint32.from_buffer(params, offset).value = value
        library.llama_free(library.llama_init_from_model(model, params))
        library.llama_model_free(model)
    finally:
        library.llama_log_set(_Listener(), None)
    [mib] = re.findall(r"CPU\s+compute buffer size =\s+([\d.]+) MiB", "".join(told))
    return float(mib) * 2**20


def relative_errors(found: NDArray[np.float32], reference: NDArray[np.float32]) -> NDArray[np.float32]:
    """Relative L2 error at each position (tokens,)."""
    errors: NDArray[np.float32] = np.linalg.norm(found - reference, axis=1) / np.linalg.norm(reference, axis=1)
    return errors


@cache
def _library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        pytest.skip("needs llama.cpp for reference logits: pip install xllamacpp")
    library = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
    for name, result, arguments in (
        ("llama_model_default_params", _Params, ()),
        ("llama_context_default_params", _Params, ()),
        ("llama_model_load_from_file", ctypes.c_void_p, (ctypes.c_char_p, _Params)),
        ("llama_init_from_model", ctypes.c_void_p, (ctypes.c_void_p, _Params)),
        ("llama_decode", ctypes.c_int32, (ctypes.c_void_p, _Batch)),
        ("llama_get_logits", ctypes.POINTER(ctypes.c_float), (ctypes.c_void_p,)),
        ("llama_log_set", None, (_Listener, ctypes.c_void_p)),
        ("llama_free", None, (ctypes.c_void_p,)),
        ("llama_model_free", None, (ctypes.c_void_p,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_backend_init()
    return library
