"""What the What if page reads: a calibration of the chosen capture, and predictions by it, both cached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import streamlit as st

from dashboard.trace_root import CaptureRef, Fingerprint
from executor.devices.factory import sim_machine
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.cli.asked import AskedOptions
from profiler.cli.captured_request import captured_options, overlaid, predicted_request
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint
from profiler.predicting.calibrate import Calibration, Source, calibrate
from profiler.predicting.costs import RateCosts
from profiler.predicting.what_if import WHAT_IF_UBATCHES, WhatIf, what_if


@dataclass(frozen=True, slots=True)
class WhatIfSettings:
    """What the page's controls say; None: as in the capture."""

    n_prompt: int
    n_gen: int  # 0: the most that the capture generated
    n_depth: int
    n_ubatch: int
    link_gb_s: float | None = None
    gpu: str | None = None
    quant: str | None = None
    vram_budget: str | None = None
    arm: str | None = None  # beside those of the capture


def fitted(found: CaptureRef) -> Calibration | str:
    """The capture's calibration, or a sentence on why there is none."""
    return _fitted(found.key, found.fingerprint)


@st.cache_resource(max_entries=8, show_spinner="Fitting to the capture …")
def _fitted(key: bytes, fingerprint: Fingerprint) -> Calibration | str:  # noqa: ARG001 - a part of the key
    capture = Capture.open(os.fsdecode(key))
    try:
        return calibrate([Source(capture, _plan(capture, {}))])
    except HprofError as error:
        return str(error)


def predicted(found: CaptureRef, settings: WhatIfSettings) -> WhatIf | str:
    """The capture's arms over ubatches under other settings, or a sentence on why they cannot be."""
    return _predicted(found.key, found.fingerprint, settings)


@st.cache_resource(max_entries=64, show_spinner=False)
def _predicted(key: bytes, fingerprint: Fingerprint, settings: WhatIfSettings) -> WhatIf | str:
    calibration = _fitted(key, fingerprint)
    if isinstance(calibration, str):
        return calibration
    asked = {"quant": settings.quant, "vram_budget": settings.vram_budget, "gpu": settings.gpu}
    given = {name: value for name, value in asked.items() if value is not None}
    try:
        capture = Capture.open(os.fsdecode(key))
        if settings.arm is not None:
            given["arms"] = ",".join([*_plan(capture, {}).request.arms, settings.arm])
        plan = _plan(capture, given, settings)
    except HprofError as error:
        return str(error)
    if settings.gpu is not None:
        machine = sim_machine(plan.request.device)
        speed = settings.link_gb_s or 1 / calibration.costs.ns_per_byte["ahead"]
        return what_if(plan, RateCosts(replace(machine, link_gb_s=speed), plan.session.dtype), None)
    costs = calibration.costs if settings.link_gb_s is None else calibration.costs.with_link(settings.link_gb_s)
    return what_if(plan, costs, calibration)


def _plan(capture: Capture, given: Mapping[str, object], settings: WhatIfSettings | None = None) -> RunPlan:
    captured = captured_options(capture.manifest, capture.name)
    request = predicted_request(overlaid(captured, AskedOptions(given, frozenset(given))))
    if settings is None:
        return plan_run(request)
    n_gen = settings.n_gen or max(cell.n_gen for cell in request.cells)
    sizes = sorted({ub for ub in WHAT_IF_UBATCHES if ub < settings.n_prompt} | {settings.n_prompt, settings.n_ubatch})
    cells = tuple(GridPoint(settings.n_prompt, n_gen, ub, settings.n_depth) for ub in sizes)
    return plan_run(replace(request, cells=cells))
