"""A probe of `sim`, whose rates the fit is not told, predicts models that it never ran; its file and the commands."""

from __future__ import annotations

import math
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import executor
import hprof
from executor.devices.factory import DeviceOptions
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, RunRequest
from profiler.predicting.costs import RateCosts
from profiler.predicting.predictor import predict
from profiler.predicting.probe import (
    Probe,
    changes,
    kernel_files,
    probe_path,
    read_probe,
    this_machine,
    write_probe,
)
from profiler.predicting.probed import Group, ProbedCosts, WorkFit
from profiler.probing import passes
from profiler.probing.passes import probe
from profiler.probing.products import SIZES, Sizes
from profiler.probing.shapes import TINY, USUAL, dense, mixed
from profiler.probing.timed import OthersWork
from profiler.running.runner import told_when_interrupted

MACHINE = SimMachine(gemm_tflop_s=0.5, memory_gb_s=30.0, link_gb_s=11.0, launch_us=3.0, host_call_us=0.0)
ASKED = ["-m", "tiny-moe", "-p", "40", "-n", "3", "-ub", "32", "--arms", "off,on"]
Printed = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def probed() -> Probe:
    dense_ones, experts = (dense(512, 1536), dense(1024, 3072)), mixed(256, 512, (32, 4, 256))
    checked = (dense(768, 2048),)
    models = replace(USUAL["cpu"], fitted=(*dense_ones, experts), more=(), checked=checked, seconds=1e6)
    return probe(DeviceOptions("sim", machine=MACHINE), ("Q8_0",), models=models)


@pytest.fixture
def kept(probed: Probe, own_cache: None) -> Path:
    """The probe where this machine's is looked for."""
    path = probe_path("cpu")
    write_probe(replace(probed, machine=this_machine("cpu", None), load=0.1, others=0.0), path)
    return path


@pytest.mark.parametrize("model", ["tiny-dense", "tiny-moe"])
def test_models_that_were_not_probed_are_predicted(probed: Probe, model: str) -> None:
    cells = (GridPoint(256, 4, 64, 0),)
    request = RunRequest(cells=cells, device=DeviceOptions("sim", machine=MACHINE), model=model, arms=("off", "on"))
    plan = plan_run(request)
    true = predict(plan, RateCosts(MACHINE, plan.session.dtype))
    for found, expected in zip(predict(plan, probed.costs), true, strict=True):
        assert found.ttft_ns == pytest.approx(expected.ttft_ns, rel=0.2)
        assert found.decode_ns == pytest.approx(expected.decode_ns, rel=0.2)
        assert found.bytes_h2d == expected.bytes_h2d
    assert probed.spread["ttft"] is not None
    assert probed.spread["ttft"] < 0.3


