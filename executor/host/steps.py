"""A dense FFN and a layer's experts computed on the host, from the bytes that copies start from.

Each weight's product is made once, when the session opens or when a step first asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch

from executor.host.products import (
    PrepareJob,
    Product,
    ProductKind,
    can_stack,
    make_product,
    product_bytes,
    product_kind,
    run_jobs,
)
from executor.host.stored import MOST_ROWS as MOST_STORED_ROWS
from executor.host.stored import StoredFfn, StoredMatrix, StoredTensor
from executor.layers.choice_factors import choice_factors, summed, times
from executor.layers.dense import MOST_ROWS, activate, closed_ffn, completed, ffn_norm, with_residual
from executor.layers.router import Routed
from executor.layers.widened_experts import DOWN, GATE, UP, bias_name
from executor.model import DenseFfn, Model, MoeFfn, TensorInfo
from executor.quants.dispatch import in_dtype, rows_view
from executor.quants.stored import Stored
from executor.weights.transfer_units import StepKind, TensorLayout, TransferUnit, expert_view

_MATRICES: Final[dict[StepKind, tuple[str, str, str]]] = {
    "ffn": ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"),
    "experts": ("ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"),
}
Groups = list[tuple[int, int, int]]
"""(expert, from, to): the rows that each used expert multiplies."""


@dataclass(frozen=True, slots=True)
class StepProducts:
    """The products of one FFN or of one layer's experts. `inputs`: gate and up stacked, or each alone.

    `stored` does all of them at once where rows are few; None where this machine cannot.
    """

    inputs: tuple[Product, ...]
    down: Product
    stored: StoredFfn | None = None

    def for_few_rows(self, n_rows: float) -> StoredFfn | None:
        """What multiplies `n_rows` a matrix at once; None where the products one by one do."""
        return self.stored if n_rows <= MOST_STORED_ROWS else None

    def gate_up(self, rows: torch.Tensor, place: int) -> torch.Tensor:
        """rows (n, hidden) to gate and up side by side, (n, 2 n_ff)."""
        found = [product(rows, place) for product in self.inputs]
        return found[0] if len(found) == 1 else torch.cat(found, dim=-1)


class HostWeights:
    """Products are made by `prepare`, or when a step first asks for one."""

    def __init__(self, model: Model, dtype: torch.dtype, units: Sequence[TransferUnit]) -> None:
        self._model, self.dtype = model, dtype
        self._stored = {part.info.name: (unit, part) for unit in units for part in unit.parts}
        self._products: dict[tuple[int, StepKind], StepProducts] = {}
        self._kept: dict[str, torch.Tensor] = {}

    def prepare(self, units: Iterable[TransferUnit]) -> None:
        """Make the products of every step that reads one of `units`, on all cores."""
        jobs: list[PrepareJob] = []
        for unit in units:
            if unit.what in _MATRICES:
                self._make(unit.layer, unit.what, jobs)
        run_jobs(jobs)

    def products(self, layer: int, what: StepKind) -> StepProducts:
        """Those of one step."""
        if (layer, what) not in self._products:
            jobs: list[PrepareJob] = []
            self._make(layer, what, jobs)
            run_jobs(jobs)
        return self._products[layer, what]

    def get(self, name: str) -> torch.Tensor:
        """A vector (norm, bias) in the dtype that is computed in."""
        if name not in self._kept:
            info = self._model.tensors[name]
            self._kept[name] = in_dtype(Stored(rows_view(self._read(info), info), info.quant), info, self.dtype)
        return self._kept[name]

    def __contains__(self, name: str) -> bool:
        return name in self._model.tensors

    def _make(self, layer: int, what: StepKind, jobs: list[PrepareJob]) -> None:
        infos = step_matrices(self._model, layer, what)
        gate, up, down = (self._raw(info) for info in infos)
        stacks = [[gate, up]] if can_stack(gate.info, up.info, self.dtype) else [[gate], [up]]
        inputs = tuple(make_product(stack, self.dtype, jobs) for stack in stacks)
        is_stored = all(product_kind(info, self.dtype) == "stored" for info in infos)
        stored = self._stored_ffn(layer, gate, up, down) if is_stored else None
        self._products[layer, what] = StepProducts(inputs, make_product([down], self.dtype, jobs), stored)

    def _stored_ffn(self, layer: int, gate: StoredTensor, up: StoredTensor, down: StoredTensor) -> StoredFfn:
        ffn = self._model.shape.layers[layer].ffn
        is_moe = isinstance(ffn, MoeFfn)
        parts = [self._projection(part, bias_first=not is_moe and part is not down) for part in (gate, up, down)]
        if isinstance(ffn, DenseFfn):
            return StoredFfn(parts, ffn.activation)
        return StoredFfn(parts, ffn.activation, n_used=ffn.n_used, weighs_input=ffn.weighs_input)

    def _projection(self, part: StoredTensor, *, bias_first: bool) -> StoredMatrix:
        """A matrix with its bias and scale; `bias_first`: the scale counts for the bias too, as in a dense FFN."""
        name = part.info.name.removesuffix("weight")
        bias, scale = (self.get(name + what).float() if name + what in self else None for what in ("bias", "scale"))
        if bias is not None and scale is not None and bias_first:
            bias = bias * scale
        return StoredMatrix(part, bias, scale)

    def _raw(self, info: TensorInfo) -> StoredTensor:
        stored = self._stored.get(info.name)
        if stored is not None:
            return StoredTensor(info, _in_segment(*stored))
        return StoredTensor(
            info, rows_view(self._read(info), info).view(-1, info.shape[-2], info.n_bytes // _n_rows(info))
        )

    def _read(self, info: TensorInfo) -> torch.Tensor:
        raw = self._model.source.mapped(info.name)
        if raw is None:
            raw = torch.empty(info.n_bytes, dtype=torch.uint8)
            self._model.source.read_into(info.name, raw)
        return raw


class HostStepWeights:
    """`Weights` for the vectors of one step on the host."""

    def __init__(self, weights: HostWeights, layer: int) -> None:
        self._weights, self._prefix = weights, f"blk.{layer}."

    @property
    def dtype(self) -> torch.dtype:
        """What the host computes in."""
        return self._weights.dtype

    def __call__(self, short_name: str) -> torch.Tensor:
        return self._weights.get(self._prefix + short_name)

    def maybe(self, short_name: str) -> torch.Tensor | None:
        return self(short_name) if self._prefix + short_name in self._weights else None

    def rows(self, short_name: str, ids: torch.Tensor) -> torch.Tensor:
        return self(short_name)[ids]


def host_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the host computes in where the device computes in `dtype`: CPUs have no arithmetic for float16."""
    return torch.float32 if dtype == torch.float16 else dtype


