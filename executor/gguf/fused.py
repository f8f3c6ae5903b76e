"""Matrices that some converters store as one: q, k and v in `attn_qkv`, gate and up in `ffn_gate_up_exps` or, as
Phi-3's, in `ffn_up`.

Layers, transfer units and placement see the parts, as if the file held them apart: a part is whole rows of what is
stored, so its bytes are the file's own, whatever the quant type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from executor.gguf.file import GgufFile
from executor.model import AttentionShape, DenseFfn, ModelShape, TensorInfo

Tensors = Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class FusedPart:
    """A tensor of `info` that lies inside the stored tensor `whole`.

    The first of its `n_stacked` runs of bytes begins at `start`, and each other `stride` bytes after the one before.
    """

    info: TensorInfo
    whole: str
    start: int
    stride: int
    n_stacked: int


def fused_parts(shape: ModelShape, tensors: Tensors) -> dict[str, FusedPart]:
    """The parts by name that a model of `shape` needs and `tensors` hold fused, and not apart."""
    found = (part for layer in range(len(shape.layers)) for part in _of_layer(shape, layer, tensors))
    return {part.info.name: part for part in found if part.info.name == part.whole or part.info.name not in tensors}


def with_parts(tensors: Tensors, parts: Mapping[str, FusedPart]) -> dict[str, TensorInfo]:
    """All tensors by name, in the file's order, each fused one's parts in its place."""
    of_whole: dict[str, list[TensorInfo]] = {}
    for part in parts.values():
        of_whole.setdefault(part.whole, []).append(part.info)
    return {info.name: info for name, whole in tensors.items() for info in of_whole.get(name, [whole])}


def _of_layer(shape: ModelShape, layer: int, tensors: Tensors) -> Iterator[FusedPart]:
    block, prefix = shape.layers[layer], f"blk.{layer}."
    if isinstance(mixer := block.mixer, AttentionShape):
        q = mixer.n_heads * mixer.head_dim * (2 if mixer.output_gate else 1)
        kv = mixer.n_kv_heads * mixer.head_dim
        rows = {"attn_q": q, "attn_k": kv, "attn_v": kv}
        for kind in ("weight", "bias"):
            yield from _cut(
                tensors.get(f"{prefix}attn_qkv.{kind}"), {f"{prefix}{n}.{kind}": r for n, r in rows.items()}
            )
    if isinstance(block.ffn, DenseFfn) and f"{prefix}ffn_gate.weight" not in tensors:
        names = (f"{prefix}ffn_gate.weight", f"{prefix}ffn_up.weight")
        yield from _cut(tensors.get(names[1]), dict.fromkeys(names, block.ffn.n_ff))
    if block.moe is not None:
        names = (f"{prefix}ffn_gate_exps", f"{prefix}ffn_up_exps")
        for kind in ("weight", "bias"):
            whole = tensors.get(f"{prefix}ffn_gate_up_exps.{kind}")
            yield from _cut(whole, {f"{name}.{kind}": block.moe.n_ff_expert for name in names})


def _cut(whole: TensorInfo | None, rows_of: Mapping[str, int]) -> Iterator[FusedPart]:
    """The parts of `rows_of[name]` rows each, one after the other; none where they do not make up the whole."""
    if whole is None:
        return
    is_vector = whole.name.endswith(".bias")
    if not is_vector and len(whole.shape) < 2:
        return
    *stacked, n_rows = whole.shape if is_vector else whole.shape[:-1]
    n_stacked = stacked[0] if stacked else 1
    if len(stacked) > 1 or n_rows != sum(rows_of.values()):
        return
    row_bytes, start = whole.n_bytes // (n_stacked * n_rows), 0
    for name, rows in rows_of.items():
        dims = (*stacked, rows) if is_vector else (*stacked, rows, whole.shape[-1])
        info = TensorInfo(name, whole.quant, dims, n_stacked * rows * row_bytes)
        yield FusedPart(info, whole.name, start, n_rows * row_bytes, n_stacked)
        start += rows * row_bytes


class FusedSource:
    """A GGUF file's bytes (a `WeightSource`) in which parts of fused tensors can be asked for by name."""

    def __init__(self, file: GgufFile, parts: Mapping[str, FusedPart]) -> None:
        self._file, self._parts = file, parts

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """As `WeightSource.read_into`; a stack's part is read expert by expert."""
        part = self._parts.get(name)
        if part is None:
            self._file.read_into(name, out)
            return
        for number, piece in enumerate(out.view(part.n_stacked, -1)):
            self._file.read_range_into(part.whole, part.start + number * part.stride, piece)

    def mapped(self, name: str) -> torch.Tensor | None:
        """The bytes in the mapped file; None for a stack's part, which is not in one piece."""
        part = self._parts.get(name)
        if part is None:
            return self._file.mapped(name)
        if part.n_stacked > 1:
            return None
        return self._file.mapped(part.whole)[part.start : part.start + part.info.n_bytes]

    def will_need(self, name: str) -> None:
        """As `WeightSource.will_need`, of the whole that a part lies in."""
        part = self._parts.get(name)
        self._file.will_need(name if part is None else part.whole)

    def digest(self) -> str:
        """The file's."""
        return self._file.digest()