@pytest.mark.parametrize("n_models", [1, 2])
def test_a_probe_without_time_left_says_how_far_off_each_model_is_by_the_others(
    n_models: int, capsys: Printed, tmp_path: Path
) -> None:
    models = replace(USUAL["cpu"], fitted=(dense(256, 512), dense(512, 1536))[:n_models], seconds=0.0)
    hurried = probe(DeviceOptions("sim", machine=MACHINE), ("Q8_0",), models=models)
    assert hurried.checked_on == ()
    assert len(hurried.fitted_to) == len(hurried.stages) == n_models
    spread = hurried.spread["ttft"]
    assert spread is None if n_models == 1 else (spread is not None and 0 < spread < 2)
    path = tmp_path / "hurried.json"
    write_probe(hurried, path)
    assert hprof.main(["probe", "--show", "-o", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    known = "off by, in each model told by the others alone: ttft ± "
    assert (known if n_models > 1 else "nothing says how far off it is: after") in told
    assert "no time was left to run one more" in told


def test_a_probe_without_time_left_has_all_quant_types() -> None:
    """Those behind the first were left out, and priced as it."""
    models = replace(USUAL["cpu"], fitted=(mixed(256, 512, (8, 2, 256)), mixed(512, 512, (8, 2, 256))), seconds=0.0)
    hurried = probe(DeviceOptions("sim", machine=MACHINE), ("Q8_0", "Q4_0"), models=models)
    assert hurried.fitted_to[1].endswith(" in Q4_0 and Q8_0")
    seen = {(group.name, group.where, group.quant) for group in hurried.costs.groups}
    kinds = [(name, where) for name in ("ffn", "experts") for where in ("device", "host")] + [("logits", "device")]
    assert {(*kind, quant) for kind in kinds for quant in ("Q8_0", "Q4_0")} <= seen


def test_a_model_with_steps_that_no_other_has_tells_nothing_of_itself() -> None:
    """Experts are not told by a dense model, which stops no probe that ran out of time."""
    models = replace(USUAL["cpu"], fitted=(dense(256, 512), mixed(256, 512, (8, 2, 256))), seconds=0.0)
    hurried = probe(DeviceOptions("sim", machine=MACHINE), ("Q8_0",), models=models)
    assert len(hurried.fitted_to) == 2
    spread = hurried.spread["ttft"]
    assert spread is not None  # the dense one's, by the other's dense layer
    assert 0 < spread < 2


def test_smaller_and_larger_weights_than_were_probed_are_outside(probed: Probe) -> None:
    def in_range(model: str, costs: ProbedCosts) -> bool:
        device = DeviceOptions("sim", machine=MACHINE)
        request = RunRequest((GridPoint(64, 0, 64, 0),), device, model=model, quant="Q8_0", layers=1, arms=("off",))
        (found,) = predict(plan_run(request), costs)
        return found.in_range

    assert in_range("tiny-dense", probed.costs)
    assert not in_range("llama-3.1-8b", probed.costs)
    larger = {group: replace(fit, n_bytes=(1e12, 1e12)) for group, fit in probed.costs.groups.items()}
    assert not in_range("tiny-dense", replace(probed.costs, groups=larger))


def test_a_model_of_both_kinds_of_layer_is_probed_with_both_on_the_cpu() -> None:
    """Dense FFNs beside experts are resident unless they are named."""
    models = replace(USUAL["cpu"], fitted=(mixed(256, 512, (8, 2, 256)),), more=(), checked=())
    found = probe(DeviceOptions("sim", machine=MACHINE), ("Q8_0",), models=models)
    on_host = {(group.name, group.phase) for group in found.costs.groups if group.where == "host"}
    assert on_host == {(name, phase) for name in ("ffn", "experts") for phase in ("prefill", "decode")}


def test_a_step_that_was_not_probed_takes_what_its_like_does(probed: Probe) -> None:
    """It took no time at all, so that decode on the CPU was told to be 14 times as fast as it is."""
    request = RunRequest(
        (GridPoint(40, 4, 16, 0),), DeviceOptions("sim", machine=MACHINE), model="tiny-dense", arms=("off",)
    )
    plan = plan_run(request)
    costs = replace(probed.costs, groups=_without(probed.costs, "ffn"))
    (known,), (found,) = predict(plan, probed.costs), predict(plan, costs)
    assert found.decode_ns == pytest.approx(known.decode_ns, rel=0.5)
    assert known.in_range
    assert not found.in_range
    nothing = replace(costs, groups=_without(costs, "experts"))
    with pytest.raises(HprofError, match=r"no products of a layer's ffn on the host, nor any like them: probe again"):
        predict(plan, nothing)


def _without(costs: ProbedCosts, name: str) -> dict[Group, WorkFit]:
    return {group: fit for group, fit in costs.groups.items() if (group.name, group.where) != (name, "host")}


def test_a_quant_type_of_one_size_is_not_taken_to_cost_the_same_at_all_sizes(probed: Probe) -> None:
    ffn = [fit for group, fit in probed.costs.groups.items() if group.name == "ffn" and group.where == "device"]
    assert all(fit.coefficients[1:].any() for fit in ffn)


def test_a_probe_is_held_against_a_capture(kept: Path, tmp_path: Path, capsys: Printed) -> None:
    capture = str(tmp_path / "run")
    assert hprof.main(["run", *ASKED, "--device", "cpu", "-r", "1", "-o", capture]) == 0
    capsys.readouterr()
    assert hprof.main(["predict", "--against", capture, "--probe", str(kept), "--json"]) == 0
    against = orjson.loads(capsys.readouterr().out)["against"]
    assert against["fitted"]["ttft"] is None
    assert against["not_fitted"]["bytes"]["median"] < 0.2
    assert not any(cell["fitted"] for cell in against["cells"])


def test_others_work_is_a_share() -> None:
    looking = OthersWork()
    assert 0 <= looking.share() <= 1


def test_a_file_reads_back_the_same(probed: Probe, tmp_path: Path) -> None:
    path = tmp_path / "new" / "probe.json"
    write_probe(probed, path)
    found = read_probe(path)
    assert found.machine == probed.machine
    assert found.spread == probed.spread
    for group, fit in probed.costs.groups.items():
        assert found.costs.groups[group].coefficients == pytest.approx(fit.coefficients)
    assert [one.name for one in path.parent.iterdir()] == ["probe.json"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"schema": 1, "source": "probe"}', b"\xff"])
def test_what_is_no_probe_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "probe.json"
    path.write_bytes(content)
    with pytest.raises(HprofError, match="holds no probe"):
        read_probe(path)


@pytest.mark.parametrize(
    ("keys", "value", "told"),
    [
        (["link", "gb_s", "ahead"], -1.0, "ahead is -1, and may be 0 to 1e"),
        (["link", "gb_s", "ahead"], 1e-9, "ahead is 1e-09, and may be null or 1e-06 to 1e"),
        (["link", "us_a_copy"], 1e12, "us_a_copy is 1e"),
        (["off_by", "ttft"], 1e9, "off_by of ttft is 1e[+]09, and may be 0 to 100"),
        (["off_by", "decode"], -0.1, "off_by of decode is -0.1"),
        (["others"], 1.5, "others is 1.5, and may be 0 to 1;"),
        (["load_1min"], 1e300, "load_1min is 1e[+]300"),
        (["seconds"], 1e14, "seconds is 1e[+]14"),
        (["delays_us", "begin"], 1e14, "begin is 1e[+]14"),
        (["steps", 0, "off_by"], 1e9, "off_by is 1e[+]09"),
        (["steps", 0, "us_once"], 1e14, "us_once is 1e[+]14"),
        (["steps", 0, "gflop_s"], 1e13, "gflop_s is 1e[+]13"),
        (["steps", 0, "n_tokens"], [8, 4], "n_tokens has a range from 8 to 4"),
        (["steps", 0, "n_tokens"], [1, 1e300], "n_tokens is 1e[+]300"),
    ],
)
def test_a_number_that_no_measurement_gives_is_refused_and_named(
    keys: list[str | int], value: object, told: str, probed: Probe, tmp_path: Path
) -> None:
    path = tmp_path / "probe.json"
    found: Any = probed.to_json()
    *way, last = keys
    holder = found
    for key in way:
        holder = holder[key]
    holder[last] = value
    path.write_bytes(orjson.dumps(found))
    with pytest.raises(HprofError, match=f"probe.json is no probe of any machine: {told}.*hprof probe"):
        read_probe(path)


@pytest.mark.parametrize("changed", [{"steps": []}, {"machine": {"usable_threads": "many"}}])
def test_a_probe_that_tells_of_no_step_or_of_no_machine_is_refused(
    changed: dict[str, Any], probed: Probe, tmp_path: Path
) -> None:
    path = tmp_path / "probe.json"
    path.write_bytes(orjson.dumps(probed.to_json() | changed))
    with pytest.raises(HprofError, match="holds no probe"):
        read_probe(path)


def test_any_value_anywhere_in_the_file_is_refused_or_leaves_finite_costs(probed: Probe, tmp_path: Path) -> None:
    path, content, rng = tmp_path / "probe.json", orjson.dumps(probed.to_json()), random.Random(16)
    values: list[Any] = [None, 0, -1, 1e308, 1e-308, 5e-324, 2**63 - 1, True, "x", "1e999", [], {}, [1, 2, 3]]
    for _ in range(200):
        changed = parent = orjson.loads(content)
        key: Any = rng.choice(list(parent))
        while isinstance(parent[key], dict | list) and parent[key] and rng.random() < 0.9:
            parent = parent[key]
            key = rng.randrange(len(parent)) if isinstance(parent, list) else rng.choice(list(parent))
        parent[key] = rng.choice(values)
        path.write_bytes(orjson.dumps(changed))
        try:
            found = read_probe(path)
        except HprofError:
            continue
        assert all(np.isfinite(fit.coefficients).all() for fit in found.costs.groups.values())
        assert all(0 < rate < math.inf for rate in (found.rates().link_gb_s, found.rates().gemm_tflop_s))


def test_what_has_changed_is_said(probed: Probe) -> None:
    machine = this_machine("cpu", None)
    one = replace(probed, machine={**machine, "hprof": "0.0.1", "gpus": [{"name": "A", "driver": "1"}]})
    told = changes(one, machine)
    assert told[0].startswith("hprof was 0.0.1 and is ")
    assert told[1] == "gpus was A 1 and is none"


def test_a_probe_depends_on_the_cpus_products_too() -> None:
    """They are C++: with other ones the probe was used silently."""
    names = {file.name for file in kernel_files(Path(executor.__file__).parent)}
    assert {"ffn.cpp", "integer_rows.hpp", "stamp_kernels.py", "direct_kernels.py"} <= names


def test_predict_answers_by_this_machines_probe(kept: Path, capsys: Printed) -> None:
    assert hprof.main(["predict", *ASKED, "--device", "cpu", "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["notes"][0].startswith("By the probe of ")
    assert "a card that is not here" not in " ".join(found["notes"]), "the CPU is what was asked about"
    ttft = found["cells"][0]["arms"]["on"]["ttft_ns"]
    assert ttft["low"] < ttft["median"] < ttft["high"]
    assert hprof.main(["predict", *ASKED, "--device", "sim"]) == 0
    assert capsys.readouterr().out.startswith("Rates of the device and the link are sim's defaults")


def test_who_names_no_device_is_told_that_the_probe_is_of_the_cpu(
    kept: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Advice for so many GiB is mostly asked for a card, and these would be answered by the CPU's rates."""
    monkeypatch.setattr("executor.devices.factory.default_kind", lambda: "cpu")
    assert hprof.main(["advise", "--vram-budget", "24MiB", *ASKED, "--json"]) == 0
    notes = orjson.loads(capsys.readouterr().out)["notes"]
    assert "That is this machine's CPU: --gpu and --link ask about a card that is not here." in notes


def test_a_probe_that_no_longer_holds_is_not_used_silently(kept: Path, capsys: Printed) -> None:
    words = ["predict", *ASKED, "--device", "cpu"]
    assert hprof.main([*words, "-t", "3"]) == 2
    assert "threads was unsaid and is 3" in capsys.readouterr().err
    assert hprof.main([*words, "-t", "3", "--probe", str(kept)]) == 0
    assert capsys.readouterr().out.startswith("This machine is not what ")


@pytest.mark.parametrize("command", [["predict"], ["advise", "--vram-budget", "24MiB"]])
def test_why_rates_answer_and_not_the_probe_that_is_there(
    command: list[str], kept: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.devices.factory.default_kind", lambda: "cpu")
    assert hprof.main([*command, *ASKED, "-t", "3", "--json"]) == 0
    notes = " ".join(orjson.loads(capsys.readouterr().out)["notes"])
    assert "Rates of the device and the link are sim's defaults" in notes
    assert f"The probe {kept} is not used, since threads was unsaid and is 3" in notes


def test_advise_answers_by_a_probe(kept: Path, capsys: Printed) -> None:
    words = ["advise", "-m", "tiny-moe", "-p", "96", "-n", "4", "--arms", "off,on", "--vram-budget", "24MiB"]
    assert hprof.main([*words, "--probe", str(kept), "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["notes"][0].startswith("By the probe of ")
    assert found["spread"]["decode"] > 0
    assert hprof.main([*words, "--probe", str(kept), "--gpu", "rtx4090"]) == 2
    assert "--gpu and rates are not for --probe" in capsys.readouterr().err


def test_the_command_measures_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.setitem(USUAL, "cpu", TINY)
    monkeypatch.setitem(SIZES, "cpu", Sizes((32,), (1,), 1 << 20, (0,), 2, ((32, 32),)))
    path = tmp_path / "mine.json"
    words = ["probe", "--device", "cpu", "--quants", "Q8_0", "-o", str(path)]
    assert hprof.main(words) == 0
    assert "off by, in models that were not fitted: ttft ± " in capsys.readouterr().out
    assert hprof.main(["probe", "--device", "cpu", "-o", str(path), "--show"]) == 0
    shown = capsys.readouterr().out
    assert "rates and costs by themselves" in shown
    assert {one["what"] for one in orjson.loads(path.read_bytes())["measured"]} >= {
        "copy h2d host",
        "copy d2h host, the other way busy",
        "each of 32 copies h2d host",
        "launch",
        "device memory, read and written",
        "dequantised",
        "product",
        "product, Q8_0",
        "attention",
        "host memory, read",
        "CPU, experts for a token",
        "CPU, experts for a token, link busy",
    }
    assert hprof.main(["probe", "--device", "cpu", "-o", str(path), "--show", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out) == orjson.loads(path.read_bytes())
    assert hprof.main(["probe", "--device", "cpu", "--show"]) == 2
    assert "make one with `hprof probe`" in capsys.readouterr().err


def test_rates_are_measured_whatever_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models took all of it on an H200, whose link, products and memory were told by nothing."""
    monkeypatch.setitem(SIZES, "cpu", Sizes((32, 64), (1,), 1 << 20, (0,), 2, ((32, 32),)))
    found = probe(DeviceOptions("cpu", n_threads=1), ("Q8_0", "Q4_0"), models=replace(TINY, seconds=0.0))
    assert found.checked_on == ()
    at = {(one.what, one.at) for one in found.measured}
    assert {(f"product, {quant}", f"1 rows, {n}x{n}") for quant in ("Q8_0", "Q4_0") for n in (32, 64)} <= at
    assert found.rates().host_memory_gb_s != SimMachine().host_memory_gb_s


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("where", ["run_capture", "host_measures"])
def test_a_probe_that_is_ended_keeps_nothing_and_says_so(
    number: signal.Signals, code: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setitem(USUAL, "cpu", TINY)
    monkeypatch.setitem(SIZES, "cpu", Sizes((32,), (1,), 1 << 20, (0,), 2, ((32, 32),)))
    whole = getattr(passes, where)

    def ended(*given: Any, **named: Any) -> Any:
        """In a run: behind its last pass, when its capture keeps some."""
        if where == "run_capture":
            whole(*given, **named)
            with told_when_interrupted(given[1]):
                signal.raise_signal(number)
        signal.raise_signal(number)

    monkeypatch.setattr(passes, where, ended)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background may ignore it
    try:
        assert hprof.main(["probe", "--device", "cpu", "--quants", "Q8_0", "-o", str(tmp_path / "mine.json")]) == code
    finally:
        signal.signal(signal.SIGINT, before)
    word = {143: "terminated", 130: "interrupted"}[code]
    assert capsys.readouterr().err.endswith(f"hprof: {word} before all was measured, so that nothing was written.\n")
    assert not (tmp_path / "mine.json").exists()
