"""Values that a file states about a model, read with a check: each has a type and a range, or one sentence says not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executor.errors import HprofError

_MAX_INTEGER: Final = 2**31 - 1
_MAX_NUMBER: Final = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of one file under `prefix` (GGUF: `llama.`; a config: nothing); `origin` names it in messages."""

    values: Mapping[str, Any]
    origin: str
    prefix: str = ""

    def integer(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A whole number from `low` up; HprofError where it is absent (and has no default) or out of range."""
        return self._checked_integer(key, self._value(key, default), low)

    def integers(self, key: str, count: int, default: int | None = None, low: int = 1) -> tuple[int, ...]:
        """One whole number a layer: the file holds either one for all, or a list of at least `count`."""
        value = self._value(key, default)
        if not isinstance(value, list | tuple):
            return (self._checked_integer(key, value, low),) * count
        if len(value) < count:
            raise self.refusal(key, f"a list of {len(value)}", f"one number for each of {count} layers")
        return tuple(self._checked_integer(key, item, low) for item in value[:count])

    def number(self, key: str, default: float | None = None, above: float = 0.0) -> float:
        """A finite number greater than `above`."""
        value = self._value(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not above < value <= _MAX_NUMBER:  # nan compares with nothing
            raise self.refusal(key, value, f"a number above {above:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A truth value; 0 and 1 are taken too."""
        value = self._value(key, default)
        if not isinstance(value, bool | int):
            raise self.refusal(key, value, "true or false")
        return bool(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; HprofError where it is absent without a `default`."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.refusal(key, value, "a text")
        return value

    def texts(self, key: str, count: int, known: tuple[str, ...]) -> tuple[str, ...]:
        """A list of `count` texts, each one of `known`."""
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) < count or not set(map(str, value)) <= set(known):
            raise self.refusal(key, value, f"a list of {count}, each one of {', '.join(known)}")
        return tuple(value[:count])

    def table(self, key: str) -> Fields:
        """The values in the table under `key`; none where it is absent or null."""
        value = self.values.get(self.prefix + key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.refusal(key, value, "a table")
        return Fields(value, f"{self.origin}: {key}")

    def has(self, key: str) -> bool:
        """Whether the value is there, and not null."""
        return self.values.get(self.prefix + key) is not None

    def refusal(self, key: str, value: object, wanted: str) -> HprofError:
        """What to raise where the value of `key` cannot be."""
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}…"
        return HprofError(
            f"{self.origin}: the key {self.prefix}{key} is {shown}, but must be {wanted}; "
            "the file is damaged or not what it says, fetch or convert it again."
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(self.prefix + key)
        if value is None:
            value = default
        if value is None:
            raise HprofError(
                f"{self.origin}: the key {self.prefix}{key} is missing, without which the model's shape is not "
                "known; fetch or convert the model again."
            )
        return value

    def _checked_integer(self, key: str, value: Any, low: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= _MAX_INTEGER:
            raise self.refusal(key, value, f"a whole number from {low} to {_MAX_INTEGER}")
        return value
