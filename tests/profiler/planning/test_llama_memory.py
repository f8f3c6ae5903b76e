"""llama.cpp's memory: what it was seen to hold, which of a model stays in host memory, and what advice makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import gguf_file
from benchmarks.gpu.gguf_file import N_VOCAB, moe_shape, synthetic
from executor.devices.factory import DeviceOptions
from executor.memory.budget import Budget, DeviceShare
from executor.memory.footprint import state_bytes
from executor.model import AttentionShape, DenseFfn, LayerShape, Model, ModelShape, MoeFfn, RopeShape
from executor.models.load import load_model
from profiler.planning.llama_memory import embedding_bytes, llama_cpp_shares
from profiler.planning.placed_arms import device_shares
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, RunRequest, grid
from profiler.predicting.advise import Advice, advise
from profiler.predicting.candidates import USUAL_UBATCH, nearest_to_usual
from profiler.predicting.llama_cpp import LlamaCppCosts, LlamaCppMachine
from tests.llama_cpp import compute_buffer_bytes

MIB = 2**20
MACHINE = LlamaCppMachine(
    gemm_tflop_s=40.0, experts_tflop_s=10.0, memory_gb_s=500.0, link_gb_s=20.0, host_memory_gb_s=40.0
)
SIM = DeviceOptions("sim")


def shares(model: Model, n_context: int, n_ubatch: int) -> tuple[list[DeviceShare], int]:
    """On one device."""
    device_of = [0] * (len(model.shape.layers) + 1)
    return llama_cpp_shares(model, device_of, [GridPoint(n_context, 0, n_ubatch, 0)])


def request(n_prompt: int, n_ubatch: int, **fields: object) -> RunRequest:
    return RunRequest((GridPoint(n_prompt, 0, n_ubatch, 0),), SIM, model="tiny-moe", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n_context", "states_mib"), [(512, 24.0), (4096, 192.0)])
def test_it_is_what_llama_cpp_said_on_a_gpu_or_a_little_more(n_context: int, states_mib: float) -> None:
    """One H200, llama.cpp 0c1e570, `llama-bench -v -fa 1 -ub 512`: model 8078.57 MiB, compute buffer 107.29 MiB."""
    [share], reserve_bytes = shares(synthetic(moe_shape(), "Q4_0"), n_context, 512)
    assert (share.full_bytes - reserve_bytes) / MIB == pytest.approx(8078.57, abs=0.01)
    assert 107.29 <= reserve_bytes / MIB - states_mib <= 1.4 * 107.29


def layers_of(n_heads: int, n_kv_heads: int, ffn: DenseFfn | MoeFfn, hidden: int) -> ModelShape:
    attention = AttentionShape(n_heads, n_kv_heads, 128, RopeShape(10000.0, 128, interleaved=True))
    if isinstance(ffn, MoeFfn):
        attention = AttentionShape(n_heads, n_kv_heads, 128, RopeShape(10000.0, 128), qk_norm=True)
    architecture = "qwen3moe" if isinstance(ffn, MoeFfn) else "llama"
    return ModelShape("two layers", architecture, N_VOCAB, hidden, (LayerShape(attention, ffn),) * 2, 1e-5)


@pytest.mark.parametrize(
    "shape",
    [
        layers_of(8, 2, DenseFfn(2048), 512),
        layers_of(8, 2, DenseFfn(4096), 1024),
        layers_of(32, 4, DenseFfn(512), 512),  # queries wider than all else
        layers_of(16, 16, DenseFfn(512), 512),  # keys and values as wide
        layers_of(8, 2, MoeFfn(16, 8, 256), 512),
        layers_of(8, 2, MoeFfn(16, 4, 256), 1024),
        layers_of(8, 2, MoeFfn(16, 2, 1024), 512),
        layers_of(32, 2, MoeFfn(16, 8, 128), 256),
        layers_of(8, 2, MoeFfn(8, 1, 256), 512),
    ],
    ids=str,
)
def test_the_graphs_buffer_is_bounded(shape: ModelShape, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Held against llama.cpp itself, on the CPU. Few rows of logits, so that they do not hide a layer's."""
    monkeypatch.setattr(gguf_file, "N_VOCAB", 256)
    shape = replace(shape, n_vocab=256)
    path = gguf_file.write_gguf(shape, "Q4_0", tmp_path / "model.gguf")
    told = compute_buffer_bytes(path, 512, 512)
    model = synthetic(shape, "Q4_0")
    _, reserve_bytes = shares(model, 512, 512)
    computing = reserve_bytes - state_bytes(shape.layers, 512, torch.float16)
    assert told <= computing <= 2.5 * told


