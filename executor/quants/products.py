"""Products of up to 16 rows with stored weights, for decode, short ubatches and a prompt's logits: what layers call.

On CUDA in bfloat16 or float16, where Triton can compile, each function takes the faster of two ways, measured once
(`product_choice`): straight from the stored bytes (`direct`), or the caller's own, which widens the weights first.
Elsewhere there is only the caller's. Neither way waits for the device once it is chosen.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from executor.model import Activation
from executor.quants.product_choice import choices_for
from executor.quants.relaid import quant_of
from executor.quants.stored import Stored
from executor.triton_support import has_triton

if TYPE_CHECKING:
    from executor.quants.direct import Onto

MOST_ROWS = 16
"""More are a matter for tensor cores."""


def read_stored(device: torch.device) -> bool:
    """Whether there are kernels for a device that multiply stored bytes."""
    return device.type == "cuda" and has_triton()


def serves(x: torch.Tensor) -> bool:
    """Whether rows x (n, in) may be multiplied straight from stored bytes; who computes in float32 wants all of it."""
    return are_few(len(x), x.dtype) and read_stored(x.device)


def reads_stored(quant: str, n_rows: int, dtype: torch.dtype) -> bool:
    """Whether a GPU may multiply `n_rows` rows of a dtype by bytes of a quant type, so that nothing need be widened."""
    return are_few(n_rows, dtype) and has_triton() and quant in _kernels("direct_words").WORDS


def are_few(n_rows: int, dtype: torch.dtype) -> bool:
    """Whether so many rows of a dtype are multiplied straight from stored bytes, where there are kernels for it."""
    return 1 <= n_rows <= MOST_ROWS and dtype in (torch.bfloat16, torch.float16)


def linear(
    x: torch.Tensor, matrices: Sequence[Stored], widened: Callable[[], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...]:
    """x (n, in) by the transpose of each of `matrices`, (n, out) in x's dtype; `widened` does the same."""
    if not (serves(x) and _are_readable(matrices)):
        return widened()

    def direct() -> tuple[torch.Tensor, ...]:
        rows = _kernels("direct_rows").split(x)
        found: dict[int, torch.Tensor] = {}
        for together in _alike(matrices):
            outs = _kernels("direct").dense([matrices[i] for i in together], rows, x.dtype)
            found |= zip(together, outs, strict=True)
        return tuple(found[i] for i in range(len(matrices)))

    return choices_for(x.device).run(_key("linear", x, matrices), direct, widened)


def add_linear(
    onto: torch.Tensor, scale: float, x: torch.Tensor, matrix: Stored, widened: Callable[[], torch.Tensor]
) -> None:
    """`linear` by one matrix, times `scale` and added to rows `onto` (n, out) in place."""

    def direct(target: Onto | None) -> torch.Tensor:
        out: torch.Tensor
        (out,) = _kernels("direct").dense([matrix], _kernels("direct_rows").split(x), x.dtype, onto=target)
        return out

    _add(onto, scale, x, "linear", (matrix,), direct, widened)


def gated(
    x: torch.Tensor,
    gate: Stored,
    up: Stored,
    down: Stored,
    activation: Activation,
    widened: Callable[[], torch.Tensor],
) -> torch.Tensor:
    """down(activation(gate(x)) * up(x)), (n, hidden) in x's dtype, of rows x (n, hidden); `widened` does the same."""
    matrices = (gate, up, down)
    if not (serves(x) and _are_readable(matrices) and gate.layout == up.layout):
        return widened()
    direct = partial(_gated_directly, x, gate, up, down, activation, None)
    return choices_for(x.device).run(_key("ffn", x, matrices), direct, widened)


def add_gated(
    onto: torch.Tensor,
    scale: float,
    x: torch.Tensor,
    gate: Stored,
    up: Stored,
    down: Stored,
    activation: Activation,
    widened: Callable[[], torch.Tensor],
) -> None:
    """`gated`, times `scale` and added to rows `onto` (n, hidden) in place."""
    direct = partial(_gated_directly, x, gate, up, down, activation)
    _add(onto, scale, x, "ffn", (gate, up, down), direct, widened)


def _gated_directly(
    x: torch.Tensor, gate: Stored, up: Stored, down: Stored, activation: Activation, onto: Onto | None
) -> torch.Tensor:
    direct, rows = _kernels("direct"), _kernels("direct_rows")
    both = direct.dense([gate, up], rows.split(x), torch.float32)
    out: torch.Tensor
    (out,) = direct.dense([down], rows.split_gated(*both, activation), x.dtype, onto=onto)
    return out


