"""Turns a column of JSON values into exact integers: never a nanosecond lost to a float."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_INT64_MAX: Final = 2**63 - 1
_MAX_NS: Final = 2**62  # so that a start and a duration still add up
_MAX_DIGITS: Final = 64
# A double below 2**43 us lies within 2**-11 us = 0.49 ns of its decimal text, and its product with 1000 is
# below 2**53: rounding gives the text's own nanosecond. From 2**43 us (102 days) up it may not.
EXACT_US: Final = 2.0**43


class InexactError(Exception):
    """A time came as a float too large to hold its nanoseconds; its text is needed."""


def exact_ns(values: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Microseconds (int, float, or decimal text) as (int64 ns, mask of those that are numbers in range).

    Digits below a nanosecond are rounded half to even. Raises InexactError where a float cannot be exact.
    """
    array = _plain_array(values)
    if array is None:
        return _three_decimals(values) or _slow_ns(values)
    with np.errstate(invalid="ignore"):
        valid = np.abs(array) < _MAX_NS // 1000
    if array.dtype.kind == "f":
        if (np.abs(array[valid]) >= EXACT_US).any():
            raise InexactError
        return np.rint(np.where(valid, array, 0) * 1000).astype(np.int64), valid
    return np.where(valid, array, 0) * 1000, valid


def integers(values: Sequence[Any]) -> pa.Array:
    """Whole numbers (int, or digits in a string: some writers quote them) as int64; null for all else."""
    if float not in set(map(type, values)):  # arrow would cut 1.5 down to 1
        try:
            return pa.array(values, pa.int64())
        except (pa.ArrowException, OverflowError):
            pass
    return pa.array([_int_of(value) for value in values], pa.int64())


def _plain_array(values: Sequence[Any]) -> NDArray[Any] | None:
    """`values` as int64 or float64; None when they hold anything but ints that fit and floats."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    if array.ndim != 1 or array.dtype.kind not in "if":
        return None
    # numpy turns True into 1 and, beside a float, a large int into a rounded float
    if array.dtype.kind == "f":
        return array if _all_exact_floats(values) else None
    return array.astype(np.int64, copy=False) if bool not in set(map(type, values)) else None


def _three_decimals(values: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
    """Text as Kineto itself writes microseconds: without its point it is the integer nanosecond."""
    if set(map(type, values)) != {str}:
        return None
    text = pa.array(values, pa.string())
    if not pc.all(pc.match_substring_regex(text, r"^-?[0-9]{1,15}\.[0-9]{3}$")).as_py():
        return None
    ns = pc.cast(pc.replace_substring(text, ".", "", max_replacements=1), pa.int64())
    return ns.to_numpy(), np.ones(len(values), dtype=bool)


def _all_exact_floats(values: Sequence[Any]) -> bool:
    types = set(map(type, values))
    if types == {float}:
        return True
    return types == {float, int} and all(abs(v) < EXACT_US for v in values if type(v) is int)


def _slow_ns(values: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    converted = [_ns_of(value) for value in values]
    valid = np.array([value is not None for value in converted], dtype=bool)
    return np.array([value or 0 for value in converted], dtype=np.int64), valid


def _ns_of(value: Any) -> int | None:
    if type(value) is float and abs(value) >= EXACT_US and abs(value) < _MAX_NS // 1000:
        raise InexactError
    if type(value) not in (int, float, str) or len(text := str(value)) > _MAX_DIGITS:
        return None
    try:
        ns = Decimal(text) * 1000
        return _in_range(int(ns.to_integral_value())) if ns.is_finite() and abs(ns) < _MAX_NS else None
    except InvalidOperation:
        return None


def _int_of(value: Any) -> int | None:
    if type(value) is int:
        return _in_range(value)
    if type(value) is float:
        return _in_range(int(value)) if value.is_integer() and abs(value) < 2**53 else None
    if type(value) is str and len(value) < 20:
        digits = value.removeprefix("-")
        return _in_range(int(value)) if digits.isascii() and digits.isdigit() else None
    return None


def _in_range(value: int) -> int | None:
    return value if abs(value) <= _INT64_MAX else None
