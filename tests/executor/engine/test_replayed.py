"""Steps' keys, without a GPU: a device that repeats the first launch of each key, as a recorded graph would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from executor import placed_model
from executor.devices.base import ReplayKey, StreamName, Touches, Work
from executor.devices.cpu import CpuDevice
from executor.model import TemperatureShape
from executor.models.architectures import llama4
from executor.policies import ARMS
from executor.policies.base import PolicyOptions
from tests.executor.architectures import test_llama4
from tests.executor.engine_runs import open_session, run_pass
from tests.executor.policies.made_up import Divided

N_GEN = 5
POLICY = PolicyOptions(cache_bytes=1 << 20, op_offload_min_batch=1)  # everything is computed on the device


class Repeating:
    """Launches of the CPU device: the first of each key, and that one again."""

    def __init__(self) -> None:
        self.first: dict[ReplayKey, Callable[[], None]] = {}
        self.n_repeated = 0
        self._launch = CpuDevice.launch

    def launch(
        self,
        device: CpuDevice,
        stream: StreamName,
        fn: Callable[[], None],
        work: Work,
        key: ReplayKey | None = None,
        touches: Touches | None = None,
    ) -> None:
        if key is not None and stream != "host":
            self.n_repeated += key in self.first
            fn = self.first.setdefault(key, fn)
        self._launch(device, stream, fn, work, key)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(CpuDevice, "launch", lambda device, *args, **named: self.launch(device, *args, **named))


def logits_of(spec: str, arm: str, dtype: torch.dtype, layers: int | None = 2) -> list[torch.Tensor]:
    """Of three passes, the last like the first."""
    with open_session(spec, [arm], dtype=dtype, policy=POLICY, layers=layers) as session:
        found = [run_pass(session, arm, 64, N_GEN, repetition=repetition)[1] for repetition in (0, 1, 0)]
    return [logits for logits in found if logits is not None]


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("arm", ["off", "on", "hot", "cache", "full"])
def test_a_key_names_all_that_a_step_depends_on(spec: str, arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = logits_of(spec, arm, torch.bfloat16)
    launches = Repeating()
    launches.install(monkeypatch)
    for got, want in zip(logits_of(spec, arm, torch.bfloat16), wanted, strict=True):
        assert torch.equal(got, want)
    assert launches.n_repeated > len(launches.first)


def test_arms_that_divide_share_slots_but_no_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts' ubatches go through the slot with the cache too."""
    monkeypatch.setitem(ARMS, "divided", Divided)
    arms = ["divided", "divided+cache"]

    def logits() -> list[torch.Tensor | None]:
        with open_session("tiny-moe", arms, dtype=torch.bfloat16, policy=POLICY, layers=3) as session:
            return [
                run_pass(session, arm, 64, N_GEN, n_ubatch=64, repetition=repetition, all_logits=True)[1]
                for repetition, arm in enumerate(arms)
            ]

    wanted = logits()
    Repeating().install(monkeypatch)
    for got, want in zip(logits(), wanted, strict=True):
        assert got is not None
        assert want is not None
        assert torch.equal(got, want)


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
def test_generated_tokens_share_one_recording(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = logits_of(spec, "on", torch.float32)  # in bfloat16 another kernel's rounding chooses other experts
    launches = Repeating()
    launches.install(monkeypatch)
    monkeypatch.setattr(CpuDevice, "replays", True)
    monkeypatch.setattr(placed_model, "flash_serves", lambda keys: True)
    for got, want in zip(logits_of(spec, "on", torch.float32), wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)
    attention = [(key.step, key.variant) for key in launches.first if "attn" in str(key.step)]
    decoded = [variant for step, variant in attention if step[2] == 1]  # type: ignore[index]
    assert {variant[1] for variant in decoded} == {("rows", 256)}  # type: ignore[index]


@pytest.mark.parametrize("chunk", [40, 1024])
def test_chunks_and_growing_queries_are_replayed_where_the_rows_seen_allow_it(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording for 256 rows serves chunks of at least as many; shorter ones are recorded for each position."""
    monkeypatch.setattr(llama4, "_CHUNK", chunk)
    monkeypatch.setattr(llama4, "_TEMPERATURE", TemperatureShape(8, 0.5, 1.0))
    path = str(test_llama4.write(tmp_path / "model.gguf"))
    wanted = logits_of(path, "on", torch.float32, layers=None)
    launches = Repeating()
    launches.install(monkeypatch)
    monkeypatch.setattr(CpuDevice, "replays", True)
    monkeypatch.setattr(placed_model, "flash_serves", lambda keys: True)
    for got, want in zip(logits_of(path, "on", torch.float32, layers=None), wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)
    variants: dict[int, set[object]] = {}
    keys: list[Any] = list(launches.first)
    for (layer, name, n_tokens), (_, variant) in keys:
        if name == "attn" and n_tokens == 1:
            variants.setdefault(layer, set()).add(variant)
    assert variants[3] == {("rows", 256)}
    assert variants[0] == ({("rows", 256)} if chunk == 1024 else {64, 65, 66, 67})
