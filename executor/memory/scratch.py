"""Device memory that a step needs for a while: weights as numbers, and rows between two products."""

from __future__ import annotations

import math

from executor.model import Model, TensorInfo
from executor.placed.lane import Lane
from executor.session import SessionOptions
from executor.shape import LayerShape, MoeFfn
from executor.weights.views import is_stored_as


def scratch_bytes(model: Model, lane: Lane, options: SessionOptions) -> int:
    """The most that a step of a lane needs, in bytes.

    That is a layer's largest weight dequantised beside its rows, or the output matrix for one row. Experts are
    dequantised one by one on cpu, a whole projection elsewhere.
    """
    itemsize = options.dtype.itemsize
    rows = options.max_ubatch * max((_width(model.shape.layers[layer]) for layer in lane.layers), default=0)
    most = 0
    for tensor in model.tensors.values():
        if _is_dequantised(model, tensor, lane):
            one_by_one = len(tensor.shape) == 3 and options.device.kind == "cpu"
            n_weights = math.prod(tensor.shape[1:] if one_by_one else tensor.shape)
            in_place = is_stored_as(tensor, options.dtype)
            most = max(most, (0 if in_place else n_weights) + (0 if tensor.layer is None else rows))
    return most * itemsize


def _is_dequantised(model: Model, tensor: TensorInfo, lane: Lane) -> bool:
    if len(tensor.shape) < 2:
        return False
    if tensor.layer is not None:
        return tensor.layer in lane.layers
    is_embedding = tensor.name == "token_embd.weight" and not model.shape.tied_embeddings  # read row by row
    return not is_embedding and len(model.shape.layers) - 1 in lane.layers


def _width(layer: LayerShape) -> int:
    """Numbers a token has between gate, up and down at once."""
    ffn = layer.ffn
    return ffn.n_used * 2 * ffn.n_ff_expert if isinstance(ffn, MoeFfn) else 2 * ffn.n_ff
