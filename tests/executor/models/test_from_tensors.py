"""Files that hprof does not compute are told by their tensors, to all that computes nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest

import hprof
from executor.errors import HprofError
from executor.model import AttentionShape, DeltaNetShape, DenseFfn, MlaShape, MoeFfn
from executor.models.load import load_model

HIDDEN, N_FF, N_VOCAB = 256, 512, 1000
OUTER = {"token_embd.weight": (N_VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
SIM = ["-p", "64", "-n", "3", "-ub", "32", "--gpu", "rtx4090", "--link", "gen4x16"]
Dims = Mapping[str, tuple[int, ...]]


def write(path: Path, keys: Mapping[str, int | list[int]], layers: list[Dims], quant: str = "F32") -> str:
    """A file of an architecture that nobody knows: matrices in `quant`, all zeros."""
    writer, kind = gguf.GGUFWriter(path, "odd-arch"), gguf.GGMLQuantizationType[quant]
    for key, value in keys.items():
        (writer.add_array if isinstance(value, list) else writer.add_uint32)(f"odd-arch.{key}", value)
    inner = {f"blk.{i}.{name}": dims for i, layer in enumerate(layers) for name, dims in layer.items()}
    size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    for name, dims in (OUTER | inner).items():
        if quant == "F32" or len(dims) == 1:
            writer.add_tensor(name, np.zeros(dims, np.float32))
        else:
            raw = np.zeros((*dims[:-1], dims[-1] // size * n_bytes), np.uint8)
            writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


JOINED = {"attn_qkv.weight": (3 * HIDDEN, HIDDEN), "attn_output.weight": (HIDDEN, HIDDEN)}
NO_GATE = {"ffn_up.weight": (N_FF, HIDDEN), "ffn_down.weight": (HIDDEN, N_FF)}
EXPERTS = {
    "attn_q.weight": (HIDDEN, HIDDEN),
    "attn_k.weight": (128, HIDDEN),
    "attn_v.weight": (128, HIDDEN),
    "ffn_gate_inp.weight": (16, HIDDEN),
    "ffn_gate_up_exps.weight": (16, 2 * HIDDEN, HIDDEN),
    "ffn_down_exps.weight": (16, HIDDEN, HIDDEN),
}
STATES = {"ssm_in.weight": (2 * HIDDEN, HIDDEN), "ssm_out.weight": (HIDDEN, HIDDEN)}
LATENT = {"attn_kv_a_mqa.weight": (64 + 16, HIDDEN), "attn_kv_b.weight": (4 * 64, 64), **NO_GATE}


def test_what_the_tensors_say_is_the_shape(tmp_path: Path) -> None:
    keys: dict[str, int | list[int]] = {"attention.head_count": 4, "attention.head_count_kv": [4, 2, 2, 4]}
    keys |= {"expert_used_count": 3, "attention.kv_lora_rank": 64, "attention.key_length": 48}
    layers: list[Dims] = [JOINED | NO_GATE, EXPERTS, STATES, LATENT]
    path = write(tmp_path / "odd.gguf", keys, layers)
    with pytest.raises(HprofError, match="does not run the architecture 'odd-arch'"):
        load_model(path)
    model = load_model(path, computes=False)
    first, second, third, fourth = model.shape.layers
    assert isinstance(first.mixer, AttentionShape)
    assert first.ffn == DenseFfn(N_FF)
    assert isinstance(second.mixer, AttentionShape)
    assert (second.mixer.n_heads, second.mixer.n_kv_heads) == (4, 2)
    assert second.ffn == MoeFfn(n_experts=16, n_used=3, n_ff_expert=HIDDEN)
    assert isinstance(third.mixer, DeltaNetShape)
    assert isinstance(fourth.mixer, MlaShape)
    assert "does not run the architecture 'odd-arch'" in model.shape.notes[0]
    assert any("ssm_…" in note for note in model.shape.notes)
    assert model.n_bytes == 4 * sum(math.prod(dims) for layer in (OUTER, *layers) for dims in layer.values())
    assert "blk.1.ffn_up_exps.weight" in model.tensors  # the halves of gate and up
    assert len(load_model(path, layers=2, computes=False).shape.layers) == 2


@pytest.mark.parametrize(
    ("keys", "layer"),
    [({"attention.head_count": 4}, JOINED | NO_GATE), ({"expert_used_count": 2}, EXPERTS), ({}, STATES)],
    ids=["no gate", "experts", "no attention"],
)
def test_all_that_computes_nothing_takes_it(
    keys: dict[str, int | list[int]], layer: Dims, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "odd.gguf", keys, [layer] * 3, quant="IQ2_XXS")
    assert hprof.main(["models", path, "--json"]) == 0
    assert "IQ2_XXS" in capsys.readouterr().out
    assert hprof.main(["predict", "-m", path, *SIM, "--arms", "off,on,cpu,full", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "does not run the architecture 'odd-arch'" in " ".join(found["notes"])
    assert all(arm["ttft_ns"]["median"] > 0 for arm in found["cells"][0]["arms"].values())
    for engine in ("hprof", "llama.cpp"):
        words = ["advise", "-m", path, "-p", "64", "-n", "3", *SIM[-4:], "--for", engine, "--vram-budget", "64MiB"]
        assert hprof.main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["best"]
    run = ["run", "-m", path, "-p", "64", "-n", "2", "-ub", "32", "-r", "1", "-o", str(tmp_path / "c")]
    assert hprof.main([*run, "--device", "cpu"]) == 2
    assert hprof.main([*run, "--device", "sim"]) == 0


@pytest.mark.parametrize("quant", ["IQ2_XXS", "TQ1_0"])
def test_a_known_architecture_in_a_type_that_is_not_unpacked(quant: str, tmp_path: Path) -> None:
    path = write(tmp_path / "odd.gguf", {}, [JOINED | NO_GATE], quant)
    size, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[quant]]
    embedding = load_model(path, computes=False).tensors["token_embd.weight"]
    assert embedding.n_bytes == N_VOCAB * HIDDEN // size * n_bytes


def test_a_file_without_layers_stays_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "odd.gguf", {}, [])
    with pytest.raises(HprofError, match="does not run the architecture"):
        load_model(path, computes=False)
