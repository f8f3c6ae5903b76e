"""A run that memory cannot hold is refused before anything is loaded, with what would fit: and that does fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import hprof
from executor.devices.base import DeviceKind
from executor.devices.factory import DeviceOptions
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from executor.models.load import load_model
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.session import Session, SessionOptions
from executor.token_report import report_bytes
from profiler.planning.memory import (
    FreeMemory,
    MemoryRequest,
    check_needs,
    demands,
    free_host_bytes,
    free_memory,
    layers_on_host,
)
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint
from tests.profiler.runs import small_request

GIB = 1 << 30
PROMPT = GridPoint(512, 0, 512, 0)  # nothing is computed on the host
pytestmark = pytest.mark.usefixtures("without_compiler", "without_kernels")


def wanted(
    spec: str,
    kind: DeviceKind = "cuda",
    cell: GridPoint = PROMPT,
    arms: tuple[str, ...] = ("off", "on"),
    n_devices: int = 1,
    overrides: str | None = None,
    **policy: Any,
) -> MemoryRequest:
    model = load_model(spec)
    device = DeviceOptions(kind, n_devices=n_devices)
    sizes = (cell.n_positions, min(cell.n_ubatch, cell.n_prompt), cell.n_ubatches)
    options = SessionOptions(device, *sizes, torch.bfloat16, policy=PolicyOptions(**policy))
    return MemoryRequest(model, place(model.tensors, overrides=overrides), arms, options, (cell,))


def refusal(run: MemoryRequest, free: FreeMemory) -> str:
    with pytest.raises(HprofError) as caught:
        check_needs(run.model, run.placement, run.arms, run.options, run.cells, free)
    return str(caught.value)


def accept(run: MemoryRequest, free: FreeMemory) -> None:
    check_needs(run.model, run.placement, run.arms, run.options, run.cells, free)


@pytest.mark.parametrize(
    ("run", "free", "said"),
    [
        (
            wanted("llama-3.1-8b", overrides=""),
            FreeMemory(64 * GIB, (4 * GIB,)),
            "of GPU memory for this run and 4 GiB are free; resident weights take 4.46 GiB: -ngl 16 or --layers 18",
        ),
        (
            wanted("llama-3.1-8b", arms=("off", "full")),
            FreeMemory(64 * GIB, (4 * GIB,)),
            "resident weights take 4.46 GiB: --arms off or --layers 18 would fit",
        ),
        (
            wanted("llama-3.1-8b", cell=GridPoint(2048, 0, 512, 1_000_000)),
            FreeMemory(64 * GIB, (24 * GIB,)),
            "the context alone takes 123 GiB: a context (-d, -p and -n together) of ",
        ),
        (
            wanted("llama-3.1-8b", cell=GridPoint(131_072, 0, 131_072, 0)),
            FreeMemory(64 * GIB, (18 * GIB,)),
            "the context alone takes 16.0 GiB",
        ),
        (
            wanted("tiny-moe", cell=GridPoint(131_072, 0, 131_072, 0)),
            FreeMemory(64 * GIB, (GIB,)),
            "dequantised weights and the rows computed with them take 516 MiB: -ub 65536, a context ",
        ),
        (
            wanted("qwen3-30b-a3b", arms=("off", "cache"), cache_bytes=12 * GIB, op_offload_min_batch=1),
            FreeMemory(64 * GIB, (8 * GIB,)),
            "the expert cache's bank takes 12.0 GiB: --moe-cache-mib ",
        ),
        (
            wanted("llama-3.1-8b", slots=32),
            FreeMemory(64 * GIB, (3 * GIB,)),
            "the slots that weights are streamed into take 2.95 GiB: --slots 2",
        ),
        (
            wanted("llama-3.1-8b", overrides="", n_devices=2),
            FreeMemory(64 * GIB, (8 * GIB, 3 * GIB)),
            "of GPU 1's memory for this run and 3 GiB are free",
        ),
        (
            wanted("qwen3-235b-a22b"),
            FreeMemory(64 * GIB, (140 * GIB,)),
            "of host memory for this run and 64 GiB are free; weights in host memory take 119 GiB: --layers 4",
        ),
        (
            wanted("qwen3-235b-a22b", cell=GridPoint(512, 16, 512, 0)),
            FreeMemory(128 * GIB, (140 * GIB,)),
            "weights computed on the host take 132 GiB beside the bytes that are streamed: "
            "--op-offload-min-batch 1 or ",
        ),
        (
            wanted("llama-3.1-8b", cell=GridPoint(512, 16, 512, 0)),
            FreeMemory(3 * GIB, (80 * GIB,)),
            "weights computed on the host take 3.28 GiB beside the bytes that are streamed: --layers 13 would fit",
        ),
        (
            wanted("tiny-dense", cell=GridPoint(1, 400_000, 32, 0), op_offload_min_batch=1),
            FreeMemory(64 * GIB, (8 * GIB,)),
            "the logits of -n tokens take 12.2 GiB: -n ",
        ),
        (
            wanted("llama-3.1-8b", kind="sim"),
            FreeMemory(None, (1 * GIB,)),
            "of device memory for this run and 1 GiB are free; resident weights take 1.51 GiB: no option alone would",
        ),
        (
            wanted("llama-3.1-8b", kind="cpu", cell=GridPoint(512, 16, 256, 4_000_000)),
            FreeMemory(9 * GIB, (None,)),
            "the context alone takes 489 GiB: --op-offload-min-batch 1 with a context (-d, -p and -n together) of ",
        ),
        (
            wanted("llama-3.1-8b", kind="cpu"),
            FreeMemory(4 * GIB, (None,)),
            "of memory for this run and 4 GiB are free",
        ),
    ],
)
def test_the_largest_part_and_what_would_fit(run: MemoryRequest, free: FreeMemory, said: str) -> None:
    sentence = refusal(run, free)
    assert said in sentence
    assert sentence.startswith(f"preset:{run.model.shape.name} needs ")
    assert sentence.count(". ") == 0
    assert sentence.endswith(".")


def test_what_is_said_to_fit_does() -> None:
    run, free = wanted("llama-3.1-8b", overrides=""), FreeMemory(64 * GIB, (4 * GIB,))
    sentence = refusal(run, free)
    assert "-ngl 16 or --layers 18 would fit" in sentence
    accept(replace(run, placement=place(run.model.tensors, overrides="", n_gpu_layers=16)), free)
    accept(replace(run, model=load_model("llama-3.1-8b", layers=18)), free)
    refusal(replace(run, placement=place(run.model.tensors, overrides="", n_gpu_layers=18)), free)
    refusal(replace(run, model=load_model("llama-3.1-8b", layers=20)), free)


def test_a_config_of_plain_floats_is_offered_a_quant_that_fits() -> None:
    run, free = wanted("llama-3.1-8b", overrides=""), FreeMemory(64 * GIB, (12 * GIB,))
    plain = replace(run, model=replace(load_model("llama-3.1-8b", quant="BF16"), origin="config:llama.json"))
    assert "--quant Q8_0, -ngl" in refusal(plain, free)
    accept(replace(run, model=load_model("llama-3.1-8b", quant="Q8_0")), free)
    assert "--quant Q4_K, -ngl" in refusal(plain, FreeMemory(64 * GIB, (6 * GIB,)))
    assert "--quant" not in refusal(replace(plain, model=replace(plain.model, origin="preset:llama-3.1-8b")), free)


def test_what_was_said_of_the_context_does() -> None:
    run, free = wanted("llama-3.1-8b", cell=GridPoint(2048, 0, 512, 1_000_000)), FreeMemory(64 * GIB, (24 * GIB,))
    n = int(refusal(run, free).split("together) of ")[1].split(" ")[0].replace(",", ""))
    assert 100_000 < n < 250_000
    accept(wanted("llama-3.1-8b", cell=GridPoint(2048, 0, 512, n - 2048)), free)


def test_enough_is_enough() -> None:
    """To the byte: a demand that is met exactly is met."""
    run = wanted("tiny-dense")
    device, host = demands(run, FreeMemory(64 * GIB, (64 * GIB,)))
    accept(run, FreeMemory(host.needed, (device.needed,)))
    refusal(run, FreeMemory(host.needed, (device.needed - 1,)))
    refusal(run, FreeMemory(host.needed - 1, (device.needed,)))


def test_on_cpu_device_memory_is_host_memory() -> None:
    run = wanted("tiny-dense", kind="cpu")
    [memory] = demands(run, FreeMemory(64 * GIB, (None,)))
    device, host = demands(wanted("tiny-dense"), FreeMemory(64 * GIB, (64 * GIB,)))
    reports = run.options.max_ubatches * report_bytes(run.model.shape)  # of tokens, which a GPU alone gives
    assert memory.needed == device.needed + host.needed - reports - device.parts["recordings"]
    assert [d.memory for d in demands(run, FreeMemory(64 * GIB, (GIB,)))] == ["device memory", "memory"]


def test_the_cpu_devices_own_limit() -> None:
    """What the check lets pass a session can reserve; what the session would not get is refused before."""
    run = wanted("tiny-dense", kind="cpu")
    device, _ = demands(run, FreeMemory(64 * GIB, (GIB,)))
    limited = replace(run.options, device=DeviceOptions("cpu", n_threads=1, memory_bytes=device.needed))
    accept(run, FreeMemory(64 * GIB, (device.needed,)))
    Session(run.model, run.placement, run.arms, limited).close()
    refusal(run, FreeMemory(64 * GIB, (device.parts["resident"] + device.parts["slots"] - 1,)))


def test_computing_on_the_host_is_seen_in_the_grid() -> None:
    shape = load_model("tiny-dense").shape
    n_layers = len(shape.layers)
    every, last = list(range(n_layers)), [n_layers - 1]

    def computed(cell: GridPoint, *arms: str, least: int = 32, all_logits: bool = False) -> list[int]:
        return list(layers_on_host(shape, arms, [cell], least, all_logits=all_logits))

    assert computed(GridPoint(64, 0, 32, 0), "off") == last  # for the prompt's last token alone
    assert computed(GridPoint(64, 0, 32, 0), "off", all_logits=True) == []
    assert computed(GridPoint(64, 0, 32, 0), "off", least=1) == []
    assert computed(GridPoint(64, 0, 32, 0), "off", "cpu") == every
    assert computed(GridPoint(65, 0, 32, 0), "off") == every  # one token is left
    assert computed(GridPoint(64, 2, 32, 0), "off") == every
    assert computed(GridPoint(64, 1, 32, 0), "off") == last  # the first token comes from the prompt
    assert computed(GridPoint(65, 8, 32, 0), "full") == []


def test_a_run_asks_the_machine_before_it_writes_or_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=4 * GIB))
    monkeypatch.setattr(Session, "run_pass", None)
    arguments = ["-m", "llama-3.1-8b", "--device", "cpu", "-p", "64", "-n", "0", "-ub", "64"]
    assert hprof.main(["run", *arguments, "-o", str(tmp_path / "c")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hprof: preset:llama-3.1-8b needs ")
    assert "--layers" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "c").exists()


def test_what_is_simulated_needs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=0))
    plan_run(small_request(device=DeviceOptions("sim"), model="llama-3.1-8b", layers=None))
    imagined = DeviceOptions("sim", machine=SimMachine(memory_bytes=GIB))
    with pytest.raises(HprofError, match=r"of device memory for this run and 1 GiB are free"):
        plan_run(small_request(device=imagined, model="llama-3.1-8b", layers=None))


def test_free_memory_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (7 + index, 100))
    assert free_memory(DeviceOptions("cuda", n_devices=2)).devices == (7, 8)
    cpu = free_memory(DeviceOptions("cpu", n_devices=2, memory_bytes=5))
    assert cpu.devices == (5, 5)
    assert cpu.host is not None
    assert 0 < cpu.host <= psutil.virtual_memory().total
    assert free_memory(DeviceOptions("sim")) == FreeMemory(None, (None,))


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 5\ninactive_file 200\n"}, 500),
        ({"memory.max": "1000\n", "memory.current": "1700\n", "memory.stat": ""}, 0),
        ({"memory.max": "max\n", "memory.current": "700\n", "memory.stat": ""}, None),
        ({}, None),
        (
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "400",
                "memory/memory.stat": "cache 9\ntotal_inactive_file 100\n",
            },
            700,
        ),
        ({"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "4"}, None),
        (
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/memory.usage_in_bytes": "4",
                "memory/memory.stat": "",
            },
            None,
        ),
    ],
)
def test_a_containers_limit_counts(
    files: dict[str, str], free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=5000))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_host_bytes(tmp_path) == (5000 if free is None else free)
