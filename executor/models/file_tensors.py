"""A file's tensors held against what a model's shape reads: none missing, none left out in silence."""

from __future__ import annotations

from typing import Final

from executor.errors import HprofError
from executor.model import AttentionShape, ModelShape, TensorInfo
from executor.models.architectures.base import Tensors
from executor.models.tensors import all_shapes
from executor.quants import QUANTS

_OF_THE_DECODER: Final = ("blk.", "output", "token_", "position_", "rope_")
_HARMLESS: Final = ("rope_freqs.weight", "attn_rot_embd.weight")  # read with the shape; a table that old files hold
_OF_4_BIT_ACTIVATIONS: Final = ".input_scale"  # NVFP4's, which llama.cpp loads and multiplies nothing by
_OF_PREDICTION: Final = "nextn."  # of extra layers that predict tokens further ahead
_BY_LENGTH: Final = frozenset({"rope_factors_short.weight", "rope_factors_long.weight"})


def needed_tensors(shape: ModelShape, tensors: Tensors) -> dict[str, TensorInfo]:
    """Of a file's tensors those that a forward pass of `shape` reads, in the file's order."""
    names = {name for name, _ in all_shapes(shape)}
    return {name: info for name, info in tensors.items() if name in names}


def left_out(shape: ModelShape, tensors: Tensors, origin: str) -> list[str]:
    """A sentence on the tensors that no layer reads, such as a vision tower's.

    HprofError names one that would change what is computed, as llama.cpp refuses a file with unread tensors: one of the
    layers that run, or of a layer more than the metadata say, but for those of prediction.
    """
    read = {name for name, _ in all_shapes(shape)}
    if any(isinstance(layer.mixer, AttentionShape) and layer.mixer.rope.long_factors for layer in shape.layers):
        read |= _BY_LENGTH
    unread = [info for info in tensors.values() if info.name not in read and info.short_name not in _HARMLESS]
    n_layers, predicting = len(shape.layers), {i.layer for i in unread if i.short_name.startswith(_OF_PREDICTION)}
    for info in unread:
        if _changes_results(info, n_layers):
            raise HprofError(
                f"{origin}: the tensor {info.name} is none that hprof reads for the architecture {shape.architecture}, "
                "and without it the results would be others; use --engine llama-bench for this file."
            )
        if info.layer is not None and info.layer >= n_layers and info.layer not in predicting:
            raise HprofError(
                f"{origin}: it holds {info.name}, but its metadata say {n_layers} layers; the file is damaged, fetch "
                "or convert it again."
            )
    names = [info.name for info in unread if info.layer is None or info.layer < n_layers]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [f"no layer reads the tensor {names[0]}{more} of the file: left out"] if names else []


def _changes_results(info: TensorInfo, n_layers: int) -> bool:
    """Whether an unread tensor is one of the layers that run, of the embedding or of the output."""
    if info.name.endswith(_OF_4_BIT_ACTIVATIONS):
        return False
    of_the_decoder = info.name.startswith(_OF_THE_DECODER) or info.name.endswith(".scale")
    return of_the_decoder and (info.layer is None or info.layer < n_layers)


def check_tensors(shape: ModelShape, tensors: Tensors, origin: str) -> None:
    """HprofError names the first tensor that is missing, of another shape or of an unknown quant type."""
    for name, dims in all_shapes(shape):
        info = tensors.get(name)
        if info is None:
            raise _missing(name, shape, tensors, origin)
        if info.quant not in QUANTS:
            raise HprofError(
                f"{origin}: tensor {name!r} is stored as {info.quant}, which hprof does not unpack; take "
                f"the model in one of {', '.join(QUANTS)}, or measure this file with --engine llama-bench."
            )
        if _without_ones(info.shape) != _without_ones(dims):  # some files write a vector as a matrix of one row
            raise HprofError(
                f"{origin}: the tensor {name} has the shape {info.shape}, but the metadata ask for {dims}; "
                "the file is damaged, fetch or convert it again."
            )


def _missing(name: str, shape: ModelShape, tensors: Tensors, origin: str) -> HprofError:
    first = name.replace("_exps", ".0")
    if first != name and first in tensors:
        return HprofError(
            f"{origin}: its experts are stored one by one ({first}), as until April 2024, which llama.cpp does not "
            "read any more either; convert the model again."
        )
    return HprofError(
        f"{origin}: the tensor {name} is missing, which the architecture {shape.architecture} needs; "
        "the file is incomplete, join its parts or convert the model again."
    )


def _without_ones(dims: tuple[int, ...]) -> list[int]:
    return [dim for dim in dims if dim != 1]
