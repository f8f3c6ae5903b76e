"""One token's fused kernels beside the layers' own operations, for the interpreter and for a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from executor.layers import token_arg_max, token_attention, token_norm, token_router
from executor.layers.attention_kernels import OneToken, attend_one, position_on_device
from executor.layers.one_token import HeadNorms
from executor.layers.rope import rotate
from executor.layers.router import route, route_given, used_flags
from executor.layers.state import AttentionState, new_state
from executor.model import AttentionShape, LayerShape, MoeFfn, RopeShape
from tests.executor.layers.layer_weights import RandomWeights

ROPE = RopeShape(10000.0, 32)
ATTENTION = {
    "plain": AttentionShape(4, 2, 32, ROPE),
    "norms": AttentionShape(6, 2, 32, ROPE, qk_norm=True),
    "one length": AttentionShape(4, 4, 32, ROPE, qk_unit=True),
    "window": AttentionShape(4, 2, 32, ROPE, window=24),
    "sinks": AttentionShape(4, 1, 32, ROPE, window=40, sinks=True),
    "pairs side by side, scale": AttentionShape(4, 2, 32, RopeShape(10000.0, 32, interleaved=True), scale=0.1),
    "half turns, gate": AttentionShape(4, 2, 32, RopeShape(10000.0, 16), qk_norm=True, output_gate=True),
    "no positions": AttentionShape(4, 2, 32, RopeShape(10000.0, 0)),
    "twenty queries a key": AttentionShape(20, 1, 32, ROPE),
}
ROUTERS = {
    "softmax": MoeFfn(12, 3, 16),
    "softmax, as it is": MoeFfn(16, 4, 16, normalise=False, scale=2.5),
    "sigmoid": MoeFfn(24, 4, 16, scoring="sigmoid", score_bias=True, scale=0.5),
    "softmax of the chosen": MoeFfn(12, 3, 16, scoring="softmax_topk", normalise=False),
    "sigmoid of the chosen": MoeFfn(12, 1, 16, scoring="sigmoid_topk", normalise=False),
    "all of them": MoeFfn(4, 4, 16),
}


def assert_close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal but for rounding in a dtype."""
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=tolerance)


def check_norm(n: int, device: torch.device, dtype: torch.dtype) -> None:
    """Against the norm in float64."""
    generator = torch.Generator().manual_seed(n)
    x, weight = (torch.randn(shape, generator=generator).to(device, dtype) for shape in ((1, n), (n,)))
    want = F.rms_norm(x.double(), (n,), weight.double(), 1e-5)
    assert_close(token_norm.rms_norm(x, weight, 1e-5), want, dtype)


