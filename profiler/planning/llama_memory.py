"""What llama.cpp holds on a device: weights, the KV cache of its context, and the buffer that its graph computes in.

It holds less than hprof does. The embeddings stay in host memory, and a weight that is copied in takes its own place in
the graph's buffer, one tensor at a time and not a layer's.

The graph's buffer is told as an upper bound, with flash attention on (`-fa 1`, which advice sets). Of nine shapes of
dense FFNs and experts on the CPU llama.cpp's own `compute buffer size` is 0.44 to 1.00 of it, of one on an H200 0.76
(`tests/profiler/planning/test_llama_memory.py`). For MLA and delta nets it is an estimate that nothing was held
against. The logits of every row of a ubatch are in it where they are more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from executor.memory.budget import DeviceShare
from executor.memory.footprint import state_bytes
from executor.model import AttentionShape, LayerShape, Mixer, MlaShape, Model, MoeFfn
from profiler.planning.request import GridPoint

EMBEDDINGS: Final = "token_embd.weight"
_CONTEXT_STEP: Final = 256  # contexts are rounded up to a multiple
_ACTIVATION_BYTES: Final = 4  # f32
_INDEX_BYTES: Final = 64  # of a row's token, position and place among the outputs, at most
_MASK_BYTES: Final = 2  # of attention's mask, a position
_STATE_TYPE: Final = torch.float16
_ROWS: Final = 5  # of the hidden size, that a layer keeps beside what is wider


def llama_cpp_shares(
    model: Model, device_of: Sequence[int], cells: Sequence[GridPoint]
) -> tuple[list[DeviceShare], int]:
    """What each device would hold with all of its layers resident, and what of that is no weights, at most, in bytes.

    device_of: of each layer and, last, the output's. The context is as long as the longest of the cells, as llama-bench
    makes it, and the ubatch the largest of them.
    """
    n_context = max(cell.n_positions for cell in cells)
    n_rows = min(max(cell.n_ubatch for cell in cells), n_context)
    padded = -(-n_context // _CONTEXT_STEP) * _CONTEXT_STEP
    computing = n_rows * (_row_bytes(model) + _INDEX_BYTES + _MASK_BYTES * padded)
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


def _row_bytes(model: Model) -> int:
    """What the numbers of a token's row take of the graph's buffer at most."""
    hidden = model.shape.hidden
    widest = max(_width(layer, hidden) for layer in set(model.shape.layers)) + _ROWS * hidden
    return _ACTIVATION_BYTES * max(widest, model.shape.n_vocab + 2 * hidden)


def _width(layer: LayerShape, hidden: int) -> int:
    """Numbers of a row while a layer is computed, beside those of the hidden size."""
    mixer = _mixer_width(layer.mixer)
    if isinstance(layer.ffn, MoeFfn):
        moe = layer.ffn
        return moe.n_used * (2 * hidden + 3 * moe.n_ff_expert) + 3 * moe.n_ff_shared + mixer
    return max(3 * layer.ffn.n_ff, mixer)


def _mixer_width(mixer: Mixer) -> int:
    """Queries, keys and values twice: as they are made, and rotated or put in order."""
    if isinstance(mixer, AttentionShape):
        return 2 * mixer.head_dim * (mixer.n_heads + 2 * mixer.n_kv_heads)
    if isinstance(mixer, MlaShape):
        a_head = mixer.kv_lora_rank + mixer.rope.dims + mixer.nope_dim + mixer.value_dim
        return 2 * mixer.n_heads * a_head
    return 2 * (mixer.channels + mixer.n_value_heads * mixer.value_dim)
