"""Triton's kernels compiled for an H200 on a machine without a GPU, as their launchers ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel
from triton.runtime.jit import JITFunction

_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
H200 = GPUTarget("cuda", 90, 32)


def compiled_for_h200(launch: Callable[[], object], patch: pytest.MonkeyPatch) -> list[str]:
    """Compile each kernel that `launch` launches, and run none; their names. Triton's errors where one does not."""
    names: list[str] = []

    def run(kernel: Any, *values: Any, grid: Any, warmup: bool, **named: Any) -> None:
        parameters = {p.name for p in kernel.params}
        options = {name: value for name, value in named.items() if name not in parameters}
        given = dict(zip((p.name for p in kernel.params), values, strict=False)) | named
        signature, constants = {}, {}
        for parameter in kernel.params:
            value = given[parameter.name]
            signature[parameter.name] = "constexpr" if parameter.is_constexpr else _type_of(value)
            if signature[parameter.name] == "constexpr":
                constants[parameter.name] = value
        compile_kernel(ASTSource(fn=kernel, signature=signature, constexprs=constants), target=H200, options=options)
        names.append(kernel.fn.__name__)

    patch.setattr(JITFunction, "run", run)
    launch()
    return names


def _type_of(value: object) -> str:
    match value:
        case torch.Tensor():
            return _TYPES[value.dtype]
        case float():
            return "fp32"
        case int():
            return "i32"
        case None:
            return "constexpr"
    raise TypeError(f"a kernel was given {type(value).__name__}")
