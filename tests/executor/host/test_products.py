"""What the host keeps of each weight, and that it computes what the layers compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from executor.devices.cpu import CpuDevice
from executor.host import int4, stored
from executor.host.products import product_kind, run_jobs
from executor.host.steps import (
    HostStepWeights,
    HostWeights,
    host_experts,
    host_ffn,
    host_product_bytes,
    host_products,
    step_matrices,
)
from executor.layers.dense import dense_ffn
from executor.layers.router import Routed
from executor.layers.widened_experts import looped_experts
from executor.model import DenseFfn, Model, MoeFfn
from executor.models.load import load_model
from executor.models.synthetic import QuantPlan, SyntheticSource, model_tensors
from executor.placement.place import place
from executor.reference import KeptWeights, ModelWeights
from executor.weights.transfer_units import TransferUnit, build_transfer_units
from tests.executor.host.errors import relative_error

BF16, F32 = torch.bfloat16, torch.float32
FFN = DenseFfn(1)  # its width is its matrices'
needs_stored = pytest.mark.skipif(not stored.is_available(), reason="needs AVX-512 and a C++ compiler")
needs_int4 = pytest.mark.skipif(not int4.has_int4(), reason="this PyTorch has no packed int4 product on the CPU")


@pytest.fixture(params=[pytest.param("stored", marks=needs_stored), "pytorch's"], autouse=True)
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to multiply, wherever both can be had."""
    if request.param != "stored":
        monkeypatch.setattr(stored, "is_available", lambda: False)
    return str(request.param)


def exact_weights(model: Model, layer: int) -> KeptWeights:
    """A layer's weights in float32, straight from the source."""
    weights, prefix = ModelWeights(model, layer, F32, torch.device("cpu")), f"blk.{layer}."
    names = [name.removeprefix(prefix) for name in model.tensors if name.startswith(prefix)]
    return KeptWeights({name: weights(name) for name in names})


@contextmanager
def units_of(model: Model, overrides: str | None = None) -> Iterator[list[TransferUnit]]:
    device = CpuDevice(n_threads=1)
    try:
        yield build_transfer_units(model, place(model.tensors, overrides=overrides), device, "none")
    finally:
        device.close()


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "BF16", "F16", "F32"])
@pytest.mark.parametrize("n", [1, 80])  # 80 rows go around the packed product
def test_a_dense_ffn_of_every_type(quant: str, n: int) -> None:
    model = load_model("tiny-dense", quant=quant, layers=1)
    x = torch.randn(n, model.shape.hidden, generator=torch.Generator().manual_seed(n)).to(BF16)
    want = dense_ffn(x.float(), exact_weights(model, 0), FFN, 1e-5) - x.float()
    with units_of(model) as units:
        for dtype, bound in ((BF16, 0.02), (F32, 1e-5)):
            weights = HostWeights(model, dtype, units)
            got = host_ffn(x.to(dtype), weights.products(0, "ffn"), HostStepWeights(weights, 0), FFN, 1e-5)
            assert relative_error(got.float() - x.float(), want) < bound


@pytest.mark.parametrize(
    ("quant", "n"), [(quant, n) for quant in ("Q4_0", "Q8_0", "BF16") for n in (1, 9)] + [("Q4_K", 300)]
)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_experts_of_every_kind(quant: str, n: int, dtype: torch.dtype) -> None:
    model = load_model("tiny-moe", quant=quant, layers=1)
    moe = model.shape.layers[0].ffn
    assert isinstance(moe, MoeFfn)
    routed = routed_rows(n, model.shape.hidden, moe, dtype)
    exact = Routed(routed.h.float(), routed.ids, routed.weights)
    each = looped_experts(exact.h, exact.ids, exact_weights(model, 0), moe, None)
    want = (each * exact.weights.unsqueeze(-1)).sum(1)
    with units_of(model) as units:
        weights = HostWeights(model, dtype, units)
        got = host_experts(routed, weights.products(0, "experts"), moe, HostStepWeights(weights, 0))
    assert relative_error(got, want) < (0.02 if dtype == BF16 else 1e-5)


def routed_rows(n: int, hidden: int, moe: MoeFfn, dtype: torch.dtype) -> Routed:
    random = torch.Generator().manual_seed(n)
    h = torch.randn(n, hidden, generator=random).to(dtype)
    ids = torch.stack([torch.randperm(moe.n_experts, generator=random)[: moe.n_used] for _ in range(n)])
    return Routed(h, ids, torch.rand(n, moe.n_used, generator=random))


