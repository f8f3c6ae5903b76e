"""Fitting to captures: a capture of `sim`, whose rates the fit is not told, is predicted where it was not fitted."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.older_captures import without_column
from executor.devices.factory import DeviceOptions
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, RunRequest, grid
from profiler.predicting.calibrate import Source, calibrate, fitted_passes, interval, usual_cells
from profiler.predicting.costs import Points
from profiler.predicting.fitted import fit_costs
from profiler.predicting.layout import build_layout
from profiler.predicting.measured import misses_of
from profiler.predicting.predictor import predict
from profiler.predicting.samples import key_of, take_samples
from profiler.running.run_manifest import initial_fields
from profiler.running.runner import run_capture
from profiler.storage.writer import new_capture

MACHINE = SimMachine(gemm_tflop_s=0.5, memory_gb_s=300.0, link_gb_s=11.0, launch_us=3.0, host_call_us=0.0)


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Capture, RunPlan]:
    path = tmp_path_factory.mktemp(request.param) / "sweep"
    cells = tuple(grid([256], [4], [32, 64, 128, 256], [0, 1024]))
    plan = plan_run(
        RunRequest(
            cells=cells,
            device=DeviceOptions("sim", machine=MACHINE),
            model=request.param,
            layers=2,
            arms=("off", "full"),
            repetitions=1,
        )
    )
    writer = new_capture(str(path), force=False, source="hprof", **initial_fields(plan, ["hprof", "run"]))
    run_capture(plan, writer)
    writer.finish()
    return Capture.open(path), plan


def test_cells_that_were_not_fitted_are_predicted(recorded: tuple[Capture, RunPlan]) -> None:
    capture, plan = recorded
    cells = usual_cells(capture)
    found = calibrate([Source(capture, plan, cells)])
    misses = misses_of(predict(plan, found.costs, found.use), capture, cells, with_steps=True)
    unfitted = [miss for miss in misses if not miss.is_fitted]
    assert len(unfitted) == 2 * 5
    ttft, decode, n_bytes = (
        np.abs([error for miss in unfitted if (error := miss.error(figure)) is not None])
        for figure in ("ttft_ns", "decode_ns", "bytes_h2d")
    )
    assert all(miss.to_blame() is not None for miss in unfitted)
    assert np.median(ttft) < 0.05
    assert np.quantile(ttft, 0.9) < 0.15
    assert np.median(decode) < 0.02
    assert np.quantile(n_bytes, 0.9) < 0.03


def test_the_link_is_found(recorded: tuple[Capture, RunPlan]) -> None:
    capture, plan = recorded
    costs = calibrate([Source(capture, plan)]).costs
    assert 1 / costs.ns_per_byte["inline"] == pytest.approx(MACHINE.link_gb_s, rel=0.1)


def test_usual_cells_are_inner_ones(recorded: tuple[Capture, RunPlan]) -> None:
    assert usual_cells(recorded[0]) == {
        GridPoint(256, 4, 64, 0),
        GridPoint(256, 4, 128, 0),
        GridPoint(256, 4, 128, 1024),
    }


def test_a_cell_outside_what_was_seen_says_so(recorded: tuple[Capture, RunPlan]) -> None:
    capture, plan = recorded
    found = calibrate([Source(capture, plan, usual_cells(capture))])
    ranges = {one.cell: one.in_range for one in predict(plan, found.costs, found.use) if one.arm == "full"}
    assert ranges[GridPoint(256, 4, 128, 0)]
    assert not ranges[GridPoint(256, 4, 32, 0)]
    assert not ranges[GridPoint(256, 4, 256, 0)]


def test_the_interval_is_that_of_the_residuals(recorded: tuple[Capture, RunPlan]) -> None:
    found = calibrate([Source(*recorded)])
    spread = found.spread["ttft"]
    assert spread is not None
    assert 0 <= spread < 0.2
    assert interval(100.0, 0.25) == (80.0, 125.0)
    assert interval(100.0, None) == (None, None)


def test_a_capture_without_steps_cannot_be_fitted_to(tmp_path: Path) -> None:
    cells = tuple(grid([64], [0], [32], [0]))
    request = RunRequest(cells=cells, device=DeviceOptions("sim"), repetitions=1, recorder="off")
    plan = plan_run(request)
    writer = new_capture(str(tmp_path / "a"), force=False, source="hprof", **initial_fields(plan, ["hprof", "run"]))
    run_capture(plan, writer)
    writer.finish()
    with pytest.raises(HprofError, match="hold no steps of passes; record them without --recorder off"):
        calibrate([Source(Capture.open(tmp_path / "a"), plan)])


@pytest.mark.parametrize(
    "column", ["events.n_tokens", "passes.ttft_ns", "passes.t_start", "passes.warmup", "experts.distinct"]
)
def test_columns_that_are_not_there_leave_finite_costs(
    recorded: tuple[Capture, RunPlan], column: str, tmp_path: Path
) -> None:
    capture, plan = recorded
    if not len(capture.table(column.partition(".")[0])):
        pytest.skip("a dense model has no rows there")
    costs = calibrate([Source(without(capture, column, tmp_path), plan)]).costs
    assert np.isfinite([costs.begin_ns, costs.token_ns, costs.routed_copy_delay_ns]).all()
    assert all(np.isfinite(fit.coefficients).all() for fit in costs.steps.values())


@pytest.mark.parametrize("column", ["pass_id", "layer", "used"])
def test_experts_of_no_known_place_count_as_none(
    recorded: tuple[Capture, RunPlan], column: str, tmp_path: Path
) -> None:
    capture, plan = recorded
    if not len(capture.table("experts")):
        pytest.skip("a dense model has none")
    check_finite_or_refused(Source(without(capture, f"experts.{column}", tmp_path), plan))


def check_finite_or_refused(source: Source) -> None:
    """A sentence, or costs without nan and infinity; all else fails."""
    try:
        costs = calibrate([source]).costs
    except HprofError:
        return
    assert all(np.isfinite(fit.coefficients).all() for fit in costs.steps.values())
    assert np.isfinite(list(costs.ns_per_byte.values())).all()


@pytest.mark.parametrize(
    ("column", "value"),
    [("ubatches.ubatch", 0), ("ubatches.n_past", -1), ("events.t_end", 0), ("events.correlation_id", 1),
     ("experts.layer", 0), ("experts.distinct", -1), ("passes.n_ubatch", None)],
)  # fmt: skip
def test_absurd_numbers_leave_finite_costs_or_are_refused(
    recorded: tuple[Capture, RunPlan], column: str, value: int | None, tmp_path: Path
) -> None:
    """In every second row of a column."""
    table, _, name = column.partition(".")
    old = Path(shutil.copytree(str(recorded[0].path), tmp_path / "old"))
    for part in (old / table).glob("*.parquet"):
        rows = pq.read_table(part)
        values = [value if at % 2 else one for at, one in enumerate(rows[name].to_pylist())]
        at = rows.schema.get_field_index(name)
        pq.write_table(rows.set_column(at, name, pa.array(values, rows.schema.field(name).type)), part)
    capture = Capture.open(old)
    check_finite_or_refused(Source(capture, recorded[1], usual_cells(capture)))


def test_passes_without_a_number_are_not_fitted_to(recorded: tuple[Capture, RunPlan], tmp_path: Path) -> None:
    capture, plan = recorded
    with pytest.raises(HprofError, match="hold no steps of passes"):
        calibrate([Source(without(capture, "passes.pass_id", tmp_path), plan)])


def test_steps_without_a_beginning_are_none(recorded: tuple[Capture, RunPlan], tmp_path: Path) -> None:
    capture, plan = recorded
    with pytest.raises(HprofError, match="hold no steps of passes"):
        calibrate([Source(without(capture, "events.t_start", tmp_path), plan)])


def test_copies_that_nobody_saw_are_not_free(recorded: tuple[Capture, RunPlan], tmp_path: Path) -> None:
    capture, plan = recorded
    with pytest.raises(HprofError, match="show no copies of weights, by which 'off' would be predicted"):
        calibrate([Source(without(capture, "events.tensor", tmp_path), plan)])


def without(capture: Capture, column: str, folder: Path) -> Capture:
    """A copy of a capture that lacks a column."""
    shutil.copytree(str(capture.path), folder / "old")
    without_column(*column.split("."))(folder / "old")
    return Capture.open(folder / "old")


def test_two_devices_wait_for_each_other(tmp_path: Path) -> None:
    """What a device waits for another is no part of its steps."""
    cells = tuple(grid([128], [4], [32, 128], [0]))
    device = DeviceOptions("sim", 2, machine=MACHINE)
    plan = plan_run(RunRequest(cells=cells, device=device, model="tiny-dense", arms=("off",), repetitions=1))
    writer = new_capture(str(tmp_path / "a"), force=False, source="hprof", **initial_fields(plan, ["hprof", "run"]))
    run_capture(plan, writer)
    writer.finish()
    capture = Capture.open(tmp_path / "a")
    costs = calibrate([Source(capture, plan)]).costs
    for miss in misses_of(predict(plan, costs), capture, ()):
        assert miss.error("ttft_ns") == pytest.approx(0, abs=0.03)
        assert miss.error("decode_ns") == pytest.approx(0, abs=0.03)


def test_prompts_whose_experts_are_shared_are_predicted(tmp_path: Path) -> None:
    """No event says how many rows the CPU had: what its least popular experts are expected to have prices them."""
    cells = tuple(grid([128], [0], [32, 64], [0]))
    request = RunRequest(cells=cells, device=DeviceOptions("sim"), model="tiny-moe", arms=("both",), repetitions=2)
    plan = plan_run(request)
    writer = new_capture(str(tmp_path / "a"), force=False, source="hprof", **initial_fields(plan, ["hprof", "run"]))
    run_capture(plan, writer)
    writer.finish()
    capture = Capture.open(tmp_path / "a")
    found = calibrate([Source(capture, plan)])
    for miss in misses_of(predict(plan, found.costs, found.use), capture, ()):
        assert miss.error("ttft_ns") == pytest.approx(0, abs=0.12)
        assert miss.prediction.in_range


def test_captures_that_disagree_are_named_and_those_that_agree_are_not(tmp_path: Path) -> None:
    """Steps of models behind the first were priced by rates alone, and widened all intervals."""

    def swept(name: str, model: str, machine: SimMachine) -> Source:
        cells = tuple(grid([128], [3], [64, 128], [0]))
        device = DeviceOptions("sim", machine=machine)
        plan = plan_run(RunRequest(cells, device, model=model, layers=2, arms=("off", "on"), repetitions=1))
        writer = new_capture(
            str(tmp_path / name), force=False, source="hprof", **initial_fields(plan, ["hprof", "run"])
        )
        run_capture(plan, writer)
        writer.finish()
        return Source(Capture.open(tmp_path / name), plan)

    dense, experts = swept("dense", "tiny-dense", MACHINE), swept("experts", "tiny-moe", MACHINE)
    alone, together = calibrate([experts]), calibrate([dense, experts])
    assert together.disagreements == ()
    assert set(alone.costs.steps) <= set(together.costs.steps)
    slow = swept("slow", "tiny-dense", replace(MACHINE, link_gb_s=2.0))
    told = calibrate([dense, slow]).disagreements
    assert any(line.startswith("slow and what else it is fitted to disagree: its TTFT is told -") for line in told)
    assert any(line.startswith("dense and what else it is fitted to disagree: its TTFT is told +") for line in told)


def test_flags_that_recorded_tokens_bring_cost_nothing(recorded: tuple[Capture, RunPlan]) -> None:
    """A token that is replayed brings all its layers' flags in its report, so that no copy of them has a time."""
    capture, plan = recorded
    layout = build_layout(plan.model, plan.setups[0].placement, [0] * 3, plan.session.dtype)
    samples = take_samples(capture, layout, fitted_passes(Source(capture, plan)))
    flags = [kind.flags for kind in layout.kinds if kind.flags is not None]
    token = Points(np.ones(1), np.full(1, 256.0), "decode")
    none, as_recorded = np.zeros(1), fit_costs([samples], [layout], plan.session.dtype)
    is_flag = samples.steps["step"].isin([key_of(step) for step in flags]) & (samples.steps["phase"] == "decode")
    replayed = fit_costs([replace(samples, steps=samples.steps[~is_flag])], [layout], plan.session.dtype)
    for step in flags:
        assert as_recorded.step_ns(step, token, none) > 0
        assert replayed.step_ns(step, token, none) == 0
    assert bool(flags) == bool(layout.moe_layers)
