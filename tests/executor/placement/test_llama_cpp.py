"""Placements that llama.cpp's own log says.

The strings are what benchmarks/placements.py printed for `llama-bench -v` of llama.cpp 0.5.0-dev (the source archive
of llama-cpp-python 0.3.36) with two rpc-servers as devices, a dense model of 8 layers and a MoE model of 6. The layer
after the last is the output.
"""

from __future__ import annotations

import pytest

from benchmarks.placements import CASES, Case, Placed, by_hprof, by_llama_cpp
from executor.devices.factory import DeviceOptions
from executor.errors import HprofError
from executor.model import Model
from executor.models.load import load_model
from executor.placement.place import layers_to_devices, place
from executor.session import Session, SessionOptions

LOGGED = {
    "-ngl 0": "CPU: 0-8; 56 matrices on the host",
    "-ngl 1": "CPU: 0-7; 0: 8; 56 matrices on the host",
    "-ngl 2": "CPU: 0-6; 0: 7-8; 49 matrices on the host",
    "-ngl 8": "CPU: 0; 0: 1-8; 7 matrices on the host",
    "-ngl 9": "0: 0-8; 0 matrices on the host",
    "-ngl 99": "0: 0-8; 0 matrices on the host",
    "-ngl -1": "0: 0-8; 0 matrices on the host",
    "-ngl 99 -ts 1/1": "0: 0-4; 1: 5-8; 0 matrices on the host",
    "-ngl 99 -ts 3/1": "0: 0-6; 1: 7-8; 0 matrices on the host",
    "-ngl 5 -ts 1/1": "CPU: 0-3; 0: 4-6; 1: 7-8; 28 matrices on the host",
    "-ngl 7 -ts 1/3": "CPU: 0-1; 0: 2-3; 1: 4-8; 14 matrices on the host",
    "-ngl 2 -ts 1/1": "CPU: 0-6; 0: 7; 1: 8; 49 matrices on the host",
    r"-ngl 99 -ot ffn_(gate|up|down).*=CPU": "0: 0-8; 24 matrices on the host",
    r"-ngl 99 -ot blk\.[0-2]\.ffn_up=CPU;attn_k=CPU": "0: 0-8; 11 matrices on the host",
    r"-ngl 99 -ot blk\.[[:digit:]]\.ffn_down=CPU -ts 1/1": "0: 0-4; 1: 5-8; 8 matrices on the host",
    r"-ngl 4 -ot blk\.7\.=CPU": "CPU: 0-4; 0: 5-8; 42 matrices on the host",
    "-ngl 99 -ncmoe 2": "0: 0-6; 6 matrices on the host",
    "-ngl 3 -ncmoe 6": "CPU: 0-3; 0: 4-6; 34 matrices on the host",
    r"-ngl 99 -ot blk\.5\.ffn_.*_exps=CPU -ncmoe 1 -ts 1/1": "0: 0-3; 1: 4-6; 6 matrices on the host",
}


@pytest.fixture(scope="module")
def models() -> dict[bool, Model]:
    return {of_moe: load_model(name) for of_moe, name in ((False, "tiny-dense"), (True, "tiny-moe"))}


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case.words))
def test_layers_and_matrices_lie_where_llama_cpp_logs_them(case: Case, models: dict[bool, Model]) -> None:
    assert str(by_hprof(case, models[case.of_moe])) == LOGGED[" ".join(case.words)]


def test_a_log_is_read(models: dict[bool, Model]) -> None:
    """A layer's line names its device and more; a tensor's line its buffer; norms are no matrices."""
    lines = [
        f"load_tensors: layer {i:3d} assigned to device {'CPU' if i < 6 else 'RPC0'}, is_swa = 0" for i in range(9)
    ]
    lines.append("tensor blk.7.attn_k.weight (0 MiB q8_0) buffer type overridden to CPU")
    lines.append("tensor blk.7.attn_norm.weight (0 MiB f32) buffer type overridden to CPU")
    found = by_llama_cpp("\n".join(lines), models[False])
    assert found.devices == (-1,) * 6 + (0,) * 3
    assert len(found.host) == 6 * 7 + 1
    assert "blk.7.attn_k.weight" in found.host
    assert str(Placed((-1, 0, 0), frozenset({"a"}))) == "CPU: 0; 0: 1-2; 1 matrices on the host"


def test_a_split_of_too_few_layers_is_refused_with_what_to_do() -> None:
    with pytest.raises(HprofError, match=r"^-ngl 1 leaves --n-devices 2 1 of 9 layers to split.* larger -ngl"):
        layers_to_devices(8, (1, 1), first_split_layer=8)
    with pytest.raises(HprofError, match=r"^-ngl 0 leaves -ts 3/1 0 of 9 layers"):
        layers_to_devices(8, (3, 1), first_split_layer=9)


def test_what_is_not_split_runs_on_the_first_device(models: dict[bool, Model]) -> None:
    """llama.cpp's scheduler asks its devices in order which takes a product whose weight lies in host memory."""
    assert layers_to_devices(8, (1, 1), first_split_layer=4) == [0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert place(models[False].tensors, n_gpu_layers=5).first_split_layer == 4
    assert place(models[False].tensors, n_gpu_layers=-1).first_split_layer == 0


def test_a_session_gives_its_devices_the_layers_of_the_placement(models: dict[bool, Model]) -> None:
    """Also beside `full`, whose own placement keeps everything."""
    options = SessionOptions(DeviceOptions("sim", n_devices=2), max_positions=8, max_ubatch=8, max_ubatches=1)
    session = Session(models[False], place(models[False].tensors, n_gpu_layers=5), ["off", "full"], options)
    try:
        assert [list(shard.layers) for shard in session.shards] == [[0, 1, 2, 3, 4, 5, 6], [7]]
        assert {unit.layer for unit in session.units} == {0, 1, 2, 3}
    finally:
        session.close()
