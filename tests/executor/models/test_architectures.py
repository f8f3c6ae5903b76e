"""GGUF metadata to shapes: what each architecture's files give, and what is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from executor.errors import HprofError
from executor.gguf.file import open_gguf
from executor.model import AttentionShape, DenseFfn, ModelShape, MoeFfn, RopeShape, TensorInfo
from executor.models.architectures import ARCHITECTURES
from executor.models.architectures.base import RopeFactors
from executor.models.file_tensors import needed_tensors
from executor.models.from_gguf import shape_from_gguf
from executor.models.presets import load_preset
from executor.models.synthetic import QuantPlan, model_tensors
from tests.gguf_models import model_path

Metadata = dict[str, Any]
Tensors = dict[str, TensorInfo]


def metadata_of(shape: ModelShape, **extra: Any) -> Metadata:
    """What a GGUF file of `shape` says (its first layer speaks for all)."""
    mixer, ffn = shape.layers[0].mixer, shape.layers[-1].ffn
    assert isinstance(mixer, AttentionShape)
    facts: Metadata = {
        "block_count": len(shape.layers),
        "embedding_length": shape.hidden,
        "context_length": shape.context_length,
        "attention.head_count": mixer.n_heads,
        "attention.head_count_kv": mixer.n_kv_heads,
        "attention.key_length": mixer.head_dim,
        "attention.value_length": mixer.head_dim,
        "attention.layer_norm_rms_epsilon": shape.norm_eps,
        "rope.freq_base": mixer.rope.theta,
        "rope.dimension_count": mixer.rope.dims,
        "feed_forward_length": next((x.ffn.n_ff for x in shape.layers if isinstance(x.ffn, DenseFfn)), 5632),
    }
    if isinstance(ffn, MoeFfn):
        facts |= {"expert_count": ffn.n_experts, "expert_used_count": ffn.n_used}
        facts |= {"expert_feed_forward_length": ffn.n_ff_expert}
    named = {f"{shape.architecture}.{key}": value for key, value in (facts | extra).items()}
    return {"general.architecture": shape.architecture, "general.name": shape.name, **named}


def round_trip(preset: str, **extra: Any) -> tuple[ModelShape, ModelShape]:
    """A preset's shape, and the shape read back from the file that such a model would be stored in."""
    want = load_preset(preset).shape
    tensors = model_tensors(want, QuantPlan.uniform("F16"))
    return want, shape_from_gguf(metadata_of(want, **extra), tensors, "model.gguf")


def test_qwen3moe() -> None:
    want, got = round_trip("qwen3-30b-a3b")
    assert got.layers == want.layers
    assert (got.n_vocab, got.hidden, got.norm_eps) == (want.n_vocab, want.hidden, want.norm_eps)


def test_mixtral_is_a_llama_with_experts() -> None:
    want, got = round_trip("mixtral-8x7b")
    assert [layer.ffn for layer in got.layers] == [layer.ffn for layer in want.layers]


def test_qwen2_has_biases_and_tied_embeddings() -> None:
    want, got = round_trip("qwen2.5-0.5b")
    assert got.layers == want.layers
    assert got.tied_embeddings


def test_gpt_oss_alternates_windows_and_scales_its_rotation() -> None:
    yarn = {"type": "yarn", "factor": 32.0, "original_context_length": 4096}
    want, got = round_trip(
        "gpt-oss-20b",
        **{"attention.sliding_window": 128, **{f"rope.scaling.{key}": value for key, value in yarn.items()}},
    )
    assert got.layers == want.layers
    windows = [layer.mixer.window for layer in got.layers if isinstance(layer.mixer, AttentionShape)]
    assert windows == [128, None] * 12


def test_glm4moe_begins_dense_and_leaves_out_the_extra_prediction_layer() -> None:
    want, got = round_trip(
        "glm-4.5-air",
        block_count=47,
        nextn_predict_layers=1,
        leading_dense_block_count=1,
        expert_gating_func=2,
        expert_weights_norm=True,
        expert_shared_count=1,
    )
    assert got.layers == want.layers


