"""What llama.cpp holds on a device: weights, the KV cache of its context, and the buffer that its graph computes in.

It holds less than hprof does. The embeddings stay in host memory; a weight that is copied in takes its own place in the
graph's buffer, one tensor at a time and not a layer's; and dequantised copies are a GPU's alone that has no kernel for
the type, which is not counted. The graph's buffer is an upper bound, held against what llama.cpp says itself (`compute
buffer size`, build 11549): on the CPU 5 hidden + 3 FFN rows a token of a dense model, to the byte; with experts, 8 of
768 by 2,048, 215 KiB a token on one H200 (288 here). The logits of every row of a ubatch are in it where they are more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from executor.memory.budget import DeviceShare
from executor.memory.footprint import state_bytes
from executor.model import AttentionShape, LayerShape, Model, MoeFfn
from profiler.planning.placed_arms import device_of_layers
from profiler.planning.request import RunRequest

EMBEDDINGS: Final = "token_embd.weight"
_CONTEXT_STEP: Final = 256  # contexts are rounded up to a multiple
_ACTIVATION_BYTES: Final = 4  # f32
_STATE_TYPE: Final = torch.float16


def llama_cpp_shares(request: RunRequest, model: Model, n_ubatch: int) -> tuple[list[DeviceShare], int]:
    """What each device would hold with all of its layers resident, and what of that is no weights, at most, in bytes.

    The context is as long as the longest of the request's cells, as llama-bench makes it.
    """
    n_context = max((cell.n_positions for cell in request.cells), default=1)
    padded = -(-n_context // _CONTEXT_STEP) * _CONTEXT_STEP
    computing = min(n_ubatch, n_context) * max(
        [_row_bytes(layer, model.shape.hidden) for layer in model.shape.layers]
        + [(model.shape.n_vocab + 2 * model.shape.hidden) * _ACTIVATION_BYTES]
    )
    device_of = device_of_layers(request, model)
    shares, reserves = [], []
    for device in range(max(device_of) + 1):
        layers = [layer for layer, own in enumerate(device_of[:-1]) if own == device]
        states = state_bytes([model.shape.layers[layer] for layer in layers], padded, _STATE_TYPE)
        weights = _weight_bytes(model, layers, has_output=device == device_of[-1])
        shares.append(DeviceShare(layers, weights + states + computing, by_tensor=True))
        reserves.append(states + computing)
    return shares, max(reserves)


def embedding_bytes(model: Model) -> int:
    """Of the embeddings, which stay in host memory; 0 where the output is the same matrix, which a device then has."""
    return 0 if model.shape.tied_embeddings or EMBEDDINGS not in model.tensors else model.tensors[EMBEDDINGS].n_bytes


def _weight_bytes(model: Model, layers: Sequence[int], *, has_output: bool) -> int:
    own = set(layers)
    of_layers = sum(t.n_bytes for t in model.tensors.values() if t.layer in own)
    others = sum(t.n_bytes for t in model.tensors.values() if t.layer is None)
    return of_layers + (others - embedding_bytes(model) if has_output else 0)


def _row_bytes(layer: LayerShape, hidden: int) -> int:
    """What a token's row takes at most while a layer is computed."""
    if isinstance(layer.ffn, MoeFfn):
        mixer = layer.mixer
        queries = mixer.n_heads * mixer.head_dim if isinstance(mixer, AttentionShape) else 0
        n = layer.ffn.n_used * (2 * hidden + 3 * layer.ffn.n_ff_expert) + 5 * hidden + 3 * queries
    else:
        n = 3 * layer.ffn.n_ff + 5 * hidden
    return n * _ACTIVATION_BYTES
