"""Matrices stored as one: their parts have the bytes that they have where they are stored apart."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from executor.model import Model
from executor.models.load import load_model
from executor.placement.place import place
from executor.weights.transfer_units import LoadMode
from tests.executor.engine_runs import open_session, run_pass
from tests.gguf_models import model_path

FUSED = {
    "attn_qkv.weight": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "ffn_gate_up_exps.weight": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "ffn_up.weight": ("ffn_gate.weight", "ffn_up.weight"),
}


def fused_copy(plain: Path, path: Path, *wholes: str) -> Path:
    """The same model with the tensors of each of `wholes` joined row by row, as converters do it."""
    reader = gguf.GGUFReader(plain)
    writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, field.contents(), field.types[0])
    joined = {part: whole for whole in wholes for part in FUSED[whole]}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in tensors.items():
        prefix, short_name = name[: name.find(".", 4) + 1], name[name.find(".", 4) + 1 :]
        data, whole = np.asarray(tensor.data), joined.get(short_name)
        if whole is not None:
            if short_name != FUSED[whole][0]:
                continue
            parts = [np.asarray(tensors[prefix + part].data) for part in FUSED[whole]]
            name, data = prefix + whole, np.concatenate(parts, axis=-2)
        writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def bytes_of(model: Model, name: str) -> torch.Tensor:
    out = torch.empty(model.tensors[name].n_bytes, dtype=torch.uint8)
    model.source.read_into(name, out)
    return out


@pytest.fixture(scope="module", params=["llama-dense-Q4_K", "qwen3moe-e8k2-Q8_0"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model's file, and the same with what can be fused."""
    plain = model_path(request.param)
    return plain, fused_copy(plain, tmp_path_factory.mktemp("fused") / "fused.gguf", *FUSED)


def test_parts_are_the_tensors_that_they_would_be_apart(pair: tuple[Path, Path]) -> None:
    plain, fused = (load_model(str(path)) for path in pair)
    assert fused.shape == plain.shape
    assert fused.tensors == plain.tensors
    for name in plain.tensors:
        assert torch.equal(bytes_of(fused, name), bytes_of(plain, name)), name
        mapped = fused.source.mapped(name)
        if mapped is None:
            assert "_exps" in name
        else:
            assert torch.equal(mapped, bytes_of(plain, name)), name


@pytest.mark.parametrize("load_mode", ["none", "mmap", "register"])
def test_a_fused_model_computes_the_same(pair: tuple[Path, Path], load_mode: LoadMode) -> None:
    logits = []
    for path in pair:
        with open_session(str(path), ["on"], overrides="attn_|ffn_=CPU", load_mode=load_mode) as session:
            logits.append(run_pass(session, "on")[1])
    assert logits[0] is not None
    assert logits[1] is not None
    assert torch.equal(logits[0], logits[1])


def test_placement_knows_the_parts(pair: tuple[Path, Path]) -> None:
    plain, fused = (load_model(str(path)) for path in pair)
    assert place(fused.tensors, overrides="attn_k=CPU").host == place(plain.tensors, overrides="attn_k=CPU").host
