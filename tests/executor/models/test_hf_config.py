"""Hugging Face configs as shapes: presets' models give the presets' layers; what is wrong is told in one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from executor.model import AttentionShape, DeltaNetShape, DenseFfn, MlaShape, MoeFfn
from executor.models.hf_config import read_config, shape_from_config
from executor.models.hf_families import MODEL_FAMILIES
from executor.models.load import load_model
from executor.models.presets import load_preset
from executor.models.synthetic import QuantPlan
from tests.executor.models.hf_configs import DEEPSEEK_V3, GLM, GPT_OSS, LLAMA, QWEN3_MOE, QWEN35_MOE, written


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
    got, quants = read_config(written(tmp_path, config))
    assert got.layers == want.layers
    assert (got.architecture, got.n_vocab, got.hidden) == (want.architecture, want.n_vocab, want.hidden)
    assert got.norm_eps == want.norm_eps
    assert quants == QuantPlan.uniform("BF16")


def test_deepseek_v3_has_671_billion_parameters() -> None:
    shape = shape_from_config(DEEPSEEK_V3, "v3", "config.json")
    first, last = shape.layers[0], shape.layers[-1]
    assert isinstance(first.mixer, MlaShape)
    assert first.ffn == DenseFfn(18432)
    assert isinstance(last.ffn, MoeFfn)
    assert (last.ffn.n_ff_shared, last.ffn.shared_gate, last.ffn.score_bias) == (2048, False, True)
    assert first.mixer.rope.attention_factor == 1.0
    assert not shape.notes
    moe = shape_from_config(DEEPSEEK_V3 | {"n_group": 8, "topk_group": 4}, "v3", "config.json").layers[-1].moe
    assert moe is not None
    assert (moe.n_groups, moe.n_groups_used) == (8, 4)


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
        ({"model_type": None}, "states no model_type; .* one of the types llama"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_key_value_heads": 5}, "32 query heads over 5"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\]"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": ["mamba"] * 32}, "must be a list of 32, each one of full_attention"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"partial_rotary_factor": 3.0}, "partial_rotary_factor is 3.0, but must be a number from 0 to 1"),
        ({"partial_rotary_factor": 1e308}, "must be a number from 0 to 1"),
        ({"rope_parameters": {"partial_rotary_factor": 2}}, "must be a number from 0 to 1"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 1e308}}, "between 1 and 1e.308 turns"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_slow": 64}}, "between 64 and 32 turns"),
        (QWEN3_MOE | {"num_experts": 2**31 - 1}, "8 of 2147483647 experts"),
        (QWEN3_MOE | {"mlp_only_layers": [[]]}, "mlp_only_layers is"),
        (QWEN3_MOE | {"num_experts": 4, "num_experts_per_tok": 5}, "5 of 4 experts"),
        (QWEN3_MOE | {"num_experts": None}, "num_experts is missing"),
        (QWEN3_MOE | {"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
        (QWEN3_MOE | {"num_key_value_heads": None}, "num_key_value_heads is missing"),
    ],
)
def test_wrong_configs_are_told_what(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(HprofError, match=words) as caught:
        read_config(written(tmp_path, LLAMA | change))
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_a_surrogate_pair_does_not_reach_the_manifest(tmp_path: Path) -> None:
    shape, _ = read_config(written(tmp_path, LLAMA | {"quantization_config": {"quant_method": "\ud800"}}))
    assert any("? weights are stored as" in note for note in shape.notes)


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
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for endless in (pipe, tmp_path, Path("/dev/zero")):
        link = tmp_path / "link.json"
        link.symlink_to(endless)
        with pytest.raises(HprofError, match="not a regular file"):
            load_model(str(link))
        link.unlink()


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert read_config(path)[0].n_vocab == 128256


@pytest.mark.parametrize(
    ("stated", "quants", "note"),
    [
        ({"quant_method": "mxfp4"}, QuantPlan("BF16", "MXFP4", "BF16"), None),
        ({"quant_method": "fp8"}, QuantPlan("Q8_0", "Q8_0", "BF16"), "FP8 weights are stored as Q8_0"),
        ({"quant_method": "awq"}, QuantPlan.uniform("BF16"), "awq weights are stored as BF16: give --quant"),
        ({"quant_method": [1]}, QuantPlan.uniform("BF16"), "weights are stored as BF16"),
        ([1], QuantPlan.uniform("BF16"), None),
    ],
)
def test_weights_are_stored_as_they_are_published(
    tmp_path: Path, stated: object, quants: QuantPlan, note: str | None
) -> None:
    shape, found = read_config(written(tmp_path, GPT_OSS | {"quantization_config": stated}))
    assert found == quants
    assert [text for text in shape.notes if note is None or note not in text] == []
    assert bool(shape.notes) == (note is not None)


def test_unknown_families_are_told_all_known_ones() -> None:
    with pytest.raises(HprofError) as caught:
        shape_from_config({"model_type": "t5"}, "m", "config.json")
    assert all(name in str(caught.value) for name in MODEL_FAMILIES)


def test_numbers_beyond_all_models_are_one_sentence(tmp_path: Path) -> None:
    most = 2**30
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"hidden_size": most, "vocab_size": most, "intermediate_size": most}))
    with pytest.raises(HprofError, match=r"describes a model of .* bytes, which cannot be"):
        load_model(str(path))
    with pytest.raises(HprofError, match=r"rope_theta is 1000.* must be a number above 1"):
        shape_from_config(LLAMA | {"rope_theta": 10**400}, "x", "config.json")
