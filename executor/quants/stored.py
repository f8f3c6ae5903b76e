"""A matrix's bytes with the layout that they lie in: a quant type's own, or one that residents are re-laid in."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Stored(NamedTuple):
    """uint8 (…, n_rows, row_bytes) on a device; leading strides are free."""

    raw: torch.Tensor
    layout: str
