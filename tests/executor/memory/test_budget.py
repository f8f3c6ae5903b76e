"""Placement under a VRAM budget: the most resident layers that fit, slots and bank counted."""

from __future__ import annotations

import pytest

from executor.errors import HprofError
from executor.memory.budget import Budget, DeviceShare, fit_to_budget
from executor.model import Model
from executor.models.load import load_model
from executor.placement.place import Placement
from executor.policies import make_policy
from executor.policies.base import PolicyOptions
from executor.units import parse_bytes, spell_bytes


def _fit(model: Model, arm: str, budget: int, working: int = 0) -> Placement:
    policy = make_policy(arm, PolicyOptions(cache_bytes=1 << 20))
    share = DeviceShare(range(len(model.shape.layers)), model.n_bytes + working)
    return fit_to_budget(model, {arm: policy}, Budget((budget,)), [share])[arm]


def _used(model: Model, arm: str, budget: int, working: int = 0) -> tuple[int, int]:
    """(bytes that the arm takes, layers in host memory) under the placement that was found."""
    policy = make_policy(arm, PolicyOptions(cache_bytes=1 << 20))
    placement = _fit(model, arm, budget, working)
    host = [model.tensors[name] for name in placement.host]
    largest = max((sum(t.n_bytes for t in host if t.layer == layer) for layer in placement.host_layers()), default=0)
    resident = model.n_bytes - sum(t.n_bytes for t in host)
    return resident + policy.n_slots * largest + policy.cache_bytes + working, len(placement.host_layers())


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("arm", ["off", "on", "cache"])
def test_fits_and_one_layer_more_would_not(spec: str, arm: str) -> None:
    model = load_model(spec)
    budget = int(model.n_bytes * 0.7)
    used, n_host = _used(model, arm, budget, working=1000)
    assert used <= budget
    layer_bytes = sum(t.n_bytes for t in model.tensors.values() if t.layer == 0 and "ffn" in t.name)
    assert 0 < n_host < len(model.shape.layers)
    assert used + layer_bytes > budget


def test_the_second_slot_costs_a_resident_layer() -> None:
    model = load_model("tiny-moe")
    budget = int(model.n_bytes * 0.7)
    assert _used(model, "on", budget)[1] == _used(model, "off", budget)[1] + 1


def test_everything_resident_when_it_fits() -> None:
    model = load_model("tiny-moe")
    placement = _fit(model, "on", model.n_bytes)
    assert not placement.host
    assert placement.spelled.endswith("(all of it fits)")


def test_too_small_a_budget_says_what_would_do_for_all_arms() -> None:
    model = load_model("tiny-moe")
    policies = {arm: make_policy(arm, PolicyOptions()) for arm in ("off", "on")}
    shares = [DeviceShare(range(len(model.shape.layers)), model.n_bytes)]
    with pytest.raises(HprofError, match=r"--vram-budget 1kB is too small for arm 'on' .* needs \d+MiB") as caught:
        fit_to_budget(model, policies, Budget((1000,)), shares)
    least = int(str(caught.value).split("which needs ")[1].split("MiB")[0])
    assert fit_to_budget(model, policies, Budget((least << 20,)), shares)
    with pytest.raises(HprofError):
        fit_to_budget(model, policies, Budget(((least - 1) << 20,)), shares)


def test_too_small_a_budget_for_one_arm_names_those_that_fit() -> None:
    model = load_model("tiny-moe")
    policies = {arm: make_policy(arm, PolicyOptions()) for arm in ("off", "on")}
    shares = [DeviceShare(range(len(model.shape.layers)), model.n_bytes)]
    layer_bytes = sum(t.n_bytes for t in model.tensors.values() if t.layer == 0 and "_exps" in t.name)
    bare = model.n_bytes - layer_bytes * len(model.shape.layers)
    with pytest.raises(HprofError, match=r"too small for arm 'on' .* or measure what fits, --arms off\."):
        fit_to_budget(model, policies, Budget((bare + layer_bytes,)), shares)


def test_every_device_keeps_within_the_budget() -> None:
    model = load_model("tiny-moe")
    ffn = sum(t.n_bytes for t in model.tensors.values() if t.layer == 0 and "_exps" in t.name)
    shares = [DeviceShare([0, 1, 2, 3], 4 * ffn), DeviceShare([4, 5], 2 * ffn)]
    on = {"on": make_policy("on", PolicyOptions())}
    placement = fit_to_budget(model, on, Budget((3 * ffn,)), shares)["on"]
    assert placement.host_layers() == [0, 1, 2]  # 1 resident and 2 slots; the second device holds all of its own
    assert "first 3+0 layers" in placement.spelled


def test_devices_may_have_a_budget_each() -> None:
    model = load_model("tiny-moe")
    ffn = sum(t.n_bytes for t in model.tensors.values() if t.layer == 0 and "_exps" in t.name)
    shares = [DeviceShare([0, 1, 2], 3 * ffn), DeviceShare([3, 4, 5], 3 * ffn)]
    off = {"off": make_policy("off", PolicyOptions())}
    placement = fit_to_budget(model, off, Budget((3 * ffn, 2 * ffn)), shares)["off"]
    assert placement.host_layers() == [3, 4]  # beside a slot
    with pytest.raises(HprofError, match=r"too small for arm 'off' .* on device 1 even with"):
        fit_to_budget(model, off, Budget((3 * ffn, ffn - 1)), shares)
    with pytest.raises(HprofError, match=r"--vram-budget 1GiB,2GiB,3GiB has 3 figures, and --n-devices is 2"):
        fit_to_budget(model, off, Budget.parse("1GiB,2GiB,3GiB", "--vram-budget"), shares)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24GiB", 24 << 30),
        ("500 MB", 500_000_000),
        ("2G", 2 << 30),
        ("1.5KiB", 1536),
        ("7", 7),
        ("1TiB", 1 << 40),
        ("24gb", 24 * 10**9),
    ],
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert parse_bytes(text, "--vram-budget") == n_bytes


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (24 << 30, "24GiB"),
        (49 << 29, "24.5GiB"),
        (1_556_925_644, "1.45GiB"),
        (24 * 10**9, "24GB"),
        (15 << 20, "15MiB"),
        (1000, "1kB"),
        (1_073_741_825, "1073741825B"),
        (7, "7B"),
    ],
)
def test_sizes_are_spelled_exactly(n_bytes: int, text: str) -> None:
    assert spell_bytes(n_bytes) == text
    assert parse_bytes(text, "--vram-budget") == n_bytes


@pytest.mark.parametrize("text", ["", "24Q", "GiB", "1 TiBB", "-3", "1e9", "1e400", "9" * 400 + "GiB"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(HprofError, match="is not a size"):
        parse_bytes(text, "--vram-budget")
