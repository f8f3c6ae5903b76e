"""What a PyTorch user would pick instead, on an equal-shaped bf16 model: accelerate and diffusers against `on`.

A sample is one forward; the limit is max(C, T), with C measured resident and T the streamed bytes over the
link's ceiling. Peak memory is what torch's allocator held at most (hprof's holds a KV cache, the peers' does not).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.common import Workload, open_session, passes, prefill_ms
from executor.model import AttentionShape, DenseFfn, LayerShape, Model, ModelShape, RopeShape
from executor.models.synthetic import QuantPlan, SyntheticSource, model_tensors

N_LAYERS, HIDDEN, N_FF, N_VOCAB = 16, 5120, 17408, 1024
TOKENS = (512, 2048, 8192)


def shape() -> ModelShape:
    """Llama-like: 16 layers, 5120 / 17408, 40 / 8 heads of 128."""
    attention = AttentionShape(40, 8, 128, RopeShape(10000.0, 128))
    layer = LayerShape(attention, DenseFfn(N_FF))
    return ModelShape("peers-dense", "llama", N_VOCAB, HIDDEN, (layer,) * N_LAYERS, 1e-5)


def hprof(model: Model, repetitions: int = 3) -> dict[int, dict[str, float]]:
    """`on` and `full` passes of one ubatch, every matrix of every layer streamed."""
    rows: dict[int, dict[str, float]] = {}
    for n in TOKENS:
        cell = Workload(n_prompt=n, n_ubatch=n)
        with open_session(model, ["on"], [cell], overrides="blk.*=CPU") as session:
            on = passes(session, ["on"], cell, repetitions)["on"]
            rows[n] = {
                "on_ms": prefill_ms(on),
                "peak_gib": max(r.vram_peak or 0 for r in on) / 2**30,
                "limit_t_ms": sum(unit.n_bytes for unit in session.units) / (session.devices[0].link_gb_s or 1) / 1e6,
                "bytes": float(on[0].bytes_h2d),
            }
        with open_session(model, ["full"], [cell], overrides="") as session:
            rows[n]["resident_ms"] = prefill_ms(passes(session, ["full"], cell, repetitions)["full"])
        torch.cuda.empty_cache()
    return rows


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=N_FF,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=40,
        num_key_value_heads=8,
        vocab_size=N_VOCAB,
        max_position_embeddings=65536,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        model = LlamaModel(config).to(torch.bfloat16)
    model = model.to_empty(device="cpu").eval()
    model.rotary_emb = type(model.rotary_emb)(config)  # its buffers are computed, not loaded
    tile = torch.randn(1 << 22, dtype=torch.bfloat16) / HIDDEN**0.5  # random, as zeros would compute faster
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        for start in range(0, flat.numel(), tile.numel()):
            piece = flat[start : start + tile.numel()]
            piece.copy_(tile[: piece.numel()])
    return model


def accelerate_offload() -> Any:
    """accelerate's cpu_offload: blocking copies from pageable memory, a leaf module at a time."""
    from accelerate import cpu_offload

    return cpu_offload(_llama(), execution_device=torch.device("cuda"))


def diffusers_stream() -> Any:
    """diffusers' group offloading by block with a stream, its strongest setting here."""
    from diffusers.hooks import apply_group_offloading

    model = _llama()
    apply_group_offloading(
        model,
        onload_device=torch.device("cuda"),
        offload_device=torch.device("cpu"),
        offload_type="block_level",
        num_blocks_per_group=1,
        use_stream=True,
    )
    return model


def peer(make: Callable[[], Any], repetitions: int) -> dict[int, dict[str, float]]:
    """Time a peer's forward for each token count."""
    model = make()
    rows: dict[int, dict[str, float]] = {}
    with torch.inference_mode():
        for n in TOKENS:
            ids = torch.randint(N_VOCAB, (1, n), device="cuda")
            model(input_ids=ids, use_cache=False)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            rows[n] = {"ms": statistics.median(_time_ms(model, ids) for _ in range(repetitions))}
            rows[n]["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return rows


def _time_ms(model: Any, ids: torch.Tensor) -> float:
    start = time.perf_counter()
    model(input_ids=ids, use_cache=False)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def run() -> list[dict[str, Any]]:
    """One row a token count, all in one run."""
    tensors = model_tensors(shape(), QuantPlan.uniform("BF16"))
    ours = hprof(Model(shape(), tensors, SyntheticSource(tensors, seed=0), "peers"))
    diffusers = peer(diffusers_stream, 2)
    accelerate = peer(accelerate_offload, 1)
    rows = []
    for n in TOKENS:
        limit = max(ours[n]["resident_ms"], ours[n]["limit_t_ms"])
        rows.append(
            {
                "n_tokens": n,
                "limit_ms": limit,
                "resident_ms": ours[n]["resident_ms"],
                "hprof_on_ms": ours[n]["on_ms"],
                "diffusers_ms": diffusers[n]["ms"],
                "accelerate_ms": accelerate[n]["ms"],
                "hprof_over_limit": ours[n]["on_ms"] / limit,
                "diffusers_over_limit": diffusers[n]["ms"] / limit,
                "accelerate_over_limit": accelerate[n]["ms"] / limit,
                "hprof_peak_gib": ours[n]["peak_gib"],
                "diffusers_peak_gib": diffusers[n]["peak_gib"],
                "accelerate_peak_gib": accelerate[n]["peak_gib"],
            }
        )
    return rows
