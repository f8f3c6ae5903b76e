"""`qwen3next`, `qwen35`, `qwen35moe`: gated delta nets between layers of gated attention, a gated shared expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from executor.model import DeltaNetShape
from executor.models.load import load_model
from tests.executor.architectures.blocks import (
    ATTENTION,
    DENSE,
    EXPERT_KEYS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KEYS,
    QK_NORMS,
    experts,
    merged,
)
from tests.random_gguf import (
    Shapes,
    check_against_llama_cpp,
    check_in_engine,
    check_refused,
    ffn_tensors,
    model_tensors,
    write_random_gguf,
)

KEY_HEADS, VALUE_HEADS, STATE, TAPS, N_FF_SHARED = 2, 6, 16, 4, 64
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * STATE
NEXT: dict[str, Any] = {
    **KEYS,
    "block_count": 4,
    "ssm.conv_kernel": TAPS,
    "ssm.state_size": STATE,
    "ssm.group_count": KEY_HEADS,
    "ssm.time_step_rank": VALUE_HEADS,
    "ssm.inner_size": VALUE_HEADS * STATE,
    "rope.dimension_count": HEAD_DIM // 2,
}
SECTIONS = {"rope.dimension_sections": [3, 3, 2, 0]}
MOE = {**EXPERT_KEYS, "expert_shared_feed_forward_length": N_FF_SHARED}
KEYS_OF: dict[str, dict[str, Any]] = {
    "qwen3next": NEXT | MOE,
    "qwen35": NEXT | SECTIONS,
    "qwen35moe": NEXT | SECTIONS | MOE,
}
NORMS: Shapes = {"attn_norm.weight": (HIDDEN,), "post_attention_norm.weight": (HIDDEN,)}
GATED_ATTENTION: Shapes = {**ATTENTION, **QK_NORMS, "attn_q.weight": (2 * HEADS * HEAD_DIM, HIDDEN)}
MOE_TENSORS: Shapes = {
    **experts(),
    **ffn_tensors(HIDDEN, N_FF_SHARED, "_shexp"),
    "ffn_gate_inp_shexp.weight": (HIDDEN,),
}
CASES: dict[str, dict[str, Any]] = {
    "every fourth layer has attention": {},
    "every second": {"full_attention_interval": 2},
    "a list of layers": {"attention.recurrent_layers": [True, True, False, False]},
    "an extra layer of prediction": {"nextn_predict_layers": 1, "block_count": 5},
}


def in_one(tensors: Shapes) -> Shapes:
    """A recurrent mixer as the converter wrote it until 2026."""
    apart = ("attn_qkv.weight", "attn_gate.weight")
    kept = {name: dims for name, dims in tensors.items() if name not in apart}
    return {**kept, "ssm_in.weight": (sum(tensors[name][0] for name in apart), HIDDEN)}


def mixer_tensors(architecture: str, *, is_recurrent: bool) -> Shapes:
    if not is_recurrent:
        return GATED_ATTENTION
    gates: Shapes = {f"ssm_{name}.weight": (VALUE_HEADS, HIDDEN) for name in ("alpha", "beta")}
    if architecture == "qwen3next":
        gates = {"ssm_ba.weight": (2 * VALUE_HEADS, HIDDEN)}
    return {
        "attn_qkv.weight": (CHANNELS, HIDDEN),
        "attn_gate.weight": (VALUE_HEADS * STATE, HIDDEN),
        **gates,
        "ssm_conv1d.weight": (CHANNELS, TAPS),
        "ssm_dt.bias": (VALUE_HEADS,),
        "ssm_a": (VALUE_HEADS,),
        "ssm_norm.weight": (STATE,),
        "ssm_out.weight": (HIDDEN, VALUE_HEADS * STATE),
    }


def write(path: Path, architecture: str, **changed: Any) -> Path:
    keys = merged(KEYS_OF[architecture], changed)
    every, said = keys.get("full_attention_interval", 4), keys.get("attention.recurrent_layers")
    n_layers = NEXT["block_count"]
    recurrent = said or [(i + 1) % every != 0 for i in range(n_layers)]
    ffn = DENSE if architecture == "qwen35" else MOE_TENSORS
    blocks = [NORMS | mixer_tensors(architecture, is_recurrent=bool(flag)) | ffn for flag in recurrent]
    if keys.get("nextn_predict_layers"):
        blocks.append(NORMS | GATED_ATTENTION | ffn | prediction_tensors())
    return write_random_gguf(path, architecture, keys, model_tensors(HIDDEN, blocks))


def prediction_tensors() -> Shapes:
    return {
        "nextn.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
        "nextn.enorm.weight": (HIDDEN,),
        "nextn.hnorm.weight": (HIDDEN,),
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("architecture", KEYS_OF)
def test_as_llama_cpp_computes_it(architecture: str, case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", architecture, **CASES[case]))


def test_a_long_prompt_runs_in_chunks(tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", "qwen35"), n_tokens=200)


def test_older_files_of_qwen3_next(tmp_path: Path) -> None:
    recurrent = in_one(mixer_tensors("qwen3next", is_recurrent=True))
    blocks = [NORMS | (recurrent if i < 3 else GATED_ATTENTION) | MOE_TENSORS for i in range(4)]
    tensors = model_tensors(HIDDEN, blocks)
    check_against_llama_cpp(write_random_gguf(tmp_path / "m.gguf", "qwen3next", KEYS_OF["qwen3next"], tensors))


@pytest.mark.parametrize("architecture", ["qwen3next", "qwen35moe"])
def test_widths_that_the_file_does_not_say(architecture: str, tmp_path: Path) -> None:
    """A token's experts share feed_forward_length, the shared expert has all of it."""
    keys = {"feed_forward_length": 3 * EXPERT_KEYS["expert_feed_forward_length"], "expert_feed_forward_length": None}
    check_against_llama_cpp(write(tmp_path / "model.gguf", architecture, **keys))


