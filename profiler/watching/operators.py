"""What an operator of PyTorch does to its tensors, by its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import torch

_ALLOCATIONS: Final = {
    *("empty", "empty_strided", "empty_permuted", "empty_like", "new_empty", "new_empty_strided"),
}
_VIEWS: Final = {"_unsafe_view"}
"""Share their input's memory, though their schema does not say so."""
_METADATA: Final = {
    *(
        "set_",
        "resize_",
        "as_strided_",
        "squeeze_",
        "unsqueeze_",
        "t_",
        "transpose_",
        "swapaxes_",
        "detach_",
        "is_pinned",
    ),
}
"""Change a tensor and none of its bytes, though their schema says that they write, or read nothing."""

Kind = Literal["launch", "copy", "allocate", "view", "lend"]


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator. `written` are the places and names of the arguments that it writes."""

    name: str
    kind: Kind
    written: tuple[tuple[int, str], ...]

    def touched(
        self, inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Those of its `inputs`, the tensors among its arguments, that it reads, and those that it writes."""
        given = [args[place] if place < len(args) else kwargs.get(name) for place, name in self.written]
        written = tensors_in(given)
        return [one for one in inputs if all(one is not other for other in written)], written


@cache
def operator_of(func: Any) -> Operator:
    """What `func`, an overload that is dispatched, is."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    written = tuple(
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    return Operator(name, _kind(name, schema, is_writing=bool(written)), written)


def _kind(name: str, schema: Any, *, is_writing: bool) -> Kind:
    if name == "record_stream":
        return "lend"
    if name in _ALLOCATIONS:
        return "allocate"
    if name in ("copy_", "_to_copy"):
        return "copy"
    shares = bool(schema.returns) and all(one.alias_info is not None for one in schema.returns)
    return "view" if name in _VIEWS | _METADATA or (shares and not is_writing) else "launch"


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in their order."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, tuple | list):
        return []
    return [tensor for one in values for tensor in tensors_in(one)]


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether its bytes are known: not of sparse tensors, nor of tensors that are made of others."""
    return tensor.layout == torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)
