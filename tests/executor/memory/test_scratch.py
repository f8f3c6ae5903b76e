"""What a step is said to need for a while is what it holds, and no more."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from executor.devices.factory import DeviceOptions
from executor.layers import dense, widened_experts
from executor.memory import scratch
from executor.model import Model, MoeFfn
from executor.models.load import load_model
from executor.reference import KeptWeights
from executor.session import SessionOptions

MIB = 1 << 20
N_ROWS = 64
pytestmark = pytest.mark.usefixtures("without_kernels")


def options(**changes: Any) -> SessionOptions:
    return SessionOptions(DeviceOptions("cuda"), 4096, N_ROWS, 16, torch.bfloat16, **changes)


def counted(model: Model, *, has_output: bool = False, all_logits: bool = False, **changes: Any) -> int:
    first, *_ = range(len(model.shape.layers))
    return scratch.scratch_bytes(
        model, [first], options=replace(options(), **changes), has_output=has_output, all_logits=all_logits
    )


class LiveBytes(TorchFunctionMode):
    """The most bytes that results of operators held at once."""

    def __init__(self) -> None:
        super().__init__()
        self._users: dict[int, int] = {}
        self._live: int = 0
        self.peak: int = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        before = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in before:
                self._hold(tensor)
        return found

    def _hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        at, n_bytes = storage.data_ptr(), storage.nbytes()
        if at not in self._users:
            self._users[at] = 0
            self._live += n_bytes
            self.peak = max(self.peak, self._live)
        self._users[at] += 1
        weakref.finalize(tensor, self._let_go, at, n_bytes)

    def _let_go(self, at: int, n_bytes: int) -> None:
        self._users[at] -= 1
        if not self._users[at]:
            del self._users[at]
            self._live -= n_bytes


def held_by(step: Callable[[], object]) -> int:
    live = LiveBytes()
    with live:
        step()
    return live.peak


class Dequantised(KeptWeights):
    """A layer that makes a matrix whenever one is asked for, as a device does."""

    def __init__(self, model: Model) -> None:
        flat = torch.tensor(0.01, dtype=torch.bfloat16)
        layer = {name.removeprefix("blk.0."): info.shape for name, info in model.tensors.items()}
        super().__init__({name: flat.expand(shape) for name, shape in layer.items()})  # of one number's memory

    def __call__(self, short_name: str) -> torch.Tensor:
        return self.tensors[short_name].clone(memory_format=torch.contiguous_format)

    def one(self, name: str, expert: int) -> torch.Tensor:
        return self.tensors[name][expert].clone(memory_format=torch.contiguous_format)

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        return self.tensors[name][ids]


def test_a_dense_ffn() -> None:
    model = load_model("tiny-dense")
    ffn, x = model.shape.layers[0].ffn, torch.ones(N_ROWS, model.shape.hidden, dtype=torch.bfloat16)
    assert not isinstance(ffn, MoeFfn)
    held = held_by(partial(dense.added_by_ffn, x, Dequantised(model), ffn, 1e-6))
    assert 0.9 * held < counted(model) <= held


def test_experts_one_by_one() -> None:
    model = load_model("tiny-moe")
    moe, h = model.shape.layers[0].ffn, torch.ones(N_ROWS, model.shape.hidden, dtype=torch.bfloat16)
    assert isinstance(moe, MoeFfn)
    ids = torch.arange(N_ROWS * moe.n_used).remainder(moe.n_experts).view(N_ROWS, -1)
    held = held_by(partial(widened_experts.looped_experts, h, ids, Dequantised(model), moe, None))
    assert 0.9 * held < counted(model, device=DeviceOptions("cpu")) <= held


def test_one_tokens_experts() -> None:
    model = load_model("tiny-moe")
    moe, h = model.shape.layers[0].ffn, torch.ones(1, model.shape.hidden, dtype=torch.bfloat16)
    assert isinstance(moe, MoeFfn)
    ids = torch.arange(moe.n_used).view(1, -1)
    held = held_by(partial(widened_experts.one_token_experts, h, ids, Dequantised(model), moe, None))
    assert 0.9 * held < counted(model, max_ubatch=1) <= held


def test_experts_in_grouped_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def grouped(rows: torch.Tensor, stack: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return rows.new_empty(len(rows), stack.shape[-1])

    monkeypatch.setattr(widened_experts, "grouped_mm", grouped)
    model = load_model("tiny-moe")
    moe, h = model.shape.layers[0].ffn, torch.ones(N_ROWS, model.shape.hidden, dtype=torch.bfloat16)
    assert isinstance(moe, MoeFfn)
    ids = torch.arange(N_ROWS * moe.n_used).remainder(moe.n_experts).view(N_ROWS, -1)
    flags = torch.ones(moe.n_experts, dtype=torch.uint8)
    held = held_by(partial(widened_experts.grouped_experts, h, ids, Dequantised(model), moe, None, flags))
    assert 0.9 * held < counted(model) <= held


def test_the_output_matrix_where_it_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one row, which kernels read as stored; for all rows of a ubatch it is widened anyway."""
    model = load_model("llama-3.1-8b", layers=2)
    n_bytes = 128256 * 4096 * 2
    assert counted(model, has_output=True) == n_bytes
    monkeypatch.setattr(scratch, "reads_stored", lambda quant, n_rows, dtype: n_rows <= 16)
    assert counted(model, has_output=True) == counted(model) < n_bytes
    assert counted(model, has_output=True, all_logits=True) == n_bytes
    assert counted(model, has_output=True, device=DeviceOptions("cpu")) == n_bytes


def test_few_rows_read_weights_as_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("llama-3.1-8b", layers=2)
    monkeypatch.setattr(scratch, "reads_stored", lambda quant, n_rows, dtype: True)
    assert counted(model, max_ubatch=1) < MIB
    bf16 = load_model("llama-3.1-8b", quant="BF16", layers=2)
    assert counted(bf16, has_output=True, max_ubatch=1) < MIB  # its bytes are numbers already


def test_a_simulated_gpu_reads_few_rows_weights_as_they_are_stored() -> None:
    """As its times are of it: with the output matrix widened, advice would keep that much less on the device."""
    model, sim = load_model("llama-3.1-8b", layers=1), DeviceOptions("sim")
    of_layer = counted(model, device=sim)
    assert counted(model, device=sim, has_output=True) == of_layer
    widened = model.shape.n_vocab * model.shape.hidden * 2
    assert counted(model, device=sim, has_output=True, dtype=torch.float32) == 2 * widened
    assert counted(model, device=sim, has_output=True, all_logits=True) >= widened


def test_rows_of_a_large_ubatch_go_in_pieces() -> None:
    model = load_model("llama-3.1-8b", layers=2)
    one, two = (counted(model, max_ubatch=n) for n in (4096, 8192))
    assert two - one == 4096 * 4096 * 2  # the normed rows alone


def test_a_last_layer_has_one_row() -> None:
    model = load_model("llama-3.1-8b", layers=1)
    assert counted(model) < counted(load_model("llama-3.1-8b", layers=2)) == counted(model, all_logits=True)


def test_what_only_the_host_computes_with_is_not_counted() -> None:
    model = load_model("llama-3.1-8b", layers=2)
    ffn = {name for name in model.tensors if ".ffn_" in name}
    found = scratch.scratch_bytes(model, [0], options=options(), has_output=False, all_logits=False, elsewhere=ffn)
    assert found == 4096 * 4096 * 2  # attention's largest