def test_the_logits_of_a_large_vocabulary_outweigh_a_layers_rows() -> None:
    """`CUDA0 compute buffer size` grows with the vocabulary: every row of a ubatch may want its logits."""
    model = synthetic(replace(moe_shape(8), n_vocab=151_936), "Q4_0")
    _, reserve_bytes = shares(model, 512, 512)
    assert reserve_bytes / MIB - 24 == pytest.approx(512 * ((151_936 + 2 * 2048) * 4 + 512 * 2 + 64) / MIB)


def test_tied_embeddings_are_the_output_and_so_on_the_device() -> None:
    plan = plan_run(request(64, 64))
    assert embedding_bytes(plan.model) == plan.model.tensors["token_embd.weight"].n_bytes
    tied = load_model("qwen2.5-0.5b")
    assert tied.shape.tied_embeddings
    assert embedding_bytes(tied) == 0


def test_devices_share_layers_and_each_has_its_own_buffer() -> None:
    model = plan_run(request(64, 64)).model
    n_layers = len(model.shape.layers)
    halves = [*(layer * 2 // n_layers for layer in range(n_layers)), 1]
    found, _ = llama_cpp_shares(model, halves, [GridPoint(64, 0, 64, 0)])
    [whole], _ = shares(model, 64, 64)
    assert sorted(layer for share in found for layer in share.layers) == list(whole.layers)
    assert sum(share.full_bytes for share in found) > whole.full_bytes


def test_a_weight_copied_in_takes_its_own_place_and_not_a_layers() -> None:
    """So llama.cpp keeps more resident in the same budget than hprof, whose slot holds a layer's three."""
    cells = tuple(grid([256], [0], [64], [0]))
    asked = RunRequest(cells, SIM, model="tiny-moe", arms=("off",), engine="llama.cpp")
    plan = plan_run(asked)
    [share], _ = shares(plan.model, 256, 256)
    layer = [t.n_bytes for t in plan.model.tensors.values() if t.layer == 0 and "_exps" in t.name]
    budget = Budget((share.full_bytes - sum(layer) + max(layer),))  # one layer streamed, through its largest weight
    found = advised(asked, budget)
    streamed = [one for one in found.ranked if one.n_ubatch == 256 and one.override]
    assert min(len(one.placement.host_layers()) for one in streamed) == 1
    assert all(one.vram_bytes + one.reserve_bytes <= budget.n_bytes[0] for one in streamed)
    [ours], _ = device_shares(replace(asked, engine="hprof"), plan.model, plan.session)
    assert not ours.by_tensor


def advised(asked: RunRequest, budget: Budget, machine: LlamaCppMachine = MACHINE) -> Advice:
    return advise(asked, budget, "mix", LlamaCppCosts(machine))


@pytest.mark.parametrize(("launch_us", "is_usual"), [(0.01, True), (50.0, False)])
def test_a_gain_that_rows_scatter_by_is_no_reason_to_leave_the_usual_ubatch(launch_us: float, is_usual: bool) -> None:
    """Larger ubatches launch less. Where that is next to nothing, llama.cpp's own default stays."""
    asked = RunRequest(tuple(grid([4096], [0], [512], [0])), SIM, model="tiny-dense", arms=("off",), engine="llama.cpp")
    found = advised(asked, Budget((1 << 40,)), replace(MACHINE, launch_us=launch_us))
    least = min(found.ranked, key=lambda one: one.cost("mix"))
    assert least.n_ubatch > USUAL_UBATCH
    assert (found.best.n_ubatch == USUAL_UBATCH) is is_usual
    assert found.best.cost("mix") <= 1.03 * least.cost("mix")
    assert [one.n_ubatch for one in nearest_to_usual([], "mix")] == []


@pytest.mark.parametrize(("n_ubatch", "gain", "first"), [(256, 0.08, 512), (256, 0.12, 256), (1024, 0.08, 1024)])
def test_a_smaller_ubatch_than_usual_has_to_gain_more(n_ubatch: int, gain: float, first: int) -> None:
    """Rows of the usual one do not show what it costs to launch all of a model more often."""
    asked = RunRequest(tuple(grid([4096], [0], [512], [0])), SIM, model="tiny-dense", arms=("off",), engine="llama.cpp")
    some = advised(asked, Budget((1 << 40,))).best
    (cell,) = some.predictions
    usual = replace(some, n_ubatch=512, predictions=(replace(cell, ttft_ns=1e6 * (1 + gain)),))
    other = replace(some, n_ubatch=n_ubatch, predictions=(replace(cell, ttft_ns=1e6),))
    assert nearest_to_usual([other, usual], "ttft")[0].n_ubatch == first


def test_tokens_alone_leave_the_ubatch_as_it_is() -> None:
    asked = RunRequest(tuple(grid([0], [8], [64], [0])), SIM, model="tiny-moe", arms=("off",), engine="llama.cpp")
    assert {one.n_ubatch for one in advised(asked, Budget((1 << 40,))).ranked} == {USUAL_UBATCH}