def small_qwen2moe() -> tuple[Metadata, Tensors]:
    shape = load_preset("qwen2.5-0.5b").shape.sliced(1)
    moe = MoeFfn(8, 2, 96, n_ff_shared=128, shared_gate=True, normalise=False)
    layer = type(shape.layers[0])(shape.layers[0].mixer, moe)
    moe_shape = ModelShape("m", "qwen2moe", 32, shape.hidden, (layer,), 1e-6)
    metadata = metadata_of(moe_shape, expert_shared_feed_forward_length=128)
    return metadata, model_tensors(moe_shape, QuantPlan.uniform("F16"))


def test_qwen2moe_has_a_gated_shared_expert_and_keeps_its_weights_as_they_are() -> None:
    metadata, tensors = small_qwen2moe()
    ffn = shape_from_gguf(metadata, tensors, "m.gguf").layers[0].ffn
    assert ffn == MoeFfn(8, 2, 96, n_ff_shared=128, shared_gate=True, normalise=False)


def test_a_vector_stored_as_a_one_row_matrix_is_taken() -> None:
    metadata, tensors = small_qwen2moe()
    gate = tensors["blk.0.ffn_gate_inp_shexp.weight"]
    tensors[gate.name] = TensorInfo(gate.name, gate.quant, (1, *gate.shape), gate.n_bytes)
    assert shape_from_gguf(metadata, tensors, "m.gguf").hidden == gate.shape[0]


def test_real_files() -> None:
    for name, architecture in (("llama-dense-F16", "llama"), ("qwen3moe-e8k2-Q4_K", "qwen3moe")):
        file = open_gguf(model_path(name))
        shape = shape_from_gguf(file.metadata, file.tensors, name)
        assert shape.architecture == architecture
        assert len(shape.layers) == 2
        assert set(needed_tensors(shape, file.tensors)) == set(file.tensors)


def test_rope_factors_of_the_file_are_part_of_the_shape() -> None:
    want = load_preset("tiny-dense").shape
    tensors = model_tensors(want, QuantPlan.uniform("F16"))
    factors = tuple(float(i + 1) for i in range(32))
    got = shape_from_gguf(metadata_of(want), tensors, "model.gguf", RopeFactors(factors))
    mixer = got.layers[0].mixer
    assert isinstance(mixer, AttentionShape)
    assert mixer.rope.factors == factors
    with pytest.raises(HprofError, match="3 rotation factors"):
        shape_from_gguf(metadata_of(want), tensors, "model.gguf", RopeFactors(factors[:3]))


Change = Callable[[Metadata, Tensors], object]


def dropped(metadata: Metadata, key: str) -> None:
    del metadata[f"llama.{key}"]


def reshaped(tensors: Tensors, name: str) -> None:
    tensors[name] = TensorInfo(name, "F16", (7, 7), 98)


def added(name: str) -> Change:
    """A change that adds a tensor."""
    return lambda _, tensors: tensors.update({name: TensorInfo(name, "F32", (8,), 32)})


