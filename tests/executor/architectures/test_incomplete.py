"""Files that lack what llama.cpp needs, or hold more layers than their metadata say, are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from executor.gguf.file import open_gguf
from executor.model import ModelShape
from executor.models.from_gguf import shape_from_gguf
from tests.executor.architectures import test_minimax, test_olmo, test_plain, test_qwen_next
from tests.executor.architectures.blocks import (
    EXPERT_KEYS,
    HIDDEN,
    KEYS,
    N_FF_EXPERT,
    QK_NORMS,
    write_plain,
)
from tests.executor.test_llama_cpp import GLM, WINDOW, Writer
from tests.random_gguf import ffn_tensors

Write = Callable[[Path], Path]


def by_writer(architecture: str, keys: dict[str, Any]) -> Write:
    def write(path: Path) -> Path:
        Writer(path, architecture, **keys).write(experts=True, biased="qkv")
        return path

    return write


def write_qwen2moe(path: Path) -> Path:
    extra = {**ffn_tensors(HIDDEN, N_FF_EXPERT, "_shexp"), "ffn_gate_inp_shexp.weight": (HIDDEN,)}
    return write_plain(path, "qwen2moe", KEYS | EXPERT_KEYS, extra=extra)


def write_qwen3(path: Path) -> Path:
    return write_plain(path, "qwen3", KEYS, extra=QK_NORMS)


WRITERS: dict[str, Write] = {
    "dots1": lambda path: test_plain.write(path, "dots1"),
    "glm4moe": by_writer("glm4moe", GLM),
    "gpt-oss": by_writer("gpt-oss", WINDOW),
    "minimax-m2": test_minimax.write,
    "olmoe": test_olmo.write,
    "qwen2moe": write_qwen2moe,
    "qwen3": write_qwen3,
    "qwen35": lambda path: test_qwen_next.write(path, "qwen35", nextn_predict_layers=1, block_count=5),
}


def shape_without(path: Path, short_name: str, **changed: Any) -> ModelShape:
    """The shape of a file without the tensors of that name and with some keys changed."""
    file = open_gguf(path)
    name = file.metadata["general.architecture"]
    tensors = {one: info for one, info in file.tensors.items() if info.short_name != short_name}
    metadata = {**file.metadata, **{f"{name}.{key}": value for key, value in changed.items()}}
    return shape_from_gguf(metadata, tensors, "model.gguf")


@pytest.mark.parametrize(
    ("architecture", "tensor"),
    [
        ("dots1", "output.weight"),
        ("glm4moe", "exp_probs_b.bias"),
        ("gpt-oss", "output.weight"),
        ("gpt-oss", "attn_output.bias"),
        ("minimax-m2", "output.weight"),
        ("minimax-m2", "exp_probs_b.bias"),
        ("olmoe", "output.weight"),
        ("qwen2moe", "output.weight"),
    ],
)
def test_a_tensor_that_llama_cpp_needs(architecture: str, tensor: str, tmp_path: Path) -> None:
    path = WRITERS[architecture](tmp_path / "model.gguf")
    shape_without(path, "")
    with pytest.raises(
        HprofError, match=rf"tensor (blk.\d.)?{tensor} is missing, which the architecture {architecture} needs"
    ):
        shape_without(path, tensor)


def test_others_share_the_embedding(tmp_path: Path) -> None:
    assert shape_without(write_qwen3(tmp_path / "model.gguf"), "output.weight").tied_embeddings


@pytest.mark.parametrize(("key", "value"), [("block_count", 1), ("nextn_predict_layers", 1)])
def test_a_layer_more_than_the_metadata_say(key: str, value: int, tmp_path: Path) -> None:
    path = write_qwen3(tmp_path / "model.gguf")
    with pytest.raises(HprofError, match=r"it holds blk.1.attn_norm.weight, but its metadata say 1 layers"):
        shape_without(path, "", **{key: value})


def test_a_layer_of_prediction_is_left_out(tmp_path: Path) -> None:
    assert len(shape_without(WRITERS["qwen35"](tmp_path / "model.gguf"), "").layers) == 4