def check_arg_max(n: int, device: torch.device) -> None:
    """Twice in a row; of equal numbers the first."""
    row = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(device)
    out = torch.full((1,), -1, device=device)
    for place in (n - 1, n // 2, 0):
        row[place:] = row.max() + 1
        token_arg_max.arg_max(row, out)
        assert out.tolist() == [place]


def check_arg_max_of_odd_numbers(device: torch.device) -> None:
    """Infinities, and NaN, which is the largest as in PyTorch: the place is always one of the row's."""
    nan, infinite = float("nan"), float("inf")
    for n in (5, 4099):
        nothing = torch.full((n,), -infinite)
        cases = [nothing, torch.full((n,), nan), nothing.clone(), torch.arange(n).float(), torch.arange(n).float()]
        cases[2][n - 1] = nan
        cases[3][2] = nan
        cases[4][n - 2] = infinite
        for row in cases:
            out = torch.full((1,), -1, device=device)
            token_arg_max.arg_max(row.to(device), out)
            assert out.tolist() == [int(row.argmax())]


def check_router_of_odd_numbers(device: torch.device, dtype: torch.dtype) -> None:
    """Where all logits are NaN the chosen are experts all the same, and NaN shows in what they count."""
    for name in ("softmax", "sigmoid of the chosen"):
        moe, x = ROUTERS[name], torch.full((1, 40), float("nan")).to(device, dtype)
        norm, router = (torch.ones(shape).to(device, dtype) for shape in ((40,), (moe.n_experts, 40)))
        ids = torch.full((1, moe.n_used), -1, device=device)
        counts = torch.zeros(1, moe.n_used, device=device)
        flags = torch.zeros(moe.n_experts, dtype=torch.uint8, device=device)
        into, begin = (torch.empty_like(x), ids, counts, flags), torch.zeros(1, dtype=torch.int64, device=device)
        token_router.route(x, norm, router, (None, None), moe, 1e-5, into, None, begin)
        assert ((ids >= 0) & (ids < moe.n_experts)).all(), name
        assert counts.isnan().all(), name


def check_router(moe: MoeFfn, device: torch.device, dtype: torch.dtype, hidden: int = 40) -> None:
    """Against `route` and `route_given` in float32, for a token a trial."""
    weights = RandomWeights(LayerShape(ATTENTION["plain"], moe), hidden, dtype)
    w, exact = weights.to(device), RandomWeights(LayerShape(ATTENTION["plain"], moe), hidden, dtype)
    exact.tensors = {name: tensor.to(device).float() for name, tensor in weights.tensors.items()}
    generator = torch.Generator().manual_seed(1)
    given = torch.stack([torch.randperm(moe.n_experts, generator=generator)[: moe.n_used] for _ in range(5)]).to(device)
    biases = w.maybe("ffn_gate_inp.bias"), w("exp_probs_b.bias") if moe.score_bias else None
    for trial in range(8):
        x = torch.randn(1, hidden, generator=generator).to(device, dtype)
        begin = torch.tensor([trial % 5], device=device)
        for rows in (None, given):
            h = torch.empty_like(x)
            ids = torch.full((1, moe.n_used), -1, device=device)
            counts = torch.full((1, moe.n_used), -1.0, device=device)
            flags = torch.full((moe.n_experts,), 7, dtype=torch.uint8, device=device)
            norm, router = w("ffn_norm.weight"), w("ffn_gate_inp.weight")
            into = (h, ids, counts, flags)
            logits = token_router.route(x, norm, router, biases, moe, 1e-5, into, rows, begin)
            assert_close(h, F.rms_norm(x, (hidden,), norm, 1e-5), dtype)
            torch.testing.assert_close(logits, (h.float() @ router.float().T)[0], atol=1e-5, rtol=1e-4)
            if rows is None:
                want = route(x.float(), exact, moe, 1e-5)
            else:
                want = route_given(x.float(), exact, moe, rows[trial % 5 : trial % 5 + 1], 1e-5)
            assert torch.equal(ids, want.ids) or dtype != torch.float32
            if torch.equal(ids, want.ids):  # in sixteen bits two experts may stand so close that either is right
                assert_close(counts, want.weights, dtype)
            assert torch.equal(flags, used_flags(ids, moe.n_experts))


def check_attention(
    shape: AttentionShape, n_rows: int, positions: Sequence[int], device: torch.device, dtype: torch.dtype
) -> None:
    """Against norm, rotation, cache and attention one after the other, in float32."""
    for position in positions:
        one = _Attention(shape, n_rows, position, device, dtype)
        want, key = one.steps()
        assert_close(one.fused(), want, dtype)
        assert_close(one.state.keys[position], key, dtype)
        assert torch.equal(one.state.values[position], one.v[0])


def attended(
    shape: AttentionShape, n_rows: int, position: int, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """What the fused kernel gives, (1, heads, head_dim), for seeded numbers."""
    return _Attention(shape, n_rows, position, device, dtype).fused()


class _Attention:
    """Seeded queries, key and value of a token, and a full cache."""

    def __init__(
        self, shape: AttentionShape, n_rows: int, position: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        generator = torch.Generator().manual_seed(n_rows + position)

        def noise(*dims: int) -> torch.Tensor:
            return torch.randn(dims, generator=generator).to(device, dtype)

        self.shape, state = shape, new_state(shape, n_rows, device, dtype)
        assert isinstance(state, AttentionState)
        self.state = state
        state.keys.copy_(noise(*state.keys.shape))
        state.values.copy_(noise(*state.values.shape))
        norms = (noise(shape.head_dim), noise(shape.head_dim)) if shape.qk_norm else None
        self.norms: HeadNorms | None = (None, None) if shape.qk_unit else norms
        self.sinks = noise(shape.n_heads) if shape.sinks else None
        self.position, self.at = position, OneToken(position_on_device(device), n_rows)
        self.at.position.set(position)
        q = noise(1, shape.n_heads, shape.head_dim * (2 if shape.output_gate else 1))
        self.q = q[..., : shape.head_dim]  # beside each head's gate, where there is one
        self.k, self.v = (noise(1, shape.n_kv_heads, shape.head_dim) for _ in range(2))

    def fused(self) -> torch.Tensor:
        """Outputs (1, heads, head_dim); key and value join the cache."""
        out: torch.Tensor = token_attention.attend(
            self.q, self.k, self.v, self.norms, self.state.rope, (self.state.keys, self.state.values), self.at,
            window=self.shape.window, sinks=self.sinks, scale=self.shape.scale, eps=1e-5,
        )  # fmt: skip
        return out

    def steps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs, and the key (kv_heads, head_dim) that joins the cache, in float32; the cache stays as it is."""
        exact = new_state(self.shape, self.at.n_rows, self.q.device, torch.float32)
        assert isinstance(exact, AttentionState)
        exact.keys.copy_(self.state.keys)
        exact.values.copy_(self.state.values)
        q, k, v = (t.float() for t in (self.q, self.k, self.v))
        if self.norms is not None:
            q, k = (_normed(rows, weight) for rows, weight in zip((q, k), self.norms, strict=True))
        keys, values = exact.append_one(rotate(k, exact.rope, self.position), v, self.at)
        q = rotate(q, exact.rope, self.position)
        out = attend_one(q, keys, values, self.at, self.shape.window, self.sinks, self.shape.scale)
        return out, exact.keys[self.position]


def _normed(heads: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    return F.rms_norm(heads, heads.shape[-1:], None if weight is None else weight.float(), 1e-5)
