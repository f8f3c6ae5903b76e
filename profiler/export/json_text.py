"""Builds JSON text a column at a time: one arrow call joins the pieces of a hundred thousand rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from profiler.arithmetic.intervals import Int64


def join(*pieces: str | pa.Array) -> pa.Array:
    """The pieces of each row put together; constants are repeated."""
    return pc.binary_join_element_wise(*pieces, "")


def quoted(labels: pa.Array) -> pa.Array:
    """A label column as JSON strings, null as null. Each distinct text is escaped once."""
    encoded = labels if pa.types.is_dictionary(labels.type) else labels.dictionary_encode()
    texts = [escaped(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def escaped(text: str | None) -> str:
    """A JSON string that is also safe inside a <script>: no `<` stays."""
    return orjson.dumps(text or "").decode().replace("<", "\\u003c")


def microseconds(ns: Int64) -> pa.Array:
    """Nanoseconds >= 0 as microseconds with three decimals, exactly."""
    whole, rest = np.divmod(ns, 1000)
    return join(numbers(whole), ".", pc.utf8_lpad(numbers(rest), 3, "0"))


def numbers(values: NDArray[np.integer]) -> pa.Array:
    """Integers as text."""
    return pa.array(values).cast(pa.string())


def decimals(values: NDArray[np.floating], digits: int) -> pa.Array:
    """Floats as text with at most `digits` decimals, null where they are not finite."""
    rounded = np.round(values, digits)
    return pa.array(rounded, mask=~np.isfinite(rounded)).cast(pa.string())


def fields(named: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """`"name":value,...` of the values that are not null, without braces."""
    parts = [pc.if_else(pc.is_valid(values), join(f'"{name}":', values), None) for name, values in named]
    return pc.binary_join_element_wise(*parts, ",", null_handling="skip")
