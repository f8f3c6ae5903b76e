"""Products straight from stored bytes on a GPU: every type and number of rows, both layouts, experts, recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import torch
import torch.nn.functional as F

from executor import peak_memory
from executor.policies.base import PolicyOptions
from executor.quants import QUANTS, product_choice, products
from executor.quants.relaid import RELAID, quant_of, relay
from executor.quants.stored import Stored
from executor.triton_support import has_triton
from tests.executor.engine_runs import open_session, run_pass
from tests.executor.quants.direct_cases import INTEGER_TYPES, LARGEST_ERROR, error, matrix, product
from tests.gguf_models import model_path

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
    pytest.mark.skipif(not has_triton(), reason="no Triton, or no C compiler"),
]
CUDA = torch.device("cuda")
_Result = TypeVar("_Result")


class Always:
    """A `ProductChoices` that has chosen."""

    def __init__(self, way: product_choice.Way) -> None:
        self.chosen, self.used = way, set[str]()

    def way(self, key: str, direct: Callable[[], object], widened: Callable[[], object]) -> product_choice.Way:
        self.used.add(key)
        return self.chosen

    def run(self, key: str, direct: Callable[[], _Result], widened: Callable[[], _Result]) -> _Result:
        return direct() if self.way(key, direct, widened) == "direct" else widened()


@pytest.fixture
def direct_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Always]:
    always = Always("direct")
    monkeypatch.setattr(products, "choices_for", lambda device: always)
    yield always
    assert always.used


def activations(n: int, k: int) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(n)).bfloat16()


def refuse() -> tuple[torch.Tensor, ...]:
    raise AssertionError("widened")


def relaid(raw: torch.Tensor, layout: str) -> Stored:
    raw = raw.to(CUDA)
    relay(raw.view(-1), layout)
    return Stored(raw, layout)


@pytest.mark.usefixtures("direct_only")
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("quant", INTEGER_TYPES)
def test_every_type_and_number_of_rows(quant: str, n: int) -> None:
    k = 12 * QUANTS[quant].block_size
    raws, x = [matrix(quant, n_rows, k, seed=n_rows) for n_rows in (77, 5)], activations(n, k)
    got = products.linear(x.to(CUDA), [Stored(raw.to(CUDA), quant) for raw in raws], refuse)
    for out, raw in zip(got, raws, strict=True):
        wanted = product(x, raw, quant)
        rounded = wanted.bfloat16().double()  # as the result is
        assert (out.cpu().double() - wanted).norm() <= LARGEST_ERROR * wanted.norm() + (rounded - wanted).norm()


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("layout", RELAID)
def test_both_layouts_give_the_same_bits(layout: str, n: int) -> None:
    from executor.quants import direct
    from executor.quants.direct_rows import split

    raw, x = matrix(quant_of(layout), 500, 2048, seed=1), split(activations(n, 2048).to(CUDA))
    one, other = Stored(raw.to(CUDA), quant_of(layout)), relaid(raw, layout)
    plain, aligned = (direct.dense([stored], x, torch.float32)[0] for stored in (one, other))
    assert torch.equal(plain, aligned)
    assert error(plain, product(activations(n, 2048), raw, quant_of(layout))) < LARGEST_ERROR


@pytest.mark.usefixtures("direct_only")
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("quant", INTEGER_TYPES)
def test_chosen_experts(quant: str, n: int) -> None:
    n_ff, hidden, n_experts = 512, 768, 6
    stacks = [
        matrix(quant, n_experts, *shape, seed=i) for i, shape in enumerate([(n_ff, hidden)] * 2 + [(hidden, n_ff)])
    ]
    ids = torch.stack([torch.randperm(n_experts, generator=torch.Generator().manual_seed(i))[:4] for i in range(n)])
    weights, x = torch.rand(n, 4, generator=torch.Generator().manual_seed(n)), activations(n, hidden)
    place_of = torch.tensor([3, 2, 5, 0, 1, 4], dtype=torch.int32)
    gate, up, down = (Stored(stack.to(CUDA), quant) for stack in stacks)
    there = place_of.to(CUDA)
    stored = products.StoredExperts(gate, up, down, there, there, there)
    got = products.experts(x.to(CUDA), ids.to(CUDA), weights.to(CUDA), stored, "silu", lambda: refuse()[0])
    for token in range(n):
        row, wanted = x[token : token + 1], torch.zeros(1, hidden, dtype=torch.float64)
        for expert, weight in zip(ids[token], weights[token], strict=True):
            of_gate, of_up, of_down = (stack[int(place_of[expert])] for stack in stacks)
            inner = F.silu(product(row, of_gate, quant)) * product(row, of_up, quant)
            wanted += weight.double() * product(inner, of_down, quant)
        rounded = wanted.bfloat16().double()
        assert (got[token].cpu().double() - wanted).norm() <= LARGEST_ERROR * wanted.norm() + (rounded - wanted).norm()


@pytest.mark.usefixtures("direct_only")
def test_a_recording_gives_the_same_bits_and_nothing_waits() -> None:
    gate, up, down = (Stored(matrix("Q4_0", *s, seed=1).to(CUDA), "Q4_0") for s in ((768, 512), (768, 512), (512, 768)))
    x = activations(1, 512).to(CUDA)

    def ffn() -> torch.Tensor:
        return products.gated(x, gate, up, down, "silu", lambda: refuse()[0])

    plain = ffn()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ffn()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = ffn()
    graph.replay()
    assert torch.equal(recorded, plain)


def test_the_faster_way_is_kept_for_later_processes(tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    raw, x = Stored(matrix("Q4_0", 4096, 4096, seed=2).to(CUDA), "Q4_0"), activations(1, 4096).to(CUDA)
    slow = torch.zeros(1 << 28, device=CUDA)
    peak_memory.begin(CUDA)
    held = peak_memory.peak_bytes(CUDA)

    def widened() -> tuple[torch.Tensor, ...]:
        slow.add_(1)
        return (torch.zeros(1, 4096, device=CUDA),)

    choices = product_choice.ProductChoices(path)
    got = choices.run("a product", lambda: products_of(x, raw), widened)
    assert choices.used == {"a product": "direct"}
    assert peak_memory.peak_bytes(CUDA) - held < 1 << 20  # what measures writes 256 MiB
    assert torch.equal(got[0], products_of(x, raw)[0])
    assert product_choice.ProductChoices(path).run("a product", lambda: ("kept",), refuse) == ("kept",)


def products_of(x: torch.Tensor, stored: Stored) -> tuple[torch.Tensor, ...]:
    from executor.quants import direct
    from executor.quants.direct_rows import split

    return direct.dense([stored], split(x), torch.bfloat16)


@pytest.mark.parametrize("name", ["llama-dense-Q4_0", "qwen3moe-e8k2-Q8_0"])
def test_arms_agree_bit_for_bit_and_with_the_other_way(name: str, direct_only: Always) -> None:
    """Resident weights lie re-laid, streamed ones as the file has them."""
    ways: tuple[product_choice.Way, ...] = ("widened", "direct")
    logits: dict[tuple[str, str], torch.Tensor] = {}
    policy, arms = PolicyOptions(op_offload_min_batch=1), ["off", "on", "full"]
    for way in ways:
        direct_only.chosen = way
        with open_session(
            str(model_path(name)), arms, kind="cuda", overrides="ffn_=CPU", dtype=torch.bfloat16, policy=policy
        ) as session:
            for arm in arms:
                found = run_pass(session, arm, n_ubatch=8)[1]
                assert found is not None
                logits[way, arm] = found
    for arm in ("on", "full"):
        assert torch.equal(logits["direct", "off"], logits["direct", arm])
    wanted = logits["widened", "off"].double()
    assert (logits["direct", "off"].double() - wanted).norm() < 0.05 * wanted.norm()
