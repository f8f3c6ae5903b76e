"""Hugging Face configs as shapes: presets' models give the presets' layers; what is wrong is told in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from executor.models.hf_config import read_config, shape_from_config
from executor.models.hf_families import FAMILIES
from executor.models.load import load_model
from executor.models.presets import load_preset
from executor.shape import AttentionShape, DeltaNetShape, DenseFfn, MlaShape, MoeFfn

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "rope_theta": 150000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "vocab_size": 201088,
    "rms_norm_eps": 1e-5,
}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
    "use_sliding_window": False,
    "sliding_window": None,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
QWEN35_MOE: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_hidden_layers": 40,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "linear_num_value_heads": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
        "vocab_size": 248320,
        "dtype": "bfloat16",
    },
    "vision_config": {"depth": 27},
}
GLM: dict[str, Any] = {
    "model_type": "glm4_moe",
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "head_dim": 128,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "num_hidden_layers": 46,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "use_qk_norm": False,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-5,
    "vocab_size": 151552,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "first_k_dense_replace": 3,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "vocab_size": 129280,
}


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        (LLAMA, "llama-3.1-8b"),
        (GPT_OSS, "gpt-oss-20b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (QWEN35_MOE, "qwen3.6-35b-a3b"),
        (GLM, "glm-4.5-air"),
    ],
)
def test_a_presets_model_gives_the_presets_layers(tmp_path: Path, config: dict[str, Any], preset: str) -> None:
    want = load_preset(preset).shape
    got, quant = read_config(written(tmp_path, config))
    assert got.layers == want.layers
    assert (got.architecture, got.n_vocab, got.hidden) == (want.architecture, want.n_vocab, want.hidden)
    assert got.norm_eps == want.norm_eps
    assert quant == "BF16"


def written(folder: Path, config: object) -> Path:
    path = folder / "model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    return path


def test_deepseek_v3_has_671_billion_parameters() -> None:
    shape = shape_from_config(DEEPSEEK_V3, "v3", "config.json")
    first, last = shape.layers[0], shape.layers[-1]
    assert isinstance(first.mixer, MlaShape)
    assert first.ffn == DenseFfn(18432)
    assert isinstance(last.ffn, MoeFfn)
    assert (last.ffn.n_ff_shared, last.ffn.shared_gate, last.ffn.score_bias) == (2048, False, True)
    assert first.mixer.rope.attention_factor == 1.0
    assert any("groups" in note for note in shape.notes)


def test_deepseek_v3_parameters(tmp_path: Path) -> None:
    model = load_model(str(written(tmp_path, DEEPSEEK_V3)), quant="F16")
    assert sum(t.n_bytes / (4 if t.quant == "F32" else 2) for t in model.tensors.values()) == pytest.approx(
        671.0e9, rel=1e-3
    )


def test_sliding_windows() -> None:
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 4096, "rope_scaling": None}
    mixer = shape_from_config(mistral, "m", "c").layers[0].mixer
    assert isinstance(mixer, AttentionShape)
    assert mixer.window == 4096
    qwen = QWEN3_MOE | {"sliding_window": 32768, "use_sliding_window": False}
    mixer = shape_from_config(qwen, "m", "c").layers[0].mixer
    assert isinstance(mixer, AttentionShape)
    assert mixer.window is None


def test_layer_types_decide_where_they_are_given() -> None:
    types = ["linear_attention", "full_attention"] * 20
    config = QWEN35_MOE["text_config"] | {"layer_types": types}
    shape = shape_from_config(config, "m", "c")
    assert [isinstance(layer.mixer, DeltaNetShape) for layer in shape.layers] == [True, False] * 20


def test_sparse_layers_among_dense_ones() -> None:
    config = QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}
    shape = shape_from_config(config, "m", "c")
    assert [isinstance(layer.ffn, MoeFfn) for layer in shape.layers[:6]] == [False, True, False, False, False, True]


def test_load_model_takes_a_config(tmp_path: Path) -> None:
    path = str(written(tmp_path, LLAMA | {"torch_dtype": "float16"}))
    model = load_model(path, layers=2)
    assert model.origin == f"config:{path}"
    assert model.shape.name == "model"
    assert {t.quant for t in model.tensors.values()} == {"F16", "F32"}
    assert load_model(path, quant="Q4_0", layers=2).tensors["blk.1.ffn_up.weight"].quant == "Q4_0"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "bert"}, "'bert' is not known; known are llama"),
        ({"model_type": None}, "not known"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_key_value_heads": 5}, "32 query heads over 5"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\]"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": ["mamba"] * 32}, "layer_types"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"partial_rotary_factor": 3.0}, "384 rotated dimensions"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "5 of 4 experts"),
    ],
)
def test_wrong_configs_are_told_what(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(HprofError, match=words) as caught:
        read_config(written(tmp_path, LLAMA | change))
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, "\x00", "3"])
def test_files_that_are_no_configs(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(HprofError, match=r"name a model's config\.json"):
        load_model(str(path))


def test_absent_and_too_large_files(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match="cannot be read"):
        load_model(str(tmp_path / "absent.json"))
    large = tmp_path / "config.json"
    large.write_text(" " * (2**20 + 1))
    with pytest.raises(HprofError, match="larger than 1 MiB"):
        load_model(str(large))


def test_unknown_families_are_told_all_known_ones() -> None:
    with pytest.raises(HprofError) as caught:
        shape_from_config({"model_type": "t5"}, "m", "config.json")
    assert all(name in str(caught.value) for name in FAMILIES)


def test_numbers_beyond_all_models_are_one_sentence(tmp_path: Path) -> None:
    most = 2**30
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"hidden_size": most, "vocab_size": most, "intermediate_size": most}))
    with pytest.raises(HprofError, match=r"describes a model of .* bytes, which cannot be"):
        load_model(str(path))
    with pytest.raises(HprofError, match=r"rope_theta is 1000.* must be a number above 1"):
        shape_from_config(LLAMA | {"rope_theta": 10**400}, "x", "config.json")
