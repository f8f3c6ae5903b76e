"""`deepseek2`: latent attention in both ways of storing it, groups of experts, YaRN on the logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.model import LayerShape, MlaShape, ModelShape, MoeFfn, RopeShape
from executor.models.from_gguf import shape_from_gguf
from executor.models.synthetic import QuantPlan
from executor.models.synthetic import model_tensors as model_tensors_of
from tests.executor.architectures.blocks import merged
from tests.random_gguf import (
    Shapes,
    check_against_llama_cpp,
    check_in_engine,
    check_refused,
    ffn_tensors,
    model_tensors,
    write_random_gguf,
)

HIDDEN, HEADS, NOPE, ROTATED, VALUE, RANK, Q_RANK = 128, 4, 32, 16, 24, 48, 40
EXPERTS, N_FF_EXPERT = 16, 32
KEYS: dict[str, Any] = {
    "embedding_length": HIDDEN,
    "block_count": 2,
    "feed_forward_length": 96,
    "leading_dense_block_count": 1,
    "attention.head_count": HEADS,
    "attention.head_count_kv": 1,
    "attention.key_length": RANK + ROTATED,
    "attention.value_length": RANK,
    "attention.key_length_mla": NOPE + ROTATED,
    "attention.value_length_mla": VALUE,
    "attention.q_lora_rank": Q_RANK,
    "attention.kv_lora_rank": RANK,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": ROTATED,
    "rope.freq_base": 1e4,
    "expert_count": EXPERTS,
    "expert_used_count": 4,
    "expert_shared_count": 2,
    "expert_feed_forward_length": N_FF_EXPERT,
    "expert_weights_scale": 2.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
}
OLD: dict[str, Any] = {
    "attention.head_count_kv": HEADS,
    "attention.key_length": NOPE + ROTATED,
    "attention.value_length": VALUE,
    "attention.key_length_mla": None,
    "attention.value_length_mla": None,
}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
WITHOUT_RANK = {"attention.q_lora_rank": 0}
CASES: dict[str, dict[str, Any]] = {
    "as DeepSeek-V3": {},
    "joined matrices of keys and values": OLD,
    "no rank of the queries": WITHOUT_RANK,
    "softmax, as DeepSeek-V2": {"expert_gating_func": 1, "expert_weights_norm": False, "expert_group_count": 0},
    "no router's keys": {"expert_gating_func": None, "expert_weights_norm": None, "expert_weights_scale": None},
    "yarn": {**YARN, "rope.scaling.yarn_log_multiplier": 0.1},
    "yarn, another multiplier": {**YARN, "rope.scaling.yarn_log_multiplier": 0.0707, "rope.scaling.attn_factor": 1.2},
    "yarn without a multiplier, joined": {**YARN, **OLD},
    "linear with a multiplier": {
        **YARN,
        "rope.scaling.type": "linear",
        "rope.scaling.yarn_log_multiplier": 0.1,
        "rope.scaling.attn_factor": 1.2,
    },
    "growing queries, as Mistral Large 3": {"attention.temperature_scale": 0.5, "attention.temperature_length": 8},
    "growing queries, joined": {**OLD, "attention.temperature_scale": 0.5, "attention.temperature_length": 8},
}


def write(path: Path, **changed: Any) -> Path:
    """The file with some keys changed (None: left out)."""
    keys = merged(KEYS, changed)
    attention: Shapes = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q_a.weight": (Q_RANK, HIDDEN),
        "attn_q_a_norm.weight": (Q_RANK,),
        "attn_q_b.weight": (HEADS * (NOPE + ROTATED), Q_RANK),
        "attn_kv_a_mqa.weight": (RANK + ROTATED, HIDDEN),
        "attn_kv_a_norm.weight": (RANK,),
        "attn_k_b.weight": (HEADS, RANK, NOPE),
        "attn_v_b.weight": (HEADS, VALUE, RANK),
        "attn_output.weight": (HIDDEN, HEADS * VALUE),
        "ffn_norm.weight": (HIDDEN,),
    }
    if not keys.get("attention.q_lora_rank"):
        attention = {"attn_q.weight": (HEADS * (NOPE + ROTATED), HIDDEN)} | {
            name: dims for name, dims in attention.items() if not name.startswith("attn_q_")
        }
    if "attention.key_length_mla" not in keys:
        attention = {"attn_kv_b.weight": (HEADS * (NOPE + VALUE), RANK)} | {
            name: dims for name, dims in attention.items() if name not in ("attn_k_b.weight", "attn_v_b.weight")
        }
    bias: Shapes = {"exp_probs_b.bias": (EXPERTS,)} if keys.get("expert_gating_func") == 2 else {}
    experts: Shapes = {
        "ffn_gate_inp.weight": (EXPERTS, HIDDEN),
        **bias,
        **ffn_tensors(HIDDEN, N_FF_EXPERT, "_exps", (EXPERTS,)),
        **ffn_tensors(HIDDEN, 2 * N_FF_EXPERT, "_shexp"),
    }
    dense = attention | ffn_tensors(HIDDEN, KEYS["feed_forward_length"])
    return write_random_gguf(path, "deepseek2", keys, model_tensors(HIDDEN, [dense, attention | experts]))


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", **CASES[case]))


def test_early_files_of_glm_flash_do_not_say_that_their_router_is_a_sigmoid() -> None:
    """llama.cpp tells them by layers and vocabulary."""
    mixer = MlaShape(HEADS, Q_RANK, RANK, NOPE, VALUE, RopeShape(1e4, ROTATED))
    layer = LayerShape(mixer, MoeFfn(EXPERTS, 4, N_FF_EXPERT, n_ff_shared=2 * N_FF_EXPERT))
    unsaid = merged(KEYS, {"expert_gating_func": None, "leading_dense_block_count": 0})
    for n_vocab, scoring in ((154_880, "sigmoid"), (154_881, "softmax")):
        shape = ModelShape("glm", "deepseek2", n_vocab, HIDDEN, (layer,) * 47, 1e-5)
        keys = {f"deepseek2.{key}": value for key, value in (unsaid | {"block_count": 47}).items()}
        tensors = model_tensors_of(shape, QuantPlan.uniform("F16"))
        found = shape_from_gguf({"general.architecture": "deepseek2", **keys}, tensors, "model.gguf").layers[3].moe
        assert found is not None
        assert found.scoring == scoring


@pytest.mark.parametrize("case", ["as DeepSeek-V3", "growing queries, joined"])
def test_every_arm_agrees(case: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", **CASES[case])
    check_in_engine(path, ["off", "on", "hot", "cache", "full", "cpu"])


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "all of a key rotated": ({"attention.key_length_mla": ROTATED}, "16 rotated dimensions leave nothing of keys"),
    "rotation in halves": ({"rope.dimension_count": 15}, "15 rotated dimensions"),
    "another latent": ({"attention.kv_lora_rank": 2**31 - 1}, r"attn_kv_a_mqa.weight has the shape \(64, 128\)"),
    "no latent": ({"attention.kv_lora_rank": 0}, "attention.kv_lora_rank is 0"),
    "no width of values": ({"attention.value_length_mla": 0}, "attention.value_length_mla is 0"),
    "more heads than numbers": ({"attention.head_count": 2**20, **OLD, "attention.key_length": None}, "is 0, but must"),
    "a rank without end": ({"attention.q_lora_rank": 10**9}, "attn_q_a.weight"),
    "groups that do not divide": ({"expert_group_count": 5}, "2 of 5 groups of its 16 experts"),
    "groups of one": ({"expert_group_count": 16}, "2 of 16 groups"),
    "all groups": ({"expert_group_used_count": 4}, "4 of 4 groups"),
    "no group": ({"expert_group_used_count": 0}, "expert_group_used_count is 0"),
    "more experts than groups hold": ({"expert_used_count": 9}, "9 experts chosen out of 2 groups of 4"),
    "endless logits": ({**YARN, "rope.scaling.yarn_log_multiplier": 3e38}, "attention logits times"),
    "nan on the logits": ({**YARN, "rope.scaling.yarn_log_multiplier": float("nan")}, "log_multiplier is nan"),
    "a shrunk context": ({**YARN, "rope.scaling.factor": 1e-30, "rope.scaling.yarn_log_multiplier": 1e30}, "times"),
    "endless rotation": ({"rope.scaling.attn_factor": 3e38}, "attention logits times 1.299"),
    "no length of the growth": ({"attention.temperature_scale": 0.1}, "temperature_length is missing"),
    "an unknown gate": ({"expert_gating_func": 4}, "gating function 4 is not known"),
    "all layers dense": ({"leading_dense_block_count": 9}, "blk.1.ffn_gate.weight is missing"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_absurd_values_get_one_sentence(case: str, tmp_path: Path) -> None:
    changed, words = HOSTILE[case]
    check_refused(write(tmp_path / "model.gguf", **changed), words)
