"""Presets: each loads, has its published size, and runs; a wrong one is told where it is wrong."""

from __future__ import annotations

import copy
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.errors import HprofError
from executor.model import Model, ModelShape, MoeFfn
from executor.models.load import load_model
from executor.models.presets import load_preset, parse_preset, preset_names
from executor.models.synthetic import QuantPlan, SyntheticSource, fitting, model_tensors
from executor.quants import dequantise
from executor.reference import forward

# Published parameter counts in 1e9, as reference tables of llama-bench and the models' makers give them.
PARAMETERS = {
    "deepseek-v4-flash": 283.73,
    "glm-4.5-air": 106.85,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "laguna-s-2.1": 117.6,
    "llama-3.1-8b": 8.03,
    "mixtral-8x7b": 46.70,
    "qwen2.5-0.5b": 0.494,
    "qwen3-30b-a3b": 30.53,
    "qwen3.5-27b": 26.90,
    "qwen3.6-35b-a3b": 34.66,
    "qwen3-235b-a22b": 235.09,
}


@pytest.mark.parametrize("name", preset_names())
def test_loads_and_says_its_source(name: str) -> None:
    preset = load_preset(name)
    assert preset.shape.name == name
    assert len(preset.source) > 20
    assert all(isinstance(note, str) for note in preset.shape.notes)


@pytest.mark.parametrize("name", PARAMETERS)
def test_has_the_published_number_of_parameters(name: str) -> None:
    model = load_model(name)
    parameters = sum(math.prod(tensor.shape) for tensor in model.tensors.values())
    assert parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=1e-3)


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-20b", 11.27), ("gpt-oss-120b", 59.02)])
def test_gpt_oss_has_the_published_bytes(name: str, gib: float) -> None:
    assert load_model(name).n_bytes / 2**30 == pytest.approx(gib, abs=0.01)


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiny_models_run(name: str, dtype: torch.dtype) -> None:
    logits = forward(load_model(name), range(20), dtype)
    assert logits.isfinite().all()
    assert 0.5 < logits.std() < 2


@pytest.mark.parametrize("name", ["qwen3.5-27b", "deepseek-v4-flash", "laguna-s-2.1", "gpt-oss-20b"])
def test_every_kind_of_layer_runs_in_bfloat16(name: str) -> None:
    """A published model's layers, made narrow: the same mixers, heads, window and routing."""
    shape = narrowed(load_preset(name).shape)
    tensors = model_tensors(shape, QuantPlan.uniform("F16"))
    logits = forward(Model(shape, tensors, SyntheticSource(tensors, 0), name), range(24), torch.bfloat16, n_ubatch=20)
    assert logits.isfinite().all()
    assert 0.3 < logits.std() < 3


def narrowed(shape: ModelShape) -> ModelShape:
    layers = []
    for layer in dict.fromkeys(shape.layers):
        ffn = layer.ffn
        if isinstance(ffn, MoeFfn):
            ffn = replace(ffn, n_experts=8, n_used=2, n_ff_expert=32, n_ff_shared=32 if ffn.n_ff_shared else 0)
        else:
            ffn = replace(ffn, n_ff=64)
        layers.append(replace(layer, ffn=ffn))
    return replace(shape, n_vocab=64, hidden=128, layers=tuple(layers))


@pytest.mark.parametrize("quant", ["F16", "Q4_0", "Q4_K", "MXFP4"])
def test_any_quant_type(quant: str) -> None:
    model = load_model("tiny-moe", quant=quant, layers=1)
    assert {t.quant for t in model.tensors.values()} == {"F32", quant}
    assert forward(model, [1, 2, 3]).isfinite().all()


def test_activations_stay_finite_in_a_deep_bfloat16_model() -> None:
    table = preset_table("tiny-dense")
    table["model"] |= {"hidden": 64, "n_vocab": 64}
    table["mixers"]["full"] |= {"n_heads": 1, "n_kv_heads": 1}
    table["ffns"]["dense"]["n_ff"] = 96
    table["layers"][0]["repeat"] = 64
    shape = parse_preset(table, "deep").shape
    tensors = model_tensors(shape, QuantPlan.uniform("F16"))
    deep = Model(shape, tensors, SyntheticSource(tensors, 0), "deep")
    assert forward(deep, range(30), torch.bfloat16).isfinite().all()


