"""The model's two ends: token embeddings in, logits out."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executor.layers.norm import rms_norm
from executor.layers.weights import Weights
from executor.shape import ModelShape


def embed(ids: torch.Tensor, w: Weights, shape: ModelShape) -> torch.Tensor:
    """Embeddings (n, hidden) of token ids (n,)."""
    x = w.rows("token_embd.weight", ids)
    return x if shape.embedding_scale == 1.0 else x * shape.embedding_scale


def logits(x: torch.Tensor, w: Weights, shape: ModelShape) -> torch.Tensor:
    """Float32 logits (m, vocab) of the hidden rows x (m, hidden) whose next token is wanted."""
    h = rms_norm(x, w("output_norm.weight"), shape.norm_eps)
    name = "token_embd.weight" if shape.tied_embeddings else "output.weight"
    return F.linear(h, w(name)).float()
