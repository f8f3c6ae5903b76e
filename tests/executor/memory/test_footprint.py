"""What is counted before a session is opened is what the session then holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.host import stored
from executor.layers.state import new_state
from executor.memory import footprint as footprint_module
from executor.memory.footprint import Footprint, footprint, state_bytes
from executor.models.load import load_model
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.routing.spec import routing_from_spec
from executor.session import Session, SessionOptions

ARMS = ["off", "on", "cache", "hot"]
pytestmark = pytest.mark.usefixtures("without_compiler")


def options_of(spec: str, **changes: Any) -> SessionOptions:
    routing = routing_from_spec("uniform", layers=range(6), n_experts=32, n_used=4, seed=0) if "moe" in spec else None
    policy = PolicyOptions(cache_bytes=1 << 20)
    device = DeviceOptions("cpu", n_threads=1)
    return SessionOptions(device, 200, 64, 16, policy=policy, routing=routing, **changes)


def counted(spec: str, options: SessionOptions, arms: list[str] = ARMS) -> Footprint:
    model = load_model(spec)
    return footprint(model, place(model.tensors), arms, options, 5)


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize(("n_devices", "arms"), [(1, ARMS), (2, ["on", "full"])])
def test_as_a_session_reserves_it(spec: str, n_devices: int, arms: list[str]) -> None:
    if spec == "tiny-dense":
        arms = [arm for arm in arms if arm != "cache"]
    options = options_of(spec)
    options = replace(options, device=replace(options.device, n_devices=n_devices))
    found = counted(spec, options, arms)
    model = load_model(spec)
    session = Session(model, place(model.tensors), arms, options)
    try:
        for shard, device in zip(session.shards, found.devices, strict=True):
            assert device.resident + device.slots + device.bank == shard.device.reserved_bytes
            states = device.states - _rope_bytes(shard)
            assert states == shard.state_bytes
            given = sum(200 * 8 * layer.ffn.n_used for layer in _moe_layers(model, shard))
            assert device.activations == shard.fixed_bytes - shard.state_bytes + given
        assert found.host.weights == sum(unit.n_bytes for unit in session.units)
        assert [d.logits for d in found.devices] == [0] * (n_devices - 1) + [5 * model.shape.n_vocab * 4]
    finally:
        session.close()


def _rope_bytes(shard: Any) -> int:
    tables = {id(state.rope): state.rope for state in shard.states.values()}
    return sum(table.cos.nbytes + table.sin.nbytes for table in tables.values())


def _moe_layers(model: Any, shard: Any) -> list[Any]:
    layers = [model.shape.layers[i] for i in shard.layers]
    return [layer for layer in layers if hasattr(layer.ffn, "n_used")]


def test_states_of_every_preset_grow_as_they_are_made() -> None:
    """Counted from one and two positions; the real ones of 100, on tensors without bytes."""
    for spec in ("llama-3.1-8b", "gpt-oss-20b", "qwen3.6-35b-a3b", "deepseek-v4-flash"):
        layers = load_model(spec).shape.layers[:6]
        made = [new_state(layer.mixer, 100, torch.device("meta"), torch.bfloat16).n_bytes for layer in layers]
        assert state_bytes(layers, 100, torch.bfloat16) == sum(made) > 0


def test_a_huge_context_is_counted_without_being_made() -> None:
    found = counted("tiny-dense", replace(options_of("tiny-dense"), max_positions=10**12), ["on"])
    assert found.devices[0].states > 10**15


def test_what_is_computed_on_the_host_is_kept_in_its_dtype() -> None:
    host = place(load_model("tiny-dense").tensors).host
    n_layers = len(load_model("tiny-dense").shape.layers)
    n_weights = sum(load_model("tiny-dense").tensors[name].n_bytes // 34 * 32 for name in host)  # Q8_0 blocks
    for dtype, itemsize in ((torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 4)):
        options = options_of("tiny-dense", dtype=dtype)
        every = replace(options, layers_on_host=range(16))
        assert counted("tiny-dense", every, ["off"]).host.products == n_weights * itemsize
        first = replace(options, layers_on_host=[0])
        assert counted("tiny-dense", first, ["off"]).host.products == n_weights * itemsize // n_layers
    assert counted("tiny-dense", options, ["off"]).host.products == 0


def test_nothing_is_kept_of_what_is_multiplied_as_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "is_available", lambda: True)
    options = options_of("tiny-dense", dtype=torch.bfloat16)
    every = replace(options, layers_on_host=range(16))
    assert counted("tiny-dense", every, ["off"]).host.products == 0


def test_experts_are_held_twice_while_they_are_loaded() -> None:
    tensors = load_model("tiny-moe").tensors.values()
    largest = max(t.n_bytes for t in tensors if "_exps" in t.name)
    found = counted("tiny-moe", options_of("tiny-moe"), ["off"])
    assert found.host.loading == 8 * largest
    assert counted("tiny-dense", options_of("tiny-dense"), ["off"]).host.loading < 8 * largest


@pytest.mark.parametrize("has_triton", [True, False])
def test_recorded_steps_are_counted_where_a_gpu_keeps_them(has_triton: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense layer has two steps, one of experts three: recorded for a prompt, for a token, and in whole tokens."""
    monkeypatch.setattr(footprint_module, "has_triton", lambda: has_triton)
    for spec, n_steps in (("tiny-dense", 2), ("tiny-moe", 3)):
        options, n_layers = options_of(spec), len(load_model(spec).shape.layers)
        on_gpu = replace(options, device=DeviceOptions("cuda"))
        each = n_layers * n_steps * 32 * 1024
        assert counted(spec, options).devices[0].recordings == 0
        assert counted(spec, on_gpu, ["off"]).devices[0].recordings == (2 + has_triton) * each
        assert counted(spec, on_gpu, ["off", "full"]).devices[0].recordings == (2 + 2 * has_triton) * each
