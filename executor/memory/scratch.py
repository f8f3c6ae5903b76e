"""Device memory that a step needs for a while, beside what is reserved: dequantised weights and rows between products.

Counted is what `layers.dense` and `layers.widened_experts` hold at once. It is a lower bound: kernels' workspaces and
what attention holds come on top.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from executor.layers.dense import MOST_ROWS
from executor.model import LayerShape, Model, MoeFfn, TensorInfo
from executor.output_rows import drops_rows
from executor.quants.dispatch import is_stored_as
from executor.quants.products import are_few, reads_stored
from executor.session import SessionOptions
from executor.weights.transfer_units import StepKind, step_kind


def scratch_bytes(
    model: Model,
    layers: Sequence[int],
    *,
    options: SessionOptions,
    has_output: bool,
    all_logits: bool,
    elsewhere: Collection[str] = frozenset(),
) -> int:
    """The most that any step of a device needs, which has `layers` and perhaps the output matrix, in bytes.

    `elsewhere`: the tensors that only the host computes with.
    """
    shape = model.shape
    last_rows = options.max_ubatch if all_logits else 1
    rows = dict.fromkeys(layers, options.max_ubatch)
    if drops_rows(shape) and len(shape.layers) - 1 in rows:
        rows[len(shape.layers) - 1] = last_rows
    needs = [
        _of_step(kind, matrices, shape.layers[layer], shape.hidden, rows[layer], options)
        for (layer, kind), matrices in _steps(model, rows, elsewhere).items()
    ]
    if has_output:
        needs.append(_n_widened(model.tensors[shape.output_tensor], last_rows, options))
    return max(needs, default=0) * options.dtype.itemsize


def _steps(
    model: Model, layers: Collection[int], elsewhere: Collection[str]
) -> Mapping[tuple[int, StepKind], list[TensorInfo]]:
    """The matrices of each step of `layers`."""
    found: dict[tuple[int, StepKind], list[TensorInfo]] = defaultdict(list)
    for tensor in model.tensors.values():
        layer = tensor.layer
        if layer is not None and layer in layers and len(tensor.shape) > 1 and tensor.name not in elsewhere:
            found[layer, step_kind(tensor, model.shape.layers[layer])].append(tensor)
    return found


def _of_step(
    kind: StepKind, matrices: Sequence[TensorInfo], layer: LayerShape, hidden: int, n_rows: int, options: SessionOptions
) -> int:
    """Numbers that a step of `n_rows` rows holds at once."""
    widened = [_n_widened(matrix, n_rows, options) for matrix in matrices]
    ffn = layer.ffn
    if kind == "ffn" and not isinstance(ffn, MoeFfn):
        return sum(widened) + n_rows * hidden + 3 * min(n_rows, MOST_ROWS) * ffn.n_ff
    if kind == "shared" and isinstance(ffn, MoeFfn):
        return sum(widened) + 3 * min(n_rows, MOST_ROWS) * ffn.n_ff_shared
    if kind == "experts" and isinstance(ffn, MoeFfn):
        n_at_once, width = ffn.n_experts, hidden + ffn.n_ff_expert  # a projection; all choices' rows in and out
        if options.device.kind == "cpu":
            n_at_once, width = 1, hidden  # all choices' outputs
        elif n_rows == 1:
            n_at_once = ffn.n_used
        return max(widened) // ffn.n_experts * n_at_once + n_rows * ffn.n_used * width
    return max(widened)


def _n_widened(matrix: TensorInfo, n_rows: int, options: SessionOptions) -> int:
    """Numbers of a matrix that are written in the compute dtype for a product with `n_rows` rows."""
    kind, dtype = options.device.kind, options.dtype
    # `sim` stands for a GPU with kernels, here as in its times (`engine.work.device_bytes`)
    is_read = reads_stored(matrix.quant, n_rows, dtype) if kind == "cuda" else kind == "sim" and are_few(n_rows, dtype)
    return 0 if is_read or is_stored_as(matrix, dtype) else math.prod(matrix.shape)
