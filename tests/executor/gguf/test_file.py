"""The GGUF reader on good files: samples, the real model, and files that gguf's own writer made."""

from __future__ import annotations

import errno
import gc
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest
import torch

from executor.errors import HprofError
from executor.gguf.file import GgufFile, open_gguf
from executor.gguf.header import SkippedArray
from executor.quants import QUANTS, tensor_bytes
from tests.gguf_models import model_path
from tests.support import smollm2_path

SAMPLES = [
    "llama-dense-F16",
    "llama-dense-Q4_0",
    "llama-dense-Q4_K",
    "llama-dense-Q8_0",
    "qwen3-dense-Q8_0",
    "qwen3moe-e8k2-Q4_K",
    "qwen3moe-e8k2-Q8_0",
]


def content(quant: str, shape: tuple[int, ...]) -> np.ndarray:
    n_bytes = tensor_bytes(quant, shape) // int(np.prod(shape[:-1]))
    return np.random.default_rng(n_bytes).integers(0, 256, (*shape[:-1], n_bytes), dtype=np.uint8)


def write_model(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], **writer: int) -> dict[str, np.ndarray]:
    """A GGUF of random bytes by gguf's writer; returns what it holds."""
    out = gguf.GGUFWriter(path, "llama", **writer)
    held = {name: content(quant, shape) for name, (quant, shape) in tensors.items()}
    for name, (quant, _) in tensors.items():
        out.add_tensor(name, held[name], raw_dtype=gguf.GGMLQuantizationType[quant])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return held


def bytes_of(model: GgufFile, name: str) -> bytes:
    out = torch.zeros(model.tensors[name].n_bytes, dtype=torch.uint8)
    model.read_into(name, out)
    mapped = model.mapped(name)
    assert torch.equal(out, mapped)
    return out.numpy().tobytes()


def padded(n_bytes: int, alignment: int = gguf.GGUF_DEFAULT_ALIGNMENT) -> int:
    return -(-n_bytes // alignment) * alignment


@pytest.mark.parametrize("sample", SAMPLES)
def test_sample_sizes_add_up(sample: str) -> None:
    """The writer lays tensors one after the other, so header and padded tensors are the whole file."""
    path = model_path(sample)
    model = open_gguf(path)
    header = min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors)
    assert header + sum(padded(tensor.n_bytes) for tensor in model.tensors.values()) == path.stat().st_size


@pytest.mark.parametrize("sample", SAMPLES)
def test_sample_agrees_with_ggufs_reader(sample: str) -> None:
    path = model_path(sample)
    model = open_gguf(path)
    for theirs in gguf.GGUFReader(path).tensors:
        ours = model.tensors[theirs.name]
        assert (ours.quant, ours.n_bytes) == (theirs.tensor_type.name, theirs.n_bytes)
        assert list(ours.shape) == theirs.shape[::-1].tolist()
        assert bytes_of(model, theirs.name) == theirs.data.tobytes()


@pytest.mark.model
def test_real_model() -> None:
    model = open_gguf(smollm2_path())
    assert len(model.tensors) == 272
    assert model.tensors["blk.7.ffn_down.weight"].shape == (576, 1536)
    assert model.tensors["blk.7.ffn_down.weight"].quant == "Q4_1"
    assert model.metadata["tokenizer.ggml.tokens"] == SkippedArray("STRING", 49152)
    assert model.metadata["llama.block_count"] == 30


def test_every_quant_type_comes_back(tmp_path: Path) -> None:
    tensors = {f"blk.{i}.{quant}.weight": (quant, (3, 5, 512)) for i, quant in enumerate(QUANTS)}
    held = write_model(tmp_path / "all.gguf", tensors)
    model = open_gguf(tmp_path / "all.gguf")
    assert {name: (t.quant, t.shape) for name, t in model.tensors.items()} == tensors
    assert all(bytes_of(model, name) == held[name].tobytes() for name in tensors)


