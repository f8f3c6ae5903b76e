"""What a report takes of each arm's passes in a cell, whichever arm is the baseline: figures with intervals, the values
that are compared, and what was told of tokens, logits and policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from executor.arrays import Floats, Int64
from profiler.arithmetic.stats import estimates
from profiler.manifest import Manifest
from profiler.metrics import FIGURES, JUDGED, SCOPES, CaptureTables, Scope, reading_columns, reading_figures
from profiler.metrics.passes import CELL_KEYS, CellKey, by_cell
from profiler.report.by_device import DeviceParts
from profiler.report.cells import ArmFigures
from profiler.report.pairs import Repeats, count_unit, in_pairs
from profiler.report.residency import all_residency
from profiler.report.sameness import ArmWork, ToldByPasses, WorkDone

CellArms = dict[CellKey, dict[str, "ArmPasses"]]
"""The arms of every cell that has measured passes, as they first ran; the cells in the order of their sizes."""


@dataclass(frozen=True, slots=True)
class ArmPasses:
    """One arm's measured passes in a cell, in the order of the run."""

    boots: Floats  # -1: not told
    repetitions: Floats  # NaN: not told
    figures: ArmFigures
    values: Mapping[str, Floats]  # of each figure that gets verdicts, a value a pass; NaN: unknown
    repeats: Mapping[str, Repeats]  # the same, by boot and repetition
    told: ToldByPasses
    work: ArmWork
    computed_on_host: bool


def arm_passes(tables: CaptureTables, frames: Mapping[Scope, pd.DataFrame], manifest: Manifest) -> CellArms:
    """Every arm of every cell. frames: `pass_figures` of the tables."""
    columns = tables.passes.select([*CELL_KEYS, "pass_id", "arm", "warmup"]).to_pandas()  # rows are slow to take apart
    cells = [(key, rows.index.to_numpy(), rows["arm"].to_numpy()) for key, rows in by_cell(columns)]
    if not cells:
        return {}
    passes = _Passes(tables, frames, manifest)
    return {
        key: {str(arm): passes.of(str(arm), places[arms == arm]) for arm in dict.fromkeys(arms)}
        for key, places, arms in cells
    }


class _Passes:
    """All passes of a capture; a place is a row of its `passes` table, and of the frames."""

    def __init__(self, tables: CaptureTables, frames: Mapping[Scope, pd.DataFrame], manifest: Manifest) -> None:
        passes, names = tables.passes, list(FIGURES)
        self._ids: Int64 = passes["pass_id"].to_numpy()
        self._boots, self._repetitions = (_floats(passes[name]) for name in ("boot", "repetition"))
        self._tokens, self._digests = (passes[name].to_pylist() for name in ("tokens", "logits_digest"))
        self._values = {scope: frames[scope][names].to_numpy(np.float64).T for scope in SCOPES}
        readings = reading_figures(manifest)
        self._printed = reading_columns(passes, list(readings))
        whole = dict(zip(names, self._values["pass"], strict=True)) | self._printed
        judged = [*JUDGED, *(name for name, figure in readings.items() if figure.better is not None)]
        self._judged = {name: whole[name] for name in judged}
        self._unit = count_unit(manifest, is_routed=tables.experts.num_rows > 0)
        self._work = WorkDone(tables.ubatches, frames, manifest.arms)
        self._devices = DeviceParts(tables, all_residency(manifest))

    def of(self, arm: str, places: Int64) -> ArmPasses:
        """The passes at these places, which are of one arm in one cell."""
        ids, boots = self._ids[places], np.nan_to_num(self._boots[places], nan=-1.0)
        repetitions = self._repetitions[places]
        keys = in_pairs(boots, np.nan_to_num(repetitions, nan=-1.0))
        values = {name: column[places] for name, column in self._judged.items()}
        whole = dict(zip(FIGURES, self._values["pass"][:, places], strict=True))
        return ArmPasses(
            boots,
            repetitions,
            self._figures(arm, places, boots, whole),
            values,
            {name: dict(zip(keys, found.tolist(), strict=True)) for name, found in values.items()},
            ToldByPasses.of(
                keys, [self._tokens[place] for place in places], [self._digests[place] for place in places]
            ),
            self._work.of(arm, ids.tolist()),
            bool((whole["host_compute_ns"] > 0).any()),
        )

    def _figures(self, arm: str, places: Int64, boots: Floats, whole: Mapping[str, Floats]) -> ArmFigures:
        figures = {
            scope: dict(zip(FIGURES, estimates(values[:, places], boots, self._unit), strict=True))
            for scope, values in self._values.items()
        }
        if self._printed:
            printed = np.stack(list(self._printed.values()))[:, places]
            figures["pass"] |= dict(zip(self._printed, estimates(printed, boots, self._unit), strict=True))
        copying = (whole["bytes_h2d"] > 0) | (whole["busy_copy_ns"] > 0)
        busy_ns, hidden_ns = (np.nansum(whole[name]) for name in ("busy_copy_ns", "hidden_copy_ns"))
        n_devices, by_device = self._devices.of(arm, self._ids[places].tolist())
        return ArmFigures(
            figures,
            len(places),
            n_copying=int(copying.sum()),
            n_devices=n_devices,
            by_device=by_device,
            hidden_of_all=float(hidden_ns / busy_ns) if busy_ns else None,
        )


def _floats(column: pa.ChunkedArray) -> Floats:
    return np.asarray(column.cast(pa.float64()).to_numpy(), np.float64)
