"""Runs passes for tests: one session over a model, and each pass with its logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from executor.devices.base import Event, StreamName
from executor.devices.factory import DeviceOptions
from executor.devices.sim import SimDevice, SimMachine
from executor.model import Model, MoeFfn
from executor.models.load import load_model
from executor.passes import EventRecord, PassJob, PassResult
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.routing.spec import routing_from_spec
from executor.session import Session, SessionOptions

LINK_GB_S = {"cpu": 100.0, "sim": 0.5}
"""Fast where it takes real time; on `sim` so slow that a step whose wait is missing starts before its copy ends."""


@contextmanager
def open_session(
    spec: str,
    arms: Sequence[str],
    *,
    kind: Any = "cpu",
    n_devices: int = 1,
    overrides: str | None = None,
    policy: PolicyOptions | None = None,
    synthetic_routing: bool | str = False,
    layers: int | None = None,
    machine: SimMachine | None = None,
    **options: Any,
) -> Iterator[Session]:
    """A session with room for the small passes of these tests, closed at the end.

    `synthetic_routing` True is the default family; a text is what `--routing` takes.
    """
    model = load_model(spec, layers=layers)
    link: dict[str, Any] = {} if machine is not None else {"link_gb_s": LINK_GB_S.get(kind), "link_latency_us": 1.0}
    device = DeviceOptions(kind, n_devices=n_devices, n_threads=1, machine=machine, **link)
    settings = {"max_positions": 256, "max_ubatch": 128, "max_ubatches": 64, **options}
    routing_spec = "lognormal" if synthetic_routing is True else synthetic_routing
    routing = routing_of(model, routing_spec) if routing_spec else None
    chosen = SessionOptions(device, policy=policy or PolicyOptions(), routing=routing, **settings)
    session = Session(model, place(model.tensors, overrides=overrides), arms, chosen)
    try:
        yield session
    finally:
        session.close()


def routing_of(model: Model, spec: str) -> Any:
    """A synthetic routing for a model whose MoE layers are alike."""
    layers = {i: layer.ffn for i, layer in enumerate(model.shape.layers) if isinstance(layer.ffn, MoeFfn)}
    moe = next(iter(layers.values()))
    return routing_from_spec(spec, layers=layers, n_experts=moe.n_experts, n_used=moe.n_used, seed=0)


def run_pass(
    session: Session,
    arm: str,
    n_prompt: int = 96,
    n_gen: int = 4,
    n_ubatch: int = 32,
    n_depth: int = 0,
    repetition: int = 0,
    *,
    all_logits: bool = False,
) -> tuple[PassResult, torch.Tensor | None]:
    """One pass and its float32 logits, a row a generated token; None on sim.

    With `all_logits` the prompt has a row a token, and its last layer's FFN does what the others' do.
    """
    job = PassJob(0, arm, n_prompt, n_gen, n_ubatch, n_depth, repetition, all_logits=all_logits)
    result = session.run_pass(job)
    return result, None if session.last_logits is None else session.last_logits.clone()


def unit_bytes(session: Session) -> int:
    """Bytes that a ubatch streams when everything is copied whole."""
    return sum(unit.n_bytes for unit in session.units)


def vram(session: Session, arm: str) -> dict[str, int]:
    """What an arm reserves, in bytes: weights that stay, slots, and the cache's bank."""
    effective = next(found["effective"] for found in session.describe_arms() if found["name"] == arm)
    return {part: effective[part] for part in ("vram_resident", "vram_slots", "vram_bank")}


def weight_bytes(result: PassResult, phase: str | None = None) -> int:
    """Bytes of weights that crossed the bus, activations left out."""
    return sum(
        event.bytes or 0
        for event in result.events
        if event.kind == "h2d" and event.tensor is not None and phase in (None, event.phase)
    )


def without_waits_of(stream: StreamName, monkeypatch: pytest.MonkeyPatch, index: int | None = None) -> None:
    """From now on nothing makes this stream wait for an event, on `sim` devices (None: all): what a missing wait is."""
    wait = SimDevice.wait

    def wait_of_others(device: SimDevice, waiting: StreamName, event: Event) -> None:
        if waiting != stream or index not in (None, device.index):
            wait(device, waiting, event)

    monkeypatch.setattr(SimDevice, "wait", wait_of_others)


def copies(result: PassResult) -> list[EventRecord]:
    """The copies of weights in the order in which they were issued."""
    found = [event for event in result.events if event.kind == "h2d" and event.tensor is not None]
    return sorted(found, key=lambda event: event.correlation_id or 0)