def host_products(model: Model, units: Iterable[TransferUnit], dtype: torch.dtype) -> dict[str, ProductKind]:
    """How each quant type of the steps that read `units` is multiplied on the host."""
    matrices = _all_matrices(model, units)
    return {info.quant: product_kind(info, dtype) for info in sorted(matrices, key=lambda info: info.quant)}


def host_product_bytes(model: Model, units: Iterable[TransferUnit], dtype: torch.dtype) -> int:
    """Host memory that those products take beside the bytes that are streamed."""
    return sum(product_bytes(info, dtype) for info in _all_matrices(model, units))


def step_matrices(model: Model, layer: int, what: StepKind) -> list[TensorInfo]:
    """Gate, up and down of a step, wherever they are placed: a step is computed in one place. A model that is only
    predicted may lack some."""
    names = (f"blk.{layer}.{name}" for name in _MATRICES[what])
    return [model.tensors[name] for name in names if name in model.tensors]


def _all_matrices(model: Model, units: Iterable[TransferUnit]) -> list[TensorInfo]:
    steps = [(unit.layer, unit.what) for unit in units if unit.what in _MATRICES]
    return [info for layer, what in steps for info in step_matrices(model, layer, what)]


def _in_segment(unit: TransferUnit, part: TensorLayout) -> torch.Tensor:
    """A part's bytes where copies start from, as (places, rows, row_bytes)."""
    segment = next(s for s in unit.segments if s.target_from <= part.offset < s.target_from + max(s.source.numel(), 1))
    there = TensorLayout(part.info, part.offset - segment.target_from, part.stride)
    if unit.n_experts:
        return expert_view(segment.source, there)
    raw = segment.source[there.offset : there.offset + part.info.n_bytes]
    return raw.view(1, part.info.shape[-2], -1)


def _n_rows(info: TensorInfo) -> int:
    return torch.Size(info.shape[:-1]).numel()


def host_ffn(
    x: torch.Tensor, products: StepProducts, weights: HostStepWeights, ffn: DenseFfn, eps: float, scale: float = 1.0
) -> torch.Tensor:
    """x (n, hidden) plus `scale` times what the FFN makes of the normed x."""
    h = ffn_norm(x, weights, eps)
    if (at_once := products.for_few_rows(len(h))) is not None:
        added = at_once(h)
    else:
        pieces = [_gated_ffn(rows, products, weights, ffn) for rows in h.split(MOST_ROWS)]
        added = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return with_residual(x, closed_ffn(added, weights, ffn, eps), scale)