@pytest.mark.parametrize("n", [1, 5])
def test_biases_and_the_clamped_activation(n: int) -> None:
    model = with_gpt_oss_experts(load_model("tiny-moe", layers=1))
    moe = model.shape.layers[0].ffn
    assert isinstance(moe, MoeFfn)
    routed, exact = routed_rows(n, model.shape.hidden, moe, BF16), exact_weights(model, 0)
    each = looped_experts(routed.h.float(), routed.ids, exact, moe, exact)
    want = (each * routed.weights.unsqueeze(-1)).sum(1)
    with units_of(model) as units:
        weights = HostWeights(model, BF16, units)
        got = host_experts(routed, weights.products(0, "experts"), moe, HostStepWeights(weights, 0))
    assert relative_error(got, want) < 0.02


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("n", [1, 9])
def test_experts_that_no_row_chose_add_nothing(n: int, dtype: torch.dtype) -> None:
    model = load_model("tiny-moe", layers=1)
    moe = model.shape.layers[0].ffn
    assert isinstance(moe, MoeFfn)
    routed = routed_rows(n, model.shape.hidden, moe, dtype)
    only = torch.zeros(moe.n_experts, dtype=torch.bool)
    with units_of(model) as units:
        weights = HostWeights(model, dtype, units)
        got = host_experts(routed, weights.products(0, "experts"), moe, HostStepWeights(weights, 0), only)
    assert got.shape == routed.h.shape
    assert got.dtype == dtype
    assert not got.any()


def with_gpt_oss_experts(model: Model) -> Model:
    layer = model.shape.layers[0]
    assert isinstance(layer.ffn, MoeFfn)
    ffn = replace(layer.ffn, expert_bias=True, activation="oai_swiglu")
    shape = replace(model.shape, layers=(replace(layer, ffn=ffn),))
    tensors = model_tensors(shape, QuantPlan.uniform("Q4_0"))
    return Model(shape, tensors, SyntheticSource(tensors, 0), "preset:tiny-moe")


@needs_int4
def test_which_product_serves_which_type(products: str) -> None:
    kinds: dict[str, str] = {}
    for quant in ("Q4_0", "Q4_1", "Q4_K", "Q8_0", "Q6_K", "MXFP4"):
        model = load_model("tiny-dense", quant=quant, layers=1)
        with units_of(model) as units:
            kinds |= host_products(model, units, BF16)
            assert host_products(model, units, F32) == {quant: "f32"}
    if products == "stored":
        assert set(kinds.values()) == {"stored"}
        return
    assert kinds == dict.fromkeys(("Q4_0", "Q4_1", "Q4_K"), "int4") | dict.fromkeys(("Q8_0", "Q6_K", "MXFP4"), "bf16")


def test_without_the_operation_everything_is_bf16(monkeypatch: pytest.MonkeyPatch, products: str) -> None:
    if products == "stored":
        pytest.skip("the stored product asks for no operation of PyTorch's")
    monkeypatch.setattr(int4, "has_int4", lambda: False)
    model = load_model("tiny-moe", quant="Q4_0", layers=1)
    infos = step_matrices(model, 0, "experts")
    assert {product_kind(info, BF16) for info in infos} == {"bf16"}
    with units_of(model) as units:
        n_weights = sum(torch.Size(info.shape).numel() for info in infos)
        assert host_product_bytes(model, units, BF16) == 2 * n_weights


@pytest.mark.parametrize("quant", ["Q4_0", "Q8_0", "BF16"])
def test_counted_is_what_is_held(quant: str, products: str) -> None:
    model = load_model("tiny-moe", quant=quant, layers=2)
    with units_of(model) as units:
        weights = HostWeights(model, BF16, units)
        weights.prepare(units)
        held = 0
        for layer in range(2):
            step = weights.products(layer, "experts")
            tensors = [t for product in (*step.inputs, step.down) for t in _tensors(product)]
            held += sum(t.nbytes for t in tensors)
        counted = host_product_bytes(model, units, BF16)
    if products == "stored" or quant == "BF16":
        assert counted == 0, "used where it lies"
        return
    assert counted == held


def _tensors(product: object) -> list[torch.Tensor]:
    places = [getattr(product, name, ()) for name in ("_places", "_packed", "_scales")]
    return [tensor for group in places for tensor in group]


def test_a_step_is_computed_whole_where_one_matrix_is_on_the_host() -> None:
    model = load_model("tiny-dense", quant="Q4_0", layers=1)
    x = torch.randn(2, model.shape.hidden, generator=torch.Generator().manual_seed(1))
    with units_of(model, "ffn_up=CPU") as units:
        weights = HostWeights(model, F32, units)
        weights.prepare(units)
        got = host_ffn(x, weights.products(0, "ffn"), HostStepWeights(weights, 0), FFN, 1e-5)
    assert relative_error(got, dense_ffn(x, exact_weights(model, 0), FFN, 1e-5)) < 1e-5


def test_preparation_leaves_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        done: list[int] = []
        run_jobs([lambda: done.append(torch.get_num_threads()) for _ in range(20)])
        assert (set(done), len(done), torch.get_num_threads()) == ({1}, 20, 3)
        with pytest.raises(ValueError, match="broken"):
            run_jobs([_broken] * 4)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def _broken() -> None:
    raise ValueError("broken")
