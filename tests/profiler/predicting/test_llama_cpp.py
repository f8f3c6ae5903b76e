"""llama.cpp as an engine: its last layer, its splits, and rates fitted to a few of llama-bench's rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hprof
from executor.devices.factory import DeviceOptions
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest
from profiler.predicting.llama_cpp import LlamaCppCosts, LlamaCppMachine
from profiler.predicting.llama_rows import (
    LlamaRow,
    captured_rows,
    fit_llama_rows,
    read_llama_rows,
    request_of,
    two_rows,
)
from profiler.predicting.predictor import ArmPredictor, Prediction

MACHINE = LlamaCppMachine(
    gemm_tflop_s=40.0, experts_tflop_s=10.0, memory_gb_s=500.0, link_gb_s=20.0, host_memory_gb_s=40.0
)
ROW = {"model_filename": "/models/moe.gguf", "n_gpu_layers": 99, "n_threads": 8, "load_mode": "none", "n_depth": 0}


def planned(model: str, cell: GridPoint, placement: PlacementOptions | None = None) -> RunPlan:
    placements = (placement or PlacementOptions(),)
    device = DeviceOptions("sim")
    return plan_run(RunRequest((cell,), device, model=model, quant="Q4_0", arms=("off",), placements=placements))


def predicted(plan: RunPlan, machine: LlamaCppMachine = MACHINE, arm: str = "off") -> Prediction:
    costs, placement = LlamaCppCosts(machine), plan.setups[0].placement
    return ArmPredictor(plan, arm, placement, costs).predict(arm, plan.request.cells)[0]


def host_bytes(plan: RunPlan, layer: int) -> int:
    host = plan.setups[0].placement.host
    return sum(plan.model.tensors[name].n_bytes for name in host if name.startswith(f"blk.{layer}."))


def test_the_last_layer_copies_nothing_since_one_row_is_left_for_the_cpu() -> None:
    plan = planned("tiny-dense", GridPoint(128, 0, 64, 0))
    n_layers = len(plan.model.shape.layers)
    row = plan.model.shape.hidden * 2  # what comes back from the CPU
    assert predicted(plan).bytes_h2d == 2 * sum(host_bytes(plan, layer) for layer in range(n_layers - 1)) + row


def test_a_split_more_is_paid_for_each_tensor_copied() -> None:
    plan = planned("tiny-moe", GridPoint(64, 0, 64, 0))
    n_layers = len(plan.model.shape.layers)
    slower = replace(MACHINE, split_us=MACHINE.split_us + 50)
    before, after = predicted(plan), predicted(plan, slower)
    assert before.prefill_ns is not None
    assert after.prefill_ns is not None
    trip = 2 * 50e3  # of the last layer's one row to the CPU
    assert after.prefill_ns - before.prefill_ns == pytest.approx(3 * 50e3 * (n_layers - 1) + trip)


@pytest.mark.parametrize(
    ("products", "n_copies", "n_trips"), [("up|gate", 2, 1), ("gate|down", 2, 1), ("down", 1, 1), ("up|down", 2, 2)]
)
def test_of_a_layer_in_part_splits_are_paid_for_what_is_on_the_host(products: str, n_copies: int, n_trips: int) -> None:
    placement = PlacementOptions(overrides=f"ffn_({products})_exps=CPU")
    plan = planned("tiny-moe", GridPoint(64, 16, 64, 0), placement)
    n_layers = len(plan.model.shape.layers)
    before, after = predicted(plan), predicted(plan, replace(MACHINE, split_us=MACHINE.split_us + 50))
    trip = 2 * 50e3 * n_trips  # of the last layer's one row to the CPU, and of each layer's decoded ones
    prefill = (after.prefill_ns or 0.0) - (before.prefill_ns or 0.0)
    decode = (after.decode_ns or 0.0) - (before.decode_ns or 0.0)
    assert prefill == pytest.approx(n_copies * 50e3 * (n_layers - 1) + trip)
    assert decode == pytest.approx(plan.request.cells[0].n_decoded * n_layers * trip)


def test_of_a_layer_in_part_each_side_computes_its_own() -> None:
    """In hprof the CPU computes a whole layer; llama.cpp runs each product where its weights are."""

    def decoded(overrides: str) -> dict[str, float]:
        plan = planned("tiny-moe", GridPoint(0, 16, 64, 0), PlacementOptions(overrides=overrides))
        launches = replace(MACHINE, launch_us=0.0)
        return dict(predicted(plan, launches).busy_decode)

    whole, part = decoded(r"ffn_.*_exps=CPU"), decoded(r"ffn_up_exps=CPU")
    resident = predicted(planned("tiny-moe", GridPoint(0, 16, 64, 0)), replace(MACHINE, launch_us=0.0), arm="full")
    assert part["experts on host"] == pytest.approx(whole["experts on host"] / 3)
    assert whole.get("experts", 0.0) == 0
    assert part["experts"] == pytest.approx(2 / 3 * resident.busy_decode["experts"])


def test_below_the_threshold_the_cpu_computes() -> None:
    faster = replace(MACHINE, host_memory_gb_s=2 * MACHINE.host_memory_gb_s, host_gflop_s=1e9)
    for n, changes in ((31, True), (64, False)):
        plan = planned("tiny-dense", GridPoint(n, 0, 64, 0))
        layers = [predicted(plan, machine).busy_prefill.get("ffn on host", 0.0) for machine in (MACHINE, faster)]
        assert (layers[0] > 1.5 * layers[1]) == (changes or layers[0] > 0)
        assert (predicted(plan).busy_prefill.get("copies of weights", 0.0) == 0) == changes


def bench_rows(
    tmp_path: Path, tests: list[dict[str, int | str]], machine: LlamaCppMachine = MACHINE, name: str = "rows.jsonl"
) -> Path:
    """A file of rows that such a machine would have given, but for a few percent of scatter."""
    path = tmp_path / name
    scatter = np.random.default_rng(0).uniform(0.98, 1.02, len(tests))
    lines = []
    for test, off in zip(tests, scatter, strict=True):
        cell = GridPoint(int(test["n_prompt"]), int(test["n_gen"]), int(test["n_ubatch"]), 0)
        placement = PlacementOptions(n_cpu_moe=int(test["n_cpu_moe"]), n_gpu_layers=99)
        ns = LlamaRow(planned("tiny-moe", cell, placement), 0.0, 8, "r").predicted_ns(machine, None) * off
        lines.append(json.dumps({**ROW, **test, "avg_ns": round(ns), "samples_ns": [round(ns)]}))
    path.write_text("\n".join(lines))
    return path


TESTS: list[dict[str, int | str]] = [
    {"n_prompt": p, "n_gen": n, "n_ubatch": ub, "n_cpu_moe": moe}
    for moe in (0, 99)
    for p, n, ub in ((1024, 0, 512), (1024, 0, 1024), (256, 0, 512), (0, 16, 512))
]


def test_rows_of_another_model_are_refused(tmp_path: Path) -> None:
    request = request_of("tiny-moe", "Q4_0")
    n_parameters = planned("tiny-moe", GridPoint(64, 0, 32, 0), PlacementOptions()).model.n_parameters
    path = bench_rows(tmp_path, [TESTS[0] | {"model_n_params": n_parameters}])
    assert len(read_llama_rows(path, {"": request})) == 1
    path = bench_rows(tmp_path, [TESTS[0] | {"model_n_params": 2 * n_parameters}])
    with pytest.raises(HprofError, match=r"was measured with a model of .* million parameters, and tiny-moe has"):
        read_llama_rows(path, {"": request})


def test_rows_of_a_model_cut_to_fewer_layers_are_refused_with_layers_named(tmp_path: Path) -> None:
    plan = planned("tiny-moe", GridPoint(64, 0, 32, 0))
    n_layers, whole = len(plan.model.shape.layers), plan.model.n_parameters
    cut = request_of("tiny-moe", "Q4_0", n_layers // 2)
    of_half = plan_run(replace(cut, cells=(GridPoint(64, 0, 32, 0),))).model.n_parameters
    path = bench_rows(tmp_path, [TESTS[0] | {"model_n_params": of_half}])
    told = rf"give rows of the model that -m names, or --layers {n_layers // 2} where theirs was cut"
    with pytest.raises(HprofError, match=told):
        read_llama_rows(path, {"": request_of("tiny-moe", "Q4_0")})
    assert len(read_llama_rows(path, {"": cut})) == 1
    path = bench_rows(tmp_path, [TESTS[0] | {"model_n_params": whole}])
    with pytest.raises(HprofError, match=rf"and tiny-moe cut to {n_layers // 2} layers has .*: leave --layers"):
        read_llama_rows(path, {"": cut})


def test_rows_faster_than_any_machine_are_refused(tmp_path: Path) -> None:
    path = bench_rows(tmp_path, TESTS[:2])
    first, second = map(json.loads, path.read_text().splitlines())
    second["samples_ns"] = [second["samples_ns"][0], 1]
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}")
    with pytest.raises(HprofError, match=r"rows\.jsonl/.* says that 1,024 tokens took 1 ns, which no machine does"):
        read_llama_rows(path, {"": request_of("tiny-moe", "Q4_0")})


def test_two_rows_tell_the_others(tmp_path: Path) -> None:
    rows = read_llama_rows(bench_rows(tmp_path, TESTS), {"": request_of("tiny-moe", "Q4_0")})
    assert len(rows) == len(TESTS)
    chosen = two_rows(rows)
    assert [(row.cell.n_prompt, row.has_host_weights) for row in chosen] == [(1024, False), (1024, True)]
    far = replace(MACHINE, gemm_tflop_s=60.0, experts_tflop_s=6.0, memory_gb_s=400.0)
    fit = fit_llama_rows(chosen, far)
    before = [abs(row.predicted_ns(far, fit.use(row)) / row.ns - 1) for row in rows]
    after = [abs(fit.predicted_ns(row) / row.ns - 1) for row in rows]
    assert np.median(after) < min(0.1, float(np.median(before)))


def test_files_of_unlike_machines_are_named_and_those_of_one_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = replace(MACHINE, gemm_tflop_s=10.0, experts_tflop_s=2.5, memory_gb_s=120.0)
    here = bench_rows(tmp_path, TESTS)
    again = bench_rows(tmp_path, TESTS, name="again.jsonl")
    there = bench_rows(tmp_path, TESTS, slower, "there.jsonl")
    words = ["predict", "-m", "tiny-moe", "--quant", "Q4_0", "-p", "512", "-n", "8", "--for", "llama.cpp"]
    for other, is_told in ((again, False), (there, True)):
        assert hprof.main([*words, "--fit", str(here), "--fit", str(other), "--link", "gen4x16"]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert ("rows.jsonl and what else it is fitted to disagree: its prompts are told +" in told) is is_told
        assert (f"{other.name} and what else it is fitted to disagree: its prompts are told -" in told) is is_told


def test_files_of_one_name_are_told_by_their_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slower = replace(MACHINE, gemm_tflop_s=10.0, experts_tflop_s=2.5, memory_gb_s=120.0)
    words = ["predict", "-m", "tiny-moe", "--quant", "Q4_0", "-p", "512", "-n", "8", "--for", "llama.cpp", "--json"]
    files = []
    for folder, machine in (("here", MACHINE), ("there", slower)):
        (tmp_path / folder).mkdir()
        files.append(str(bench_rows(tmp_path / folder, TESTS, machine)))
    assert hprof.main([*words, "--fit", files[0], "--fit", files[1], "--link", "gen4x16"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fitted_to"] == files
    told = [line for line in found["notes"] if "its prompts are told" in line]
    assert [line.partition(" and what else")[0] for line in told] == files
    assert any(f"which experts are in use here is {files[0]}'s, the first." in line for line in found["notes"])


def test_rows_of_pageable_memory_and_of_other_models_are_left_out(tmp_path: Path) -> None:
    path = bench_rows(tmp_path, [TESTS[4], {**TESTS[5], "load_mode": "mmap"}])
    (only,) = read_llama_rows(path, {"": request_of("tiny-moe", "Q4_0")})
    assert only.cell.n_ubatch == TESTS[4]["n_ubatch"]
    with pytest.raises(HprofError, match="holds no llama-bench row of this model"):
        read_llama_rows(path, {"other.gguf": request_of("tiny-moe")})


def test_advice_for_llama_cpp_rests_on_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = str(bench_rows(tmp_path, [TESTS[0], TESTS[4]]))
    words = [
        "advise",
        "-m",
        "tiny-moe",
        "--quant",
        "Q4_0",
        "-p",
        "512",
        "-n",
        "8",
        "--vram-budget",
        "20MiB",
        "--fit",
        rows,
    ]
    assert hprof.main([*words, "--for", "llama.cpp", "--link", "gen4x16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["spread"]["ttft"] > 0
    assert found["llama_cpp"].startswith(("GGML_OP_OFFLOAD_MIN_BATCH=", "llama-bench"))
    assert hprof.main(words) == 2
    assert "add --for llama.cpp" in capsys.readouterr().err


@pytest.fixture
def bench_capture(tmp_path: Path) -> str:
    """An imported capture of what MACHINE takes; one test is 10 % slower."""
    rows = []
    for ncmoe, cell in (
        (0, GridPoint(4096, 0, 512, 0)),
        (99, GridPoint(4096, 0, 512, 0)),
        (99, GridPoint(0, 16, 512, 0)),
    ):
        plan = planned("tiny-moe", cell, PlacementOptions(n_cpu_moe=ncmoe))
        found = predicted(plan, arm="off" if ncmoe else "full")
        ns = (found.prefill_ns or 0.0) + (found.decode_ns or 0.0)
        ns *= 1.1 if cell.n_gen else 1.0
        sizes = {"n_prompt": cell.n_prompt, "n_gen": cell.n_gen, "n_ubatch": 512, "n_cpu_moe": ncmoe}
        rows.append(
            {**ROW, **sizes, "samples_ns": [round(ns)], "samples_ts": [1e9 * (cell.n_prompt or cell.n_gen) / ns]}
        )
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert hprof.main(["import", str(file), "-o", str(tmp_path / "bench")]) == 0
    return str(tmp_path / "bench")


def test_predictions_are_held_against_a_capture_of_llama_bench(
    bench_capture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    rates = ["--link-gb-s", "20", "--gemm-tflop-s", "26", "--memory-gb-s", "625", "--host-memory-gb-s", "40"]
    words = ["predict", "-m", "tiny-moe", "--quant", "Q4_0", "--for", "llama.cpp", "--against", bench_capture, *rates]
    assert hprof.main([*words, "--json"]) == 0
    against = json.loads(capsys.readouterr().out)["against"]
    assert [(one["n_gen"], one["fitted"]) for one in against["cells"]].count((16, False)) == 1
    assert sum(one["fitted"] for one in against["cells"]) == 2
    assert against["fitted"]["prefill"]["median"] < 0.05
    (token,) = (one for one in against["cells"] if one["n_gen"])
    assert token["decode"] is not None
    assert token["prefill"] is token["ttft"] is None


def test_an_arm_that_hprof_ran_is_told_by_its_words_and_variables(bench_capture: str) -> None:
    manifest = Path(bench_capture) / "manifest.json"
    found = json.loads(manifest.read_text())
    for arm in found["arms"]:
        words = ["-ncmoe", str(arm["options"]["n_cpu_moe"]), "-pw", "1", "-t", "6"]
        arm["options"] = {"flags": words, "environment": {"GGML_OP_OFFLOAD_MIN_BATCH": "8"}, "build": "1 (2)"}
    manifest.write_text(json.dumps(found))
    rows = captured_rows(Capture.open(bench_capture), request_of("tiny-moe", "Q4_0"))
    assert {(row.has_host_weights, row.prefetches, row.n_threads) for row in rows} == {
        (True, True, 6),
        (False, True, 6),
    }
    assert {row.plan.session.policy.op_offload_min_batch for row in rows} == {8}
    assert {row.predicted(MACHINE, None).arm for row in rows} == {"on", "full"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--against", "traces/example"], "say which model traces/example is of"),
        (["-m", "tiny-moe", "--against", "traces/example"], "is of hprof, and --for llama.cpp is held against llama-b"),
        (["-m", "tiny-moe", "--against", "traces/example", "-o", "x"], "-o keeps predictions of a grid"),
    ],
)
def test_what_llama_cpp_cannot_be_held_against_is_one_sentence(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hprof.main(["predict", "--for", "llama.cpp", *words]) == 2
    assert told in capsys.readouterr().err
