"""`--quant Q4_K_M` and the like, against what llama.cpp's loader prints of published files."""

from __future__ import annotations

from collections import Counter

import pytest

from executor.errors import HprofError
from executor.models.load import load_model
from executor.models.mixtures import MIXTURE_NAMES


@pytest.mark.parametrize(
    ("mixture", "counts"),
    [
        ("Q3_K_S", {"Q3_K": 225, "Q6_K": 1}),
        ("Q3_K_M", {"Q3_K": 129, "Q4_K": 92, "Q5_K": 4, "Q6_K": 1}),
        ("Q3_K_L", {"Q3_K": 129, "Q5_K": 96, "Q6_K": 1}),
        ("Q4_K_S", {"Q4_K": 217, "Q5_K": 8, "Q6_K": 1}),
        ("Q4_K_M", {"Q4_K": 193, "Q6_K": 33}),
        ("Q5_K_S", {"Q5_K": 225, "Q6_K": 1}),
        ("q5_k_m", {"Q5_K": 193, "Q6_K": 33}),
    ],
)
def test_a_model_of_32_layers_has_the_types_that_llama_cpp_counts(mixture: str, counts: dict[str, int]) -> None:
    found = Counter(tensor.quant for tensor in load_model("llama-3.1-8b", mixture).tensors.values())
    assert found - Counter(F32=10_000) == counts


@pytest.mark.parametrize(("preset", "file_bytes"), [("llama-3.1-8b", 4_920_739_232), ("qwen3-30b-a3b", 18_556_686_912)])
def test_sizes_are_those_of_published_files_without_their_vocabulary(preset: str, file_bytes: int) -> None:
    assert load_model(preset, "Q4_K_M").n_bytes == pytest.approx(file_bytes, rel=2e-3)


def test_eight_experts_have_attention_in_more_bits() -> None:
    tensors = load_model("mixtral-8x7b", "Q4_K_M").tensors
    of_layer = {name.removeprefix("blk.7."): tensor.quant for name, tensor in tensors.items() if tensor.layer == 7}
    assert of_layer["attn_v.weight"] == of_layer["attn_k.weight"] == "Q8_0"
    assert (of_layer["attn_output.weight"], of_layer["ffn_gate_exps.weight"]) == ("Q5_K", "Q4_K")


def test_rows_that_fill_no_block_fall_back() -> None:
    tensors = load_model("tiny-dense", "Q4_K_M").tensors
    assert tensors["blk.0.ffn_up.weight"].quant in ("Q4_K", "Q5_0")


def test_a_name_that_is_none_is_told_near_ones_or_all() -> None:
    with pytest.raises(HprofError, match=r"--quant Q4_K_X: .* did you mean q4_k_s or q4_k_m or q4_k"):
        load_model("tiny-dense", "Q4_K_X")
    with pytest.raises(HprofError, match=f"mixtures {', '.join(MIXTURE_NAMES)}"):
        load_model("tiny-dense", "seven")


def test_several_types_go_to_layer_after_layer_in_turn() -> None:
    tensors = load_model("tiny-dense", "Q8_0, q4_0").tensors
    assert [tensors[f"blk.{layer}.ffn_up.weight"].quant for layer in range(4)] == ["Q8_0", "Q4_0"] * 2
    assert tensors["token_embd.weight"].quant == "Q8_0"
    with pytest.raises(HprofError, match=r"--quant Q4_K_X: that type is not known"):
        load_model("tiny-dense", "Q8_0,Q4_K_X")
    with pytest.raises(HprofError, match=r"--quant : that type is not known"):
        load_model("tiny-dense", "Q8_0,")
