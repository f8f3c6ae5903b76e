"""The manifest's fields for a run: what was asked, what was placed where, and what served each arm in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from executor.devices.factory import DeviceOptions, sim_machine
from executor.model import Model
from executor.placement.place import Placement
from executor.policies import FULL, arm_traits
from executor.session import Session
from profiler.arithmetic.turns import MAX_WARMUPS, WARMUP_TOLERANCE
from profiler.facts import describe_machine, model_fields, result_variables, source_commit
from profiler.manifest import ManifestArm
from profiler.planning.placed_arms import BudgetPlacements, PlacedArms
from profiler.planning.plan import RunPlan
from profiler.planning.request import RunRequest


def initial_fields(plan: RunPlan, argv: list[str]) -> dict[str, Any]:
    """What is known before the model is loaded."""
    request = plan.request
    return {
        "argv": argv,
        "machine": describe_machine() | _device_fields(request.device),
        "model": model_fields(plan.model) | {"routing": plan.routing_label},
        "placement": {"configurations": [_placement_fields(plan.model, setup) for setup in plan.setups]},
        "arms": [
            ManifestArm(label, requested=arm, traits=arm_traits(arm))
            for setup in plan.setups
            for label, arm in setup.labels.items()
        ],
        "grid": _grid_fields(plan),
        "seeds": {"seed": request.seed},
        "environment": result_variables(),
        "warnings": list(plan.warnings),
        "extra": {"hprof_source": source_commit()} | _injected(request),
    }


def _device_fields(device: DeviceOptions) -> dict[str, Any]:
    """What computes; with `rates`, those of the imagined machine, where it is one."""
    rates = {"rates": asdict(sim_machine(device))} if device.kind == "sim" else {}
    return {"device": device.kind, "n_devices": device.n_devices} | rates


def _injected(request: RunRequest) -> dict[str, str]:
    return {} if request.inject is None else {"injected_fault": request.inject}


def arms_of_session(setup: PlacedArms, session: Session) -> list[ManifestArm]:
    """Requested and effective policy of each arm of an open session."""
    described = {arm["name"]: arm for arm in session.describe_arms()}
    some_stream = any(arm["effective"]["host_bytes"] for arm in described.values())
    return [
        _arm(setup, label, described[arm], session.warnings, some_stream=some_stream)
        for label, arm in setup.labels.items()
    ]


def _arm(
    setup: PlacedArms, label: str, described: Mapping[str, Any], warnings: list[str], *, some_stream: bool
) -> ManifestArm:
    name = described["name"]
    requested, effective = described["requested"], described["effective"]
    streams_nothing = not described["traits"].is_resident and not effective["host_bytes"]
    notes = list(warnings) if requested["load_mode"] != effective["load_mode"] else []
    notes += described["notes"]
    if streams_nothing and some_stream:  # where none does, the plan's warning says so once
        notes.append("no weight is in host memory, so nothing is streamed")
    if setup.suffix:
        notes.append("measured in a session of its own, after the arms of the placements before it")
    return ManifestArm(
        name=label,
        requested=name,
        effective=FULL if streams_nothing else name,
        options={"placement": setup.placement_of(name).spelled, "requested": requested, "effective": effective},
        notes=notes,
        traits=described["traits"],
    )


def _placement_fields(model: Model, setup: PlacedArms) -> dict[str, Any]:
    placement: Placement = setup.placement
    host_bytes = sum(model.tensors[name].n_bytes for name in placement.host)
    return {
        "suffix": setup.suffix,
        "spelled": placement.spelled,
        "host_bytes": host_bytes,
        "resident_bytes": model.n_bytes - host_bytes,
        "n_host_tensors": len(placement.host),
        "host_layers": placement.host_layers(),
    } | ({} if setup.budgeted is None else _budget_fields(setup.budgeted))


def _budget_fields(budgeted: BudgetPlacements) -> dict[str, int | list[int]]:
    """`budget_bytes`: a device's, the smallest where they differ; then `budget_bytes_by_device` has each."""
    n_bytes = budgeted.budget.n_bytes
    fields: dict[str, int | list[int]] = {"budget_bytes": min(n_bytes), "kept_bytes": budgeted.kept_bytes}
    return fields | ({"budget_bytes_by_device": list(n_bytes)} if len(n_bytes) > 1 else {})


def _grid_fields(plan: RunPlan) -> dict[str, Any]:
    request = plan.request
    axes = ("n_prompt", "n_gen", "n_ubatch", "n_depth")
    return {
        **{axis: list(dict.fromkeys(getattr(cell, axis) for cell in request.cells)) for axis in axes},
        "all_logits": request.all_logits,
        "repetitions": request.repetitions,
        "boots": request.boots,
        "order": "ABBA: arms forward, then backward, repetition after repetition",
        "warmups": {"at_most": MAX_WARMUPS, "until_last_two_differ_less_than": WARMUP_TOLERANCE},
        "dtype": str(plan.session.dtype).removeprefix("torch."),
        "recorded": request.recorder != "off",
        "recorder": request.recorder,
    }
