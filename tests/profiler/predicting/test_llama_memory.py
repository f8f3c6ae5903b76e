"""llama.cpp's memory: what it was seen to hold, which of a model stays in host memory, and what advice makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpu.gguf_file import dense_shape, moe_shape, synthetic
from executor.devices.factory import DeviceOptions
from executor.memory.budget import Budget
from executor.model import Model
from executor.models.load import load_model
from profiler.planning.placed_arms import device_shares
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, RunRequest, grid
from profiler.predicting.advise import Advice, advise
from profiler.predicting.candidates import USUAL_UBATCH, nearest_to_usual
from profiler.predicting.llama_cpp import LlamaCppCosts, LlamaCppMachine
from profiler.predicting.llama_memory import embedding_bytes, llama_cpp_shares

MIB = 2**20
MACHINE = LlamaCppMachine(
    gemm_tflop_s=40.0, experts_tflop_s=10.0, memory_gb_s=500.0, link_gb_s=20.0, host_memory_gb_s=40.0
)
SIM = DeviceOptions("sim")


def request(n_prompt: int, n_ubatch: int, **fields: object) -> RunRequest:
    return RunRequest((GridPoint(n_prompt, 0, n_ubatch, 0),), SIM, model="tiny-moe", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "weights_mib", "n_context", "states_mib", "computing_mib"),
    [
        # one H200, llama-bench -v, build 11549, -fa 1 -ub 512: `CUDA0 model buffer size`, `KV buffer`, `compute buffer`
        (synthetic(moe_shape(), "Q4_0"), 8078.57, 512, 24.0, 107.29),
        (synthetic(moe_shape(), "Q4_0"), 8078.57, 4096, 192.0, 107.29),
        (synthetic(dense_shape(), "Q4_0"), 2923.54, 512, 32.0, 152.5),  # the last: of the CPU
    ],
    ids=["moe", "moe, longer", "dense"],
)
def test_it_is_what_llama_cpp_says_or_a_little_more(
    model: Model, weights_mib: float, n_context: int, states_mib: float, computing_mib: float
) -> None:
    [share], reserve_bytes = llama_cpp_shares(request(n_context, 512), model, 512)
    assert (share.full_bytes - reserve_bytes) / MIB == pytest.approx(weights_mib, abs=0.01)
    computing = reserve_bytes / MIB - states_mib
    assert computing_mib - 0.6 <= computing <= 1.4 * computing_mib


def test_the_logits_of_a_large_vocabulary_outweigh_a_layers_rows() -> None:
    """`CUDA0 compute buffer size` grows with the vocabulary: every row of a ubatch may want its logits."""
    model = synthetic(replace(moe_shape(8), n_vocab=151_936), "Q4_0")
    _, reserve_bytes = llama_cpp_shares(request(512, 512), model, 512)
    assert reserve_bytes / MIB - 24 == pytest.approx(512 * (151_936 + 2 * 2048) * 4 / MIB)


def test_tied_embeddings_are_the_output_and_so_on_the_device() -> None:
    plan = plan_run(request(64, 64))
    assert embedding_bytes(plan.model) == plan.model.tensors["token_embd.weight"].n_bytes
    tied = load_model("qwen2.5-0.5b")
    assert tied.shape.tied_embeddings
    assert embedding_bytes(tied) == 0


def test_devices_share_layers_and_each_has_its_own_buffer() -> None:
    asked = RunRequest((GridPoint(64, 0, 64, 0),), DeviceOptions("sim", n_devices=2), model="tiny-moe")
    model = plan_run(asked).model
    shares, _ = llama_cpp_shares(asked, model, 64)
    (whole,), _ = llama_cpp_shares(request(64, 64), model, 64)
    assert sorted(layer for share in shares for layer in share.layers) == list(whole.layers)
    assert sum(share.full_bytes for share in shares) > whole.full_bytes


def test_a_weight_copied_in_takes_its_own_place_and_not_a_layers() -> None:
    """So llama.cpp keeps more resident in the same budget than hprof, whose slot holds a layer's three."""
    cells = tuple(grid([256], [0], [64], [0]))
    asked = RunRequest(cells, SIM, model="tiny-moe", arms=("off",))
    plan = plan_run(asked)
    [share], _ = llama_cpp_shares(asked, plan.model, 256)
    layer = [t.n_bytes for t in plan.model.tensors.values() if t.layer == 0 and "_exps" in t.name]
    budget = Budget((share.full_bytes - sum(layer) + max(layer),))  # one layer streamed, through its largest weight
    found = advised(asked, budget)
    streamed = [one for one in found.ranked if one.n_ubatch == 256 and one.override]
    assert min(len(one.placement.host_layers()) for one in streamed) == 1
    assert all(one.vram_bytes + one.reserve_bytes <= budget.n_bytes[0] for one in streamed)
    ours, _ = device_shares(asked, plan.model, plan.session)
    assert not ours[0].by_tensor


def advised(asked: RunRequest, budget: Budget, machine: LlamaCppMachine = MACHINE) -> Advice:
    return advise(asked, budget, "mix", LlamaCppCosts(machine))


@pytest.mark.parametrize(("launch_us", "is_usual"), [(0.01, True), (50.0, False)])
def test_a_gain_that_rows_scatter_by_is_no_reason_to_leave_the_usual_ubatch(launch_us: float, is_usual: bool) -> None:
    """Larger ubatches launch less. Where that is next to nothing, llama.cpp's own default stays."""
    asked = RunRequest(tuple(grid([4096], [0], [512], [0])), SIM, model="tiny-dense", arms=("off",))
    found = advised(asked, Budget((1 << 40,)), replace(MACHINE, launch_us=launch_us))
    least = min(found.ranked, key=lambda one: one.cost("mix"))
    assert least.n_ubatch > USUAL_UBATCH
    assert (found.best.n_ubatch == USUAL_UBATCH) is is_usual
    assert found.best.cost("mix") <= 1.03 * least.cost("mix")
    assert [one.n_ubatch for one in nearest_to_usual([], "mix")] == []


def test_tokens_alone_leave_the_ubatch_as_it_is() -> None:
    asked = RunRequest(tuple(grid([0], [8], [64], [0])), SIM, model="tiny-moe", arms=("off",))
    assert {one.n_ubatch for one in advised(asked, Budget((1 << 40,))).ranked} == {USUAL_UBATCH}
