"""Columns of tables as numbers, with the unit in the header: so that they sort, and files hold numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from executor.units import column_scale


def in_one_unit(columns: Mapping[str, pd.Series], unit: str) -> dict[str, pd.Series]:
    """The columns in the unit that suits their largest number, which each header then names: `busy, ms`.

    unit: what the values are in, of `executor.units` (`ns`, `bytes`, `share`, `GB/s`, ...). Unknown stays empty.
    """
    known = {title: pd.to_numeric(values).astype(float) for title, values in columns.items()}
    largest = max((float(values.abs().max()) for values in known.values() if values.notna().any()), default=0.0)
    scale, name = column_scale(largest, unit)
    return {f"{title}, {name}" if name else title: values / scale for title, values in known.items()}