BAD: dict[str, tuple[Change, str]] = {
    "unknown architecture": (
        lambda m, t: m.update({"general.architecture": "lama"}),
        "does not run the architecture 'lama'; --engine llama-bench .* that it runs are llama, ",
    ),
    "no architecture": (lambda m, t: m.pop("general.architecture"), "does not say its architecture"),
    "odd architecture": (lambda m, t: m.update({"general.architecture": 3}), "does not say its architecture"),
    "missing key": (lambda m, t: dropped(m, "block_count"), "llama.block_count is missing"),
    "layers as a text": (lambda m, t: m.update({"llama.block_count": "8"}), "llama.block_count is '8'"),
    "layers as a truth": (lambda m, t: m.update({"llama.block_count": True}), "llama.block_count is True"),
    "a million layers": (lambda m, t: m.update({"llama.block_count": 10**6}), "1000000 layers"),
    "no layers": (lambda m, t: m.update({"llama.nextn_predict_layers": 8}), "0 layers"),
    "too many layers": (lambda m, t: m.update({"llama.block_count": 9}), "blk.8.attn_norm.weight is missing"),
    "a short list": (lambda m, t: m.update({"llama.attention.head_count_kv": [4] * 7}), "a list of 7"),
    "heads that do not fit": (lambda m, t: m.update({"llama.attention.head_count_kv": 3}), "8 query heads over 3"),
    "odd rotation": (lambda m, t: m.update({"llama.rope.dimension_count": 63}), "63 rotated dimensions"),
    "epsilon nan": (lambda m, t: m.update({"llama.attention.layer_norm_rms_epsilon": float("nan")}), "is nan"),
    "unknown scaling": (lambda m, t: m.update({"llama.rope.scaling.type": "dynamic"}), "'dynamic'"),
    "wide values": (lambda m, t: m.update({"llama.attention.value_length": 128}), "not as wide"),
    "no vocabulary": (lambda m, t: t.pop("token_embd.weight"), "token_embd.weight"),
    "missing tensor": (lambda m, t: t.pop("blk.3.ffn_up.weight"), "blk.3.ffn_up.weight is missing"),
    "wrong shape": (lambda m, t: reshaped(t, "blk.5.attn_q.weight"), r"blk.5.attn_q.weight has the shape \(7, 7\)"),
    "too many used": (
        lambda m, t: m.update({"llama.expert_count": 2, "llama.expert_used_count": 3}),
        "3 of 2 experts",
    ),
    "tokens see later ones": (
        lambda m, t: m.update({"llama.attention.causal": False}),
        "llama.attention.causal is false",
    ),
    **{
        f"unread {name}": (added(name), f"the tensor {name} is none that hprof reads for the architecture llama")
        for name in (
            "blk.0.ffn_up_exps.bias",
            "blk.1.ffn_norm.bias",
            "blk.0.attn_qkv.scale",
            "blk.7.attn_norm.bias",
            "output.bias",
            "output_norm.bias",
            "rope_factors_long.weight",
        )
    },
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_in_one_sentence(case: str) -> None:
    shape = load_preset("tiny-dense").shape
    metadata, tensors = metadata_of(shape), model_tensors(shape, QuantPlan.uniform("F16"))
    change, words = BAD[case]
    change(metadata, tensors)
    with pytest.raises(HprofError, match=words) as caught:
        shape_from_gguf(metadata, tensors, "model.gguf")
    assert str(caught.value).startswith("model.gguf")
    assert "\n" not in str(caught.value)


def test_the_unknown_are_told_all_known_ones() -> None:
    with pytest.raises(HprofError) as caught:
        shape_from_gguf({"general.architecture": "bert"}, {}, "model.gguf")
    assert all(name in str(caught.value) for name in ARCHITECTURES)
    assert "--engine llama-bench" in str(caught.value)
    assert "config.json, with --device sim" in str(caught.value)


@pytest.mark.parametrize("preset", ["qwen3-30b-a3b", "mixtral-8x7b"])
def test_an_experts_width_that_the_file_does_not_say(preset: str) -> None:
    """llama.cpp: qwen3moe divides feed_forward_length by the experts a token uses, llama's experts are that wide."""
    want = load_preset(preset).shape
    moe = want.layers[-1].moe
    assert moe is not None
    divisor = moe.n_used if preset.startswith("qwen3") else 1
    metadata = metadata_of(want, feed_forward_length=moe.n_ff_expert * divisor)
    del metadata[f"{want.architecture}.expert_feed_forward_length"]
    assert shape_from_gguf(metadata, model_tensors(want, QuantPlan.uniform("F16")), "model.gguf").layers == want.layers


def test_an_unknown_quant_matters_only_where_it_is_read() -> None:
    want = load_preset("tiny-dense").shape
    tensors = model_tensors(want, QuantPlan.uniform("F16"))
    unread = TensorInfo("vision.weight", "type 777", (8, 8), 0)
    shape = shape_from_gguf(metadata_of(want), {**tensors, unread.name: unread}, "model.gguf")
    assert unread.name not in needed_tensors(shape, {**tensors, unread.name: unread})
    name = "blk.1.ffn_up.weight"
    tensors[name] = replace(tensors[name], quant="type 777", n_bytes=0)
    with pytest.raises(
        HprofError, match=rf"'{name}' is stored as type 777, which .* not unpack; take .* F32.* --engine"
    ):
        shape_from_gguf(metadata_of(want), tensors, "model.gguf")


def rope_of(**extra: Any) -> RopeShape:
    mixer = round_trip("tiny-dense", **extra)[1].layers[0].mixer
    assert isinstance(mixer, AttentionShape)
    return mixer.rope


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_type_scales_linearly(key: str) -> None:
    """As in llama.cpp, whose type is linear where the file says none."""
    rope = rope_of(**{key: 4.0})
    assert (rope.scaling, rope.factor) == ("linear", 4.0)
    assert rope_of(**{key: 4.0, "rope.scaling.type": "none"}).scaling == "none"
    assert rope_of(**{key: 1.0}).scaling == "none"


def test_the_newer_factor_goes_before_the_older() -> None:
    assert rope_of(**{"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}).factor == 2.0


def test_keys_that_llama_cpp_ignores_are_ignored() -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    rope = rope_of(**yarn, **{"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 2.0})
    assert (rope.beta_fast, rope.beta_slow) == (32.0, 1.0)
    keys = {"expert_weights_norm": False, "expert_weights_scale": 2.5, "expert_gating_func": 2}
    want, got = round_trip("qwen3-30b-a3b", **keys)
    assert got.layers == want.layers


def test_glm4moe_obeys_its_routers_keys_and_does_not_normalise_by_default() -> None:
    def moe(**extra: Any) -> MoeFfn:
        extra = {"nextn_predict_layers": 1, "block_count": 47, "leading_dense_block_count": 1} | extra
        found = round_trip("glm-4.5-air", **extra)[1].layers[-1].moe
        assert found is not None
        return found

    assert (moe().normalise, moe().scoring, moe().scale) == (False, "sigmoid", 1.0)
    obeyed = moe(expert_weights_norm=True, expert_gating_func=1, expert_weights_scale=2.5)
    assert (obeyed.normalise, obeyed.scoring, obeyed.scale) == (True, "softmax", 2.5)
    with pytest.raises(HprofError, match="gating function 9 is not known"):
        moe(expert_gating_func=9)


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (2, [128, None, 128, None]),
        (4, [128, 128, 128, None]),
        (1, [None] * 4),
        (0, [128] * 4),
        ([True, False, False, True] + [False] * 20, [128, None, None, 128]),
    ],
)
def test_gpt_oss_says_which_layers_have_the_window(pattern: Any, windows: list[int | None]) -> None:
    keys = {"attention.sliding_window": 128, "attention.sliding_window_pattern": pattern}
    layers = round_trip("gpt-oss-20b", **keys, **{"rope.freq_base_swa": 10_000.0})[1].layers[:4]
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, AttentionShape)]
    assert [mixer.window for mixer in mixers] == windows
    assert {mixer.rope.theta for mixer in mixers if mixer.window} <= {10_000.0}
    assert {mixer.rope.theta for mixer in mixers if not mixer.window} <= {150_000.0}


def test_what_is_outside_the_layers_is_left_out_and_told() -> None:
    want = load_preset("tiny-dense").shape
    outer = [TensorInfo(name, "F32", (8,), 32) for name in ("v.patch_embd.weight", "mm.0.weight")]
    tensors = model_tensors(want, QuantPlan.uniform("F16")) | {info.name: info for info in outer}
    notes = shape_from_gguf(metadata_of(want), tensors, "model.gguf").notes
    assert notes == ("no layer reads the tensor v.patch_embd.weight and 1 more of the file: left out",)


def test_the_bias_of_qwen2s_output_is_read() -> None:
    want = load_preset("qwen2.5-0.5b").shape
    bias = TensorInfo("output.bias", "F32", (want.n_vocab,), 4 * want.n_vocab)
    tensors = model_tensors(want, QuantPlan.uniform("F16")) | {bias.name: bias}
    shape = shape_from_gguf(metadata_of(want), tensors, "model.gguf")
    assert shape.output_bias
    assert bias.name in needed_tensors(shape, tensors)
