"""The GGUF reader on files that are cut, lie, or are damaged: one sentence each time, in bounded time and memory."""

from __future__ import annotations

import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from executor.gguf.file import GgufFile, open_gguf
from executor.gguf.header import SkippedArray
from tests.executor.gguf.test_file import write_model

F32, Q4_0 = int(GGMLQuantizationType.F32), int(GGMLQuantizationType.Q4_0)
U8, U32, STRING, ARRAY = (int(GGUFValueType[kind]) for kind in ("UINT8", "UINT32", "STRING", "ARRAY"))


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def field(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, length: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + items


def tensor(
    name: str | bytes, dims: tuple[int, ...], kind: int = F32, offset: int = 0, n_dims: int | None = None
) -> bytes:
    n_dims = len(dims) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", n_dims, *dims, kind, offset)


def gguf_bytes(
    *tensors: bytes,
    fields: tuple[bytes, ...] = (),
    n_tensors: int | None = None,
    n_fields: int | None = None,
    version: int = 3,
    data: int = 4096,
) -> bytes:
    counts = (len(tensors) if n_tensors is None else n_tensors, len(fields) if n_fields is None else n_fields)
    header = struct.pack("<4sIQQ", b"GGUF", version, *counts) + b"".join(fields) + b"".join(tensors)
    return header + bytes(-len(header) % 32 + data)


GOOD = tensor("a.weight", (8, 4))

LIES = {
    "no tensors": (gguf_bytes(), "holds no tensors"),
    "2^60 tensors": (gguf_bytes(GOOD, n_tensors=2**60), "claims 1,152,921,504,606,846,976 tensors"),
    "one tensor more": (gguf_bytes(GOOD, n_tensors=2, data=0), "tensor .. claims 0 dimensions"),
    "2^63 fields": (gguf_bytes(GOOD, n_fields=2**63), "metadata fields"),
    "name of 2^62": (gguf_bytes(struct.pack("<Q", 2**62) + GOOD[8:]), "a tensor's name claims to be 4,611,686"),
    "string of 2^62": (
        gguf_bytes(GOOD, fields=(field("k", STRING, struct.pack("<Q", 2**62)),)),
        "field 'k' claims to be",
    ),
    "string past the end": (
        gguf_bytes(GOOD, fields=(field("k", STRING, struct.pack("<Q", 2**20)),)),
        "the file ends at byte [0-9,]+, inside the metadata field 'k'",
    ),
    "array of 2^61": (
        gguf_bytes(GOOD, fields=(field("k", ARRAY, array(U32, 2**61)),)),
        "items in the metadata field 'k'",
    ),
    "strings 2^40": (gguf_bytes(GOOD, fields=(field("k", ARRAY, array(STRING, 2**40)),)), "strings in the metadata"),
    "strings past the end": (
        gguf_bytes(GOOD, fields=(field("k", ARRAY, array(STRING, 5000)),), data=39_990),
        "inside the strings of the metadata field 'k'",
    ),
    "long string in a long array": (
        gguf_bytes(GOOD, fields=(field("k", ARRAY, array(STRING, 5000, struct.pack("<Q", 2**63))),), data=50_000),
        "inside the strings of the metadata field 'k'",
    ),
    "array of arrays": (
        gguf_bytes(GOOD, fields=(field("k", ARRAY, array(ARRAY, 1, array(ARRAY, 1, array(U8, 1)))),)),
        "'k' is an array of arrays",
    ),
    "array of nothing known": (
        gguf_bytes(GOOD, fields=(field("k", ARRAY, array(99, 1)),)),
        "array of the unknown type 99",
    ),
    "unknown value type": (gguf_bytes(GOOD, fields=(field("k", 13, b"\0" * 8),)), "'k' has the unknown type 13"),
    "key twice": (gguf_bytes(GOOD, fields=(field("k", U8, b"\1"),) * 2), "'k' appears twice"),
    "key not UTF-8": (gguf_bytes(GOOD, fields=(text(b"\xff") + struct.pack("<IB", U8, 1),)), "is not UTF-8"),
    "alignment 0": (
        gguf_bytes(GOOD, fields=(field("general.alignment", U32, bytes(4)),)),
        "alignment is 0, not a power",
    ),
    "alignment 33": (
        gguf_bytes(GOOD, fields=(field("general.alignment", U32, struct.pack("<I", 33)),)),
        "alignment is 33, not a power of two",
    ),
    "alignment a text": (
        gguf_bytes(GOOD, fields=(field("general.alignment", STRING, text("32")),)),
        "alignment is '32'",
    ),
    "version 1": (gguf_bytes(GOOD, version=1), "version 1 is not one of 2, 3"),
    "version 4": (gguf_bytes(GOOD, version=4), "version 4 is not one of 2, 3"),
    "big-endian": (gguf_bytes(GOOD, version=3 << 24), "a big-endian GGUF file"),
    "tensor twice": (gguf_bytes(GOOD, tensor("a.weight", (8, 4), offset=128)), "'a.weight' appears twice"),
    "tensors overlap": (gguf_bytes(GOOD, tensor("b.weight", (8, 4), offset=96)), "'a.weight' and 'b.weight' overlap"),
    "same place": (gguf_bytes(GOOD, tensor("b.weight", (8, 4))), "overlap"),
    "offset outside": (gguf_bytes(tensor("a.weight", (8, 4), offset=2**40)), "ends at byte 1,099,511,628,"),
    "offset 2^64 - 32": (gguf_bytes(tensor("a.weight", (8, 4), offset=2**64 - 32)), "but the file has only"),
    "offset not aligned": (gguf_bytes(tensor("a.weight", (8, 4), offset=4)), "offset 4, not a multiple of 32"),
    "last byte missing": (gguf_bytes(tensor("a.weight", (8, 128)), data=4095), "but the file has only"),
    "product overflows to 0": (gguf_bytes(tensor("a.weight", (2**32, 2**32))), "impossible shape"),
    "product overflows to 32": (gguf_bytes(tensor("a.weight", (2**63 + 16, 2))), "impossible shape"),
    "bytes overflow": (gguf_bytes(tensor("a.weight", (2**31, 2**31))), "but the file has only"),
    "a dimension of 0": (gguf_bytes(tensor("a.weight", (8, 0))), "impossible shape"),
    "no dimension": (gguf_bytes(tensor("a.weight", ())), "claims 0 dimensions"),
    "2^32 - 1 dimensions": (gguf_bytes(tensor("a.weight", (1,), n_dims=2**32 - 1)), "4,?294,?967,?295 dimensions"),
    "half a block": (gguf_bytes(tensor("a.weight", (48, 2), Q4_0)), "rows of 48 weights, .* Q4_0 blocks of 32"),
    "empty name": (gguf_bytes(tensor("", (8, 4))), "name '' is empty or not printable"),
    "escape in a name": (gguf_bytes(tensor("\x1b[2J", (8, 4))), r"name '\\x1b\[2J' is empty or not printable"),
    "block without number": (gguf_bytes(tensor("blk.x.ffn", (8, 4))), "not of the form blk.NUMBER.NAME"),
    "block without name": (gguf_bytes(tensor("blk", (8, 4))), "not of the form blk.NUMBER.NAME"),
    "parts without end": (
        gguf_bytes(GOOD, fields=(field("split.count", U32, struct.pack("<I", 2**31)),)),
        "says that it is one of 2147483648 parts",
    ),
    "parts a text": (gguf_bytes(GOOD, fields=(field("split.count", STRING, text("many")),)), "one of 'many' parts"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_get_one_sentence_each(lie: str, tmp_path: Path) -> None:
    raw, expected = LIES[lie]
    path = tmp_path / "lie.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    with pytest.raises(HprofError, match=expected) as caught:
        open_gguf(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5e6
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.endswith(".")
    assert "\n" not in message
    assert message.isprintable()


def test_the_good_twin_of_the_lies_opens(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(
        gguf_bytes(GOOD, tensor("b.weight", (8, 4), offset=128), fields=(field("k", U8, b"\1"),), version=2)
    )
    assert {name: t.shape for name, t in open_gguf(path).tensors.items()} == {"a.weight": (4, 8), "b.weight": (4, 8)}


def test_too_much_text_is_not_kept(tmp_path: Path) -> None:
    """A sparse file of 1 GB, all of it one string: refused before it is read."""
    path = tmp_path / "sparse.gguf"
    path.write_bytes(gguf_bytes(GOOD, fields=(field("k", STRING, struct.pack("<Q", 10**9)),)))
    with path.open("r+b") as file:
        file.truncate(2 * 10**9)
    with pytest.raises(HprofError, match="more than hprof accepts"):
        open_gguf(path)


def test_two_million_empty_strings_are_stepped_over(tmp_path: Path) -> None:
    path = tmp_path / "many.gguf"
    path.write_bytes(gguf_bytes(GOOD, fields=(field("k", ARRAY, array(STRING, 2_000_000, bytes(16_000_000))),)))
    assert open_gguf(path).metadata["k"] == SkippedArray("STRING", 2_000_000)


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_model(path, {f"blk.{i}.ffn_up.weight": ("Q4_0", (4, 64)) for i in range(4)} | {"norm": ("F32", (64,))})
    return path.read_bytes()


@pytest.mark.parametrize("twentieth", range(20))
def test_truncated(twentieth: int, model_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(model_bytes[: len(model_bytes) * twentieth // 20])
    with pytest.raises(HprofError, match=r"cut\.gguf: .*(ends at byte|only [0-9,]+ bytes|more than the file can hold)"):
        open_gguf(path)


def test_header_cut_at_every_byte(model_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for n_bytes in range(600):
        path.write_bytes(model_bytes[:n_bytes])
        with pytest.raises(HprofError):
            open_gguf(path)


def opened(path: Path) -> tuple[str, None] | tuple[None, GgufFile]:
    try:
        return None, open_gguf(path)
    except HprofError as error:
        return str(error), None


@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=8))
@settings(max_examples=400, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bits_open_or_get_one_sentence(
    flips: list[tuple[float, int]], model_bytes: bytes, tmp_path: Path
) -> None:
    raw = np.frombuffer(model_bytes, np.uint8).copy()
    header_bytes = len(raw) - 4 * 144 - 256
    for place, bit in flips:
        raw[int(place * header_bytes)] ^= 1 << bit
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw.tobytes())
    tracemalloc.start()
    message, model = opened(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 5e6
    assert message is None or (message.startswith(str(path)) and message.isprintable())
    if model is None:
        return
    for name, info in model.tensors.items():
        assert len(model.mapped(name)) == info.n_bytes
        assert math.prod(info.shape) > 0
        assert info.layer is None or info.layer >= 0


@given(raw=st.binary(max_size=400))
@settings(max_examples=200, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_after_the_magic(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.gguf"
    path.write_bytes(struct.pack("<4sI", b"GGUF", 3) + raw)
    with pytest.raises(HprofError):
        open_gguf(path)