@pytest.mark.parametrize("architecture", KEYS_OF)
def test_every_arm_agrees_and_states_are_kept(architecture: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", architecture)
    arms = ["off", "on", "full", "cpu"] if architecture == "qwen35" else ["off", "on", "hot", "cache", "full", "cpu"]
    check_in_engine(path, arms)
    kinds = [isinstance(layer.mixer, DeltaNetShape) for layer in load_model(str(path)).shape.layers]
    assert kinds == [True, True, True, False]


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no state": ({"ssm.state_size": None}, "qwen35.ssm.state_size is missing"),
    "a state of nothing": ({"ssm.state_size": 0}, "ssm.state_size is 0"),
    "values of another width": ({"ssm.inner_size": 7}, "ssm.inner_size is 7, but must be 6 heads of 16"),
    "heads that do not divide": ({"ssm.group_count": 4}, "6 value heads over 4 key heads"),
    "a state without end": ({"ssm.state_size": 2**31 - 1}, "ssm.inner_size is 96"),
    "one tap": ({"ssm.conv_kernel": 1}, "ssm.conv_kernel is 1"),
    "endless taps": ({"ssm.conv_kernel": 2**31 - 1}, "ssm_conv1d.weight has the shape"),
    "no interval": ({"full_attention_interval": 0}, "full_attention_interval is 0"),
    "a short list of layers": (
        {"attention.recurrent_layers": [True]},
        r"is \[True\], but must be true or false for each of",
    ),
    "layers by number": ({"attention.recurrent_layers": 3}, "recurrent_layers is 3"),
    "no sections": ({"rope.dimension_sections": None}, "rope.dimension_sections is missing"),
    "sections of nothing": ({"rope.dimension_sections": [0, 0, 0, 0]}, "which leaves some of 8 rotated pairs"),
    "a pair at rest": ({"rope.dimension_sections": [3, 2, 2, 1]}, "which leaves some of 8 rotated pairs"),
    "endless sections": ({"rope.dimension_sections": [2**31 - 1, 1, 1, 1]}, "which leaves some of 8 rotated pairs"),
    "more rotated than there is": ({"rope.dimension_count": 4096}, "4096 rotated dimensions in heads of 32"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_absurd_values_get_one_sentence(case: str, tmp_path: Path) -> None:
    changed, words = HOSTILE[case]
    path = tmp_path / "model.gguf"
    write_random_gguf(path, "qwen35", merged(KEYS_OF["qwen35"], changed), model_tensors(HIDDEN, blocks_of_qwen35()))
    check_refused(path, words)


def blocks_of_qwen35() -> list[Shapes]:
    return [NORMS | mixer_tensors("qwen35", is_recurrent=i < 3) | DENSE for i in range(4)]


def test_a_missing_shared_expert_is_refused(tmp_path: Path) -> None:
    recurrent = mixer_tensors("qwen3next", is_recurrent=True)
    blocks = [NORMS | (recurrent if i < 3 else GATED_ATTENTION) | experts() for i in range(4)]
    path = write_random_gguf(tmp_path / "m.gguf", "qwen3next", KEYS_OF["qwen3next"], model_tensors(HIDDEN, blocks))
    with pytest.raises(HprofError, match=r"ffn_gate_shexp.weight is missing"):
        load_model(str(path))
