"""A frozen dataclass from a plain table, with every key and type checked."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from executor.errors import HprofError

T = TypeVar("T")


def build(cls: type[T], table: Mapping[str, Any], where: str, **given: Any) -> T:
    """An instance of `cls` from `table` and `given`; HprofError for an unknown, missing or mistyped key."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in table:
        if key not in fields or key in given:
            near = difflib.get_close_matches(key, fields, n=1)
            raise HprofError(f"{where}: unknown key {key!r}{f', did you mean {near[0]}?' if near else ''}")
    values = {key: _convert(hints[key], value, f"{where}.{key}") for key, value in table.items()} | given
    missing = [n for n, f in fields.items() if n not in values and f.default is dataclasses.MISSING]
    if missing:
        raise HprofError(f"{where}: the key {missing[0]!r} is missing.")
    return cls(**values)


def _convert(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return build(kind, value, where)
    if kind is float and type(value) is int:
        return float(value)
    origin = typing.get_origin(kind)
    if origin is tuple and isinstance(value, list):
        return tuple(value)
    allowed = typing.get_args(kind)
    if origin is typing.Literal:
        fits = value in allowed
    elif origin in (types.UnionType, typing.Union):
        fits = type(value) in allowed
    else:
        fits = type(value) is kind
    if not fits:
        wanted = ", ".join(map(str, allowed)) if allowed else getattr(kind, "__name__", str(kind))
        raise HprofError(f"{where} is {value!r}, but must be {wanted}.")
    return value