@dataclass(frozen=True, slots=True)
class StoredExperts:
    """A layer's stacks (places, n_rows, row_bytes), and where in each an expert lies (None: at its own number)."""

    gate: Stored
    up: Stored
    down: Stored
    gate_place_of: torch.Tensor | None
    up_place_of: torch.Tensor | None
    down_place_of: torch.Tensor | None


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    stacks: StoredExperts,
    activation: Activation,
    widened: Callable[[], torch.Tensor],
) -> torch.Tensor:
    """The experts `ids` (n, n_used) of rows x (n, hidden), summed by weights (n, n_used): (n, hidden) in x's dtype."""
    gate, up, down = stacks.gate, stacks.up, stacks.down
    are_alike = gate.layout == up.layout and stacks.gate_place_of is stacks.up_place_of
    if not (serves(x) and are_alike and _are_readable((gate, up, down))):
        return widened()

    direct = partial(_experts_directly, x, ids, weights, stacks, activation, None)
    key = _key(f"{ids.shape[1]} experts", x, (gate, up, down))
    return choices_for(x.device).run(key, direct, widened)


def add_experts(
    onto: torch.Tensor,
    scale: float,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    stacks: StoredExperts,
    activation: Activation,
    widened: Callable[[], torch.Tensor],
) -> None:
    """`experts`, times `scale` and added to rows `onto` (n, hidden) in place."""
    gate, up, down = stacks.gate, stacks.up, stacks.down
    direct = partial(_experts_directly, x, ids, weights, stacks, activation)
    are_alike = stacks.gate_place_of is stacks.up_place_of
    _add(onto, scale, x, f"{ids.shape[1]} experts", (gate, up, down), direct, widened, are_alike=are_alike)


def _experts_directly(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    stacks: StoredExperts,
    activation: Activation,
    onto: Onto | None,
) -> torch.Tensor:
    direct, rows = _kernels("direct"), _kernels("direct_rows")
    both = direct.gate_and_up(stacks.gate, stacks.up, ids, stacks.gate_place_of, rows.split(x))
    inner = rows.split_gated(both[:, 0], both[:, 1], activation)
    places = stacks.down_place_of
    out: torch.Tensor = direct.weighted_down(stacks.down, ids, places, weights, inner, x.dtype, onto=onto)
    return out


def _add(
    onto: torch.Tensor,
    scale: float,
    x: torch.Tensor,
    what: str,
    matrices: tuple[Stored, ...],
    direct: Callable[[Onto | None], torch.Tensor],
    widened: Callable[[], torch.Tensor],
    *,
    are_alike: bool = True,
) -> None:
    """The faster way, chosen as without rows to add to: measuring must leave them as they are."""
    fits = onto.is_contiguous() and onto.dtype == x.dtype
    are_alike = are_alike and (len(matrices) == 1 or matrices[0].layout == matrices[1].layout)
    if fits and serves(x) and are_alike and _are_readable(matrices):
        way = choices_for(x.device).way(_key(what, x, matrices), partial(direct, None), widened)
        if way == "direct":
            direct(_kernels("direct").Onto(onto, scale))
            return
    onto.add_(widened(), alpha=scale)


def _are_readable(matrices: Sequence[Stored]) -> bool:
    readable = _kernels("direct").readable
    return all(readable(matrix) for matrix in matrices)


def _alike(matrices: Sequence[Stored]) -> list[list[int]]:
    """Their indices, by layout, as many in each group as one launch takes."""
    by_layout: dict[str, list[int]] = {}
    for i, matrix in enumerate(matrices):
        by_layout.setdefault(matrix.layout, []).append(i)
    most = _kernels("direct").MOST_MATRICES
    return [group[start : start + most] for group in by_layout.values() for start in range(0, len(group), most)]


def _key(what: str, x: torch.Tensor, matrices: Sequence[Stored]) -> str:
    """`linear Q4_0 4096+512+512 x 2048, 1 row`: the same wherever the matrices lie and in whichever layout."""
    quants = "/".join(dict.fromkeys(quant_of(matrix.layout) for matrix in matrices))
    outs = "+".join(str(matrix.raw.shape[-2]) for matrix in matrices)
    return f"{what} {quants} {outs} x {x.shape[1]}, {len(x)} row{'s' * (len(x) > 1)}"


@functools.cache
def _kernels(name: str) -> ModuleType:
    """They need Triton."""
    return importlib.import_module(f"executor.quants.{name}")