def test_metadata_of_every_type(tmp_path: Path) -> None:
    out = gguf.GGUFWriter(tmp_path / "meta.gguf", "llama")
    scalars: dict[str, int | str] = {
        "uint8": 255,
        "int8": -1,
        "uint16": 65535,
        "int16": -2,
        "uint32": 2**32 - 1,
        "int32": -3,
    }
    scalars |= {"uint64": 2**64 - 1, "int64": -(2**63), "bool": True, "string": "é<b>"}
    for kind, value in scalars.items():
        getattr(out, f"add_{kind}")(f"a.{kind}", value)
    out.add_float32("a.float32", 1.5)
    out.add_float64("a.float64", 0.1)
    out.add_array("a.numbers", [1, -2, 3])
    out.add_array("a.texts", ["x", ""])
    out.add_array("a.vocabulary", [f"token {i}" for i in range(5000)])
    out.add_array("a.scores", [0.5] * 5000)
    out.add_tensor("w", np.zeros((2, 2), np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    metadata = open_gguf(tmp_path / "meta.gguf").metadata
    assert {kind: metadata[f"a.{kind}"] for kind in scalars} == scalars
    assert (metadata["a.float32"], metadata["a.float64"]) == (1.5, 0.1)
    assert (metadata["a.numbers"], metadata["a.texts"]) == ([1, -2, 3], ["x", ""])
    assert metadata["a.vocabulary"] == SkippedArray("STRING", 5000)
    assert (metadata["a.scores"].item_type, len(metadata["a.scores"])) == ("FLOAT32", 5000)


def test_mapped_is_the_file_without_copy_or_warning(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_model(path, {"a.weight": ("Q4_0", (4, 64)), "b.weight": ("F32", (4, 8))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = open_gguf(path)
    before = model.mapped("b.weight")
    with path.open("r+b") as file:
        file.seek(-128, 2)
        file.write(b"\xaa" * 128)
    assert (before == 0xAA).all()


def test_mapped_outlives_the_model(tmp_path: Path) -> None:
    held = write_model(tmp_path / "m.gguf", {"a.weight": ("Q4_0", (4, 64))})
    mapped = open_gguf(tmp_path / "m.gguf").mapped("a.weight")
    assert mapped.numpy().tobytes() == held["a.weight"].tobytes()


def test_digest_names_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_model(path, {"a.weight": ("Q8_0", (4, 64)), "b.weight": ("F32", (4096, 8))})
    digest = open_gguf(path).digest()
    assert open_gguf(path).digest() == digest
    assert len(digest) == 16
    size, in_header = path.stat().st_size, path.read_bytes().index(b"a.weight")
    seen = {digest}
    for place in (in_header, size - 4096 * 32 - 100, size - 4096 * 16):  # a.weight's name, a byte of it, b's middle
        with path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
        seen.add(open_gguf(path).digest())
    assert len(seen) == 4


def test_file_cut_while_open(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_model(path, {"a.weight": ("F32", (64, 64))})
    model = open_gguf(path)
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(HprofError, match=r"m\.gguf: the file has become shorter"):
        model.read_into("a.weight", torch.zeros(64 * 64 * 4, dtype=torch.uint8))


def test_read_into_refuses_another_size(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", {"a.weight": ("F32", (2, 2))})
    with pytest.raises(ValueError, match="16 bytes"):
        open_gguf(tmp_path / "m.gguf").read_into("a.weight", torch.zeros(15, dtype=torch.uint8))


@pytest.fixture
def split_model(tmp_path: Path) -> tuple[list[Path], dict[str, np.ndarray]]:
    tensors = {f"blk.{i}.attn_q.weight": ("Q4_0", (8, 64)) for i in range(5)}
    held = write_model(tmp_path / "big.gguf", tensors, split_max_tensors=2)
    return sorted(tmp_path.glob("big-*.gguf")), held


def test_split_model_is_one_model(split_model: tuple[list[Path], dict[str, np.ndarray]]) -> None:
    paths, held = split_model
    assert [path.name for path in paths] == [f"big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    model = open_gguf(paths[0])
    assert list(model.tensors) == list(held)
    assert all(bytes_of(model, name) == held[name].tobytes() for name in held)
    assert model.metadata["general.architecture"] == "llama"


def test_split_model_that_is_not_whole(split_model: tuple[list[Path], dict[str, np.ndarray]]) -> None:
    first, second, third = split_model[0]
    with pytest.raises(HprofError, match=r"not the first part of the model; give big-00001-of-00003\.gguf"):
        open_gguf(second)
    content_of = {path: path.read_bytes() for path in (first, second, third)}
    second.write_bytes(content_of[third])
    with pytest.raises(HprofError, match=r"00002-of-00003\.gguf: its header does not say that it is part 2"):
        open_gguf(first)
    second.unlink()
    with pytest.raises(HprofError, match=r"big-00002-of-00003\.gguf: no such file"):
        open_gguf(first)
    renamed = first.rename(first.with_name("model.gguf"))
    with pytest.raises(HprofError, match=r"must be named NAME-00001-of-COUNT\.gguf"):
        open_gguf(renamed)


@pytest.mark.parametrize(
    ("content_of_file", "expected"),
    [(None, "no such file"), (b"", "only 0 bytes"), (b"GGUF\3\0\0", "only 7 bytes"), (b"PK" * 99, "not a GGUF file")],
)
def test_not_a_model(content_of_file: bytes | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    if content_of_file is not None:
        path.write_bytes(content_of_file)
    with pytest.raises(HprofError, match=rf"x\.gguf: {expected}"):
        open_gguf(path)


def test_folders_pipes_and_impossible_names(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(HprofError, match="not a file; give a model's path"):
            open_gguf(path)
    with pytest.raises(HprofError, match=r"cannot be read \(File name too long\)"):
        open_gguf(tmp_path / ("x" * 300))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    write_model(tmp_path / "m.gguf", {"a.weight": ("F32", (2, 2))})
    monkeypatch.setattr(os, "open", refuse)  # root may read anything, whatever the file's mode
    with pytest.raises(HprofError, match=r"m\.gguf: cannot be read \(Permission denied\)"):
        open_gguf(tmp_path / "m.gguf")


def test_closes_its_file(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", {"a.weight": ("F32", (2, 2))})
    gc.collect()  # tests before may have left files in the frames of their exceptions
    before = psutil.Process().num_fds()
    models = [open_gguf(tmp_path / "m.gguf") for _ in range(10)]
    assert psutil.Process().num_fds() > before
    del models
    gc.collect()
    assert psutil.Process().num_fds() == before


def test_will_need_takes_every_tensor_of_a_file() -> None:
    file = open_gguf(model_path("llama-dense-Q4_0"))
    for name, info in file.tensors.items():
        file.will_need(name)
        assert file.mapped(name).numel() == info.n_bytes