def test_weights_depend_on_the_seed_and_the_name() -> None:
    def first_values(seed: int, name: str) -> torch.Tensor:
        model = load_model("tiny-dense", seed=seed)
        raw = torch.empty(model.tensors[name].n_bytes, dtype=torch.uint8)
        model.source.read_into(name, raw)
        return raw

    up = "blk.0.ffn_up.weight"
    assert torch.equal(first_values(1, up), first_values(1, up))
    assert not torch.equal(first_values(1, up), first_values(2, up))
    assert not torch.equal(first_values(1, up), first_values(1, "blk.1.ffn_up.weight"))
    assert load_model("tiny-dense", seed=1).source.digest() != load_model("tiny-dense", seed=2).source.digest()
    norm = first_values(0, "blk.0.ffn_norm.weight").view(torch.float32)
    assert norm.mean() == pytest.approx(1, abs=0.02)
    values = dequantise(first_values(0, up).view(1536, -1), "Q8_0", torch.float32)
    assert values.std() == pytest.approx(512**-0.5, rel=0.05)


def test_slices_say_so() -> None:
    model = load_model("gpt-oss-20b", layers=3)
    assert len(model.shape.layers) == 3
    assert "only the first 3 of 24 layers" in model.shape.notes
    assert max(t.layer for t in model.tensors.values() if t.layer is not None) == 2


@pytest.mark.parametrize("layers", [0, -1, 25])
def test_impossible_slices_are_refused(layers: int) -> None:
    with pytest.raises(HprofError, match="gpt-oss-20b has 24 layers"):
        load_model("gpt-oss-20b", layers=layers)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny-dens", "did you mean tiny-dense"),
        ("qwen3-30b", "qwen3-30b-a3b"),
        ("zzz", "presets are deepseek-v4-flash, glm"),
    ],
)
def test_unknown_names_are_told_near_ones(name: str, words: str) -> None:
    with pytest.raises(HprofError, match=words):
        load_model(name)


def test_bad_quant_types() -> None:
    with pytest.raises(HprofError, match="Q9"):
        load_model("tiny-dense", quant="Q9")
    with pytest.raises(HprofError, match="presets and configs only"):
        load_model("some/model.gguf", quant="Q4_0")


def test_a_folder_with_a_presets_name_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-dense").mkdir()
    assert load_model("tiny-dense").origin == "preset:tiny-dense"


def preset_table(name: str) -> dict[str, Any]:
    import executor.models.presets

    path = Path(executor.models.presets.__file__).with_name(f"{name}.toml")
    return copy.deepcopy(tomllib.loads(path.read_text()))


@pytest.mark.parametrize(
    ("part", "key", "value", "words"),
    [
        ("model", "hiden", 3, "unknown key 'hiden', did you mean hidden"),
        ("model", "hidden", "wide", "hidden is 'wide', but must be int"),
        ("model", "layers", 3, "unknown key 'layers'"),
        ("mixers.full", "kind", "rnn", "must be one of attention"),
        ("mixers.full", "n_kv_heads", 3, "8 query heads over 3"),
        ("mixers.full.rope", "scaling", "magic", "must be none"),
        ("mixers.full", "window", 1.5, "window is 1.5"),
    ],
)
def test_wrong_presets_are_told_where(part: str, key: str, value: object, words: str) -> None:
    table = preset_table("tiny-dense")
    target = table
    for step in part.split("."):
        target = target[step]
    target[key] = value
    with pytest.raises(HprofError, match=words) as caught:
        parse_preset(table, "broken")
    assert str(caught.value).startswith("preset broken")


def test_missing_key_is_named() -> None:
    table = preset_table("tiny-dense")
    del table["mixers"]["full"]["head_dim"]
    with pytest.raises(HprofError, match=r"mixers\.full: the key 'head_dim' is missing"):
        parse_preset(table, "broken")


def test_quant_types_by_role() -> None:
    preset = load_preset("gpt-oss-20b")
    tensors = model_tensors(preset.shape, preset.quant)
    assert tensors["blk.0.ffn_up_exps.weight"].quant == "MXFP4"
    assert tensors["blk.0.attn_q.weight"].quant == "Q8_0"
    assert tensors["blk.0.ffn_gate_inp.weight"].quant == "F32"
    assert tensors["blk.0.ffn_up_exps.bias"].quant == "F32"
    assert tensors["blk.0.post_attention_norm.weight"].shape == (2880,)


@pytest.mark.parametrize(
    ("quant", "n_cols", "stored"),
    [("Q4_K", 512, "Q4_K"), ("Q4_K", 96, "Q5_0"), ("Q6_K", 96, "Q8_0"), ("Q4_0", 40, "F16"), ("Q4_K", 40, "F16")],
)
def test_rows_that_do_not_fill_blocks_fall_back(quant: str, n_cols: int, stored: str) -> None:
    assert fitting(quant, n_cols) == stored