def _gated_ffn(h: torch.Tensor, products: StepProducts, weights: HostStepWeights, ffn: DenseFfn) -> torch.Tensor:
    gate, up = products.gate_up(h, 0).chunk(2, dim=-1)
    inner = activate(completed(gate, weights, "ffn_gate"), completed(up, weights, "ffn_up"), ffn.activation)
    return completed(products.down(inner, 0), weights, "ffn_down")


def host_experts(
    routed: Routed,
    products: StepProducts,
    moe: MoeFfn,
    vectors: HostStepWeights,
    only: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weighted sum (n, hidden) of the chosen experts' outputs. Rows that share an expert go through it together.

    `only` (n_experts,) bool leaves all other experts out of the sum: it is 0 where no row chose one of these, as
    where a planted fault has the host read an earlier choice.
    """
    n, n_used = routed.ids.shape
    if (at_once := products.for_few_rows(n * n_used / moe.n_experts)) is not None:
        return at_once(routed.h, routed.ids, routed.weights, only)
    expert, order, groups = _by_expert(routed.ids, moe.n_experts, only)
    if not groups:
        return torch.zeros_like(routed.h)
    rows = routed.h.expand(n_used, -1) if order is None else routed.h[order // n_used]
    gate, up = _each(products.gate_up, rows, groups).chunk(2, dim=-1)
    factors = choice_factors(routed, moe, vectors)
    gate, up = times(gate, factors.gate, order), times(up, factors.up, order)
    if moe.expert_bias:
        gate, up = gate + vectors(bias_name(GATE))[expert], up + vectors(bias_name(UP))[expert]
    by_expert = _each(products.down, activate(gate, up, moe.activation), groups)
    if moe.expert_bias:
        by_expert = by_expert + vectors(bias_name(DOWN))[expert]
    outputs = by_expert
    if order is not None:
        new = torch.empty if only is None else torch.zeros
        outputs = new((n * n_used, by_expert.shape[-1]), dtype=by_expert.dtype).index_copy_(0, order, by_expert)
    return summed(outputs.view(n, n_used, -1), factors)


class HostExperts(Protocol):
    """`host_experts` of rows that need not be there yet, into memory that is."""

    def __call__(self) -> None:
        """Compute."""

    def begin(self) -> None:
        """Compute on other threads, where there is what can."""

    def end(self) -> None:
        """Wait for that, or compute now."""


def prepare_host_experts(
    out: torch.Tensor,
    routed: Routed,
    products: StepProducts,
    moe: MoeFfn,
    vectors: HostStepWeights,
    only: torch.Tensor | None = None,
) -> HostExperts:
    """`host_experts` into `out` (n, hidden), in the dtype of the host's weights whatever that of the rows is."""
    n, n_used = routed.ids.shape
    at_once = products.for_few_rows(n * n_used / moe.n_experts)
    if at_once is not None and routed.h.dtype == vectors.dtype:
        return at_once.prepared(out, routed.h, routed.ids, routed.weights, only)
    return _ExpertsLater(out, routed, products, moe, vectors, only)


@dataclass(frozen=True, slots=True)
class _ExpertsLater:
    out: torch.Tensor
    routed: Routed
    products: StepProducts
    moe: MoeFfn
    vectors: HostStepWeights
    only: torch.Tensor | None

    def __call__(self) -> None:
        routed = replace(self.routed, h=self.routed.h.to(self.vectors.dtype))
        self.out.copy_(host_experts(routed, self.products, self.moe, self.vectors, self.only))

    def begin(self) -> None:
        """No other threads can."""

    def end(self) -> None:
        self()


def _by_expert(
    ids: torch.Tensor, n_experts: int, only: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None, Groups]:
    """The (token, choice) pairs ordered by expert: each one's expert, its place before, and the experts' rows.

    One token's choices need no order, unless some are left out.
    """
    flat = ids.flatten()
    if ids.shape[0] == 1 and only is None:
        return flat, None, [(expert, i, i + 1) for i, expert in enumerate(flat.tolist())]
    expert, order = flat.sort(stable=True)
    if only is not None:
        kept = only[expert]
        expert, order = expert[kept], order[kept]
    counts = torch.bincount(expert, minlength=n_experts).tolist()
    groups, start = [], 0
    for number, count in enumerate(counts):
        if count:
            groups.append((number, start, start + count))
        start += count
    return expert, order, groups


def _each(product: Product, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
    return torch.cat([product(rows[start:end], expert) for expert, start, end in groups])
