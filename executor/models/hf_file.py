"""Reads a Hugging Face `config.json`, which may be anything at all, and says what its weights are stored in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from executor.errors import HprofError
from executor.models.tensors import QuantPlan

_MAX_BYTES: Final = 2**20
_QUANTS: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def read_json(path: Path) -> dict[str, Any]:
    """The table in the file; a multi-modal model's is that of its language part. HprofError where there is none."""
    try:
        values = json.loads(_bounded(path).decode("utf-8-sig"))
    except OSError as error:
        raise HprofError(f"{path} cannot be read ({error.strerror or error}); name a model's config.json.") from error
    except (ValueError, RecursionError) as error:
        raise HprofError(f"{path} is not JSON ({str(error)[:80]}); name a model's config.json.") from error
    if not isinstance(values, dict):
        raise HprofError(f"{path} holds no JSON object; name a model's config.json.")
    text = values.get("text_config")
    if not isinstance(text, dict):
        return values
    outer = ("model_type", "torch_dtype", "quantization_config")
    return {key: values[key] for key in outer if key in values} | text


def published_quants(values: Mapping[str, Any]) -> tuple[QuantPlan, tuple[str, ...]]:
    """The types that the weights are published in, and notes on what stands for types that hprof does not have."""
    dtype = values.get("dtype", values.get("torch_dtype"))
    plain = QuantPlan.uniform(_QUANTS.get(dtype, "BF16") if isinstance(dtype, str) else "BF16")
    stated = values.get("quantization_config")
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    match method:
        case None:
            return plain, ()
        case "mxfp4":
            return QuantPlan(plain.weights, "MXFP4", plain.embeddings), ()
        case "fp8":
            note = "FP8 weights are stored as Q8_0, which takes 6 % more bytes"
            return QuantPlan("Q8_0", "Q8_0", plain.embeddings), (note,)
        case _:
            named = str(method)[:40].encode(errors="replace").decode()  # JSON can hold half a surrogate pair
            note = f"{named} weights are stored as {plain.weights}: give --quant for a type of their size"
            return plain, (note,)


def _bounded(path: Path) -> bytes:
    if not path.is_file() and path.exists():  # a pipe or a device has no end
        raise HprofError(f"{path} is not a regular file; name a model's config.json.")
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise HprofError(f"{path} is larger than 1 MiB, which no model's config is; name a model's config.json.")
    return content
