"""Which passes are measured, and the cell (what was asked of the model) that each of them belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from executor.errors import HprofError

CELL_FLAGS: Final = {"n_prompt": "-p", "n_gen": "-n", "n_ubatch": "-ub", "n_depth": "-d"}
CELL_KEYS: Final = list(CELL_FLAGS)
_SIZE_NAMES: Final = {name: flag.removeprefix("-") for name, flag in CELL_FLAGS.items()}
_SIZE_OF_NAME: Final = {flag: name for name, flag in _SIZE_NAMES.items()}
# an arm's own name may hold commas and equals signs: only these are taken out of it
_NAMED_SIZE: Final = re.compile(r"(?:^|,)(p|n|ub|d)=(\d{1,9})(?=,|$)", re.ASCII)


def is_warmup(passes: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of the `passes` table were warm-ups; a source that does not say which were has none."""
    return passes["warmup"].fillna(False).astype(bool)


def is_measured(passes: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of the `passes` table arms are judged by: those of a named arm that are no warm-ups."""
    return ~is_warmup(passes) & passes["arm"].notna()


def measured_passes(passes: pd.DataFrame) -> pd.DataFrame:
    """The rows of the `passes` table that figures are taken from."""
    return passes[is_measured(passes)]


@dataclass(frozen=True, slots=True)
class CellKey:
    """What was asked of the model; None: the source does not say."""

    n_prompt: int | None
    n_gen: int | None
    n_ubatch: int | None
    n_depth: int | None

    @property
    def sizes(self) -> tuple[int | None, int | None, int | None, int | None]:
        """The four, in the order of CELL_KEYS."""
        return self.n_prompt, self.n_gen, self.n_ubatch, self.n_depth

    @property
    def key(self) -> CellKey:
        """The sizes alone, to compare cells by."""
        return CellKey(*self.sizes)

    @property
    def n_tokens(self) -> int | None:
        """Tokens that go through the model in one pass."""
        if self.n_prompt is None or self.n_gen is None:
            return None
        return (self.n_prompt + self.n_gen) or None

    @property
    def largest_ubatch(self) -> int | None:
        """The tokens of the largest ubatch that ran: no more than the prompt has."""
        return min(self.n_ubatch, self.n_prompt) if self.n_ubatch and self.n_prompt else self.n_ubatch

    @property
    def flags(self) -> str:
        """`-p 512 -n 16 -ub 64 -d 0`: what to type to run this cell again."""
        stated = zip(CELL_FLAGS.values(), self.sizes, strict=True)
        return " ".join(f"{flag} {value}" for flag, value in stated if value is not None) or "all passes"

    def named(self, keys: Sequence[str] = tuple(CELL_KEYS)) -> str:
        """`ub=64,d=0`: the cell by its sizes of these keys, as `--cell` and `hprof compare` take it."""
        stated = {key: size for key, size in zip(CELL_KEYS, self.sizes, strict=True) if size is not None}
        return ",".join(f"{_SIZE_NAMES[key]}={stated[key]}" for key in keys if key in stated)

    def has(self, sizes: Mapping[str, int]) -> bool:
        """Whether it has all of these sizes, by the keys of CELL_KEYS."""
        return all(getattr(self, key) == size for key, size in sizes.items())

    @property
    def in_words(self) -> str:
        """`512 prompt tokens, 16 generated, ubatches of 64`."""
        parts = [
            f"{self.n_prompt} prompt tokens" if self.n_prompt else None,
            f"{self.n_gen} generated" if self.n_gen else None,
            f"ubatches of {self.n_ubatch}" if self.n_ubatch else None,
            f"depth {self.n_depth}" if self.n_depth else None,
        ]
        return ", ".join(part for part in parts if part) or "a pass of unknown size"

    def rows_in(self, passes: pd.DataFrame) -> pd.Series[bool]:
        """Which rows of the `passes` table are measured passes of this cell."""
        mine = is_measured(passes)
        for name, value in zip(CELL_KEYS, self.sizes, strict=True):
            mine &= passes[name].isna() if value is None else passes[name] == value
        return mine


def varied_keys(cells: Sequence[CellKey]) -> list[str]:
    """The sizes that tell these cells apart, the ubatch first; the ubatch alone where none does."""
    varied = {key for key in CELL_KEYS if len({getattr(cell, key) for cell in cells}) > 1}
    order = ("n_ubatch", "n_depth", "n_prompt", "n_gen")
    return [key for key in order if key in varied] or ["n_ubatch"]


def take_sizes(text: str) -> tuple[dict[str, int], str]:
    """The sizes in `on,ub=512,d=0`, by the keys of CELL_KEYS, and what is left: `on`.

    Raises HprofError for two values of one size.
    """
    sizes: dict[str, int] = {}
    for flag, value in _NAMED_SIZE.findall(text):
        if sizes.setdefault(_SIZE_OF_NAME[flag], int(value)) != int(value):
            raise HprofError(f"'{text}' gives {flag} twice, and a cell has one: name one cell at a time.")
    return sizes, _NAMED_SIZE.sub("", text).strip(",")


def by_cell(passes: pd.DataFrame) -> Iterator[tuple[CellKey, pd.DataFrame]]:
    """The measured passes of each cell, in the order of the sizes."""
    for _, rows in measured_passes(passes).groupby(CELL_KEYS, dropna=False, sort=True):
        yield cell_of(rows.iloc[0]), rows


def cell_of(row: Mapping[str, Any] | pd.Series[Any]) -> CellKey:
    """The cell of a row of the `passes` table."""
    return CellKey(*(None if pd.isna(row[name]) else int(row[name]) for name in CELL_KEYS))
