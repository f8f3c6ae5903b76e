"""Runs and reports by a Dask cluster of two processes tell the same as those of this process, also after a kill."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

import hprof
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint
from profiler.running.runner import run_capture
from profiler.schema import TABLES
from tests.profiler import makers
from tests.profiler.runs import make_capture, small_request, start_capture

distributed = pytest.importorskip("distributed", reason="Dask is an extra: pip install 'hprof[cluster]'")

import profiler.cluster  # noqa: E402
from profiler.cluster import connected, learning_warning, results, run_distributed, submit  # noqa: E402

CELLS = tuple(GridPoint(n_prompt=64, n_gen=2, n_ubatch=n_ubatch, n_depth=0) for n_ubatch in (16, 32, 64))
SWEEP = ["--device", "sim", "--layers", "2", "-p", "64", "-n", "2", "-ub", "16,32,64", "-r", "2"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local:
        yield local


def test_a_sweep_is_the_same_row_by_row(cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["run", *SWEEP, "-o", str(tmp_path / "here")]) == 0
    assert hprof.main(["run", *SWEEP, "--dask", cluster.scheduler_address, "-o", str(tmp_path / "there")]) == 0
    here, there = Capture.open(tmp_path / "here"), Capture.open(tmp_path / "there")
    for name in TABLES:
        assert there.table(name).equals(here.table(name)), name
    assert there.manifest.gathered
    assert there.manifest.arms == here.manifest.arms
    assert there.manifest.warnings == here.manifest.warnings
    assert there.manifest.link_h2d_gb_s == here.manifest.link_h2d_gb_s
    assert len(there.manifest.extra["machines"]) == len(CELLS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "there"], "the cells' own captures are gone"


def test_arms_that_learn_anew_in_each_cell_are_named(cluster: Any, tmp_path: Path) -> None:
    request = small_request("sim", cells=CELLS[:2], arms=("off", "hot", "auto"), model="tiny-moe", repetitions=1)
    writer = start_capture(plan_run(request), tmp_path / "run")
    run_distributed(cluster.scheduler_address, request, writer)
    writer.finish()
    [said] = [text for text in Capture.open(tmp_path / "run").warnings if "in each cell anew" in text]
    assert said.startswith("hot, auto: ")
    assert learning_warning(small_request("sim", cells=CELLS, arms=("off", "on"))) is None
    assert learning_warning(small_request("sim", cells=CELLS[:1], arms=("off", "hot"))) is None


def test_a_worker_killed_half_way(cluster: Any, tmp_path: Path) -> None:
    request = small_request("sim", cells=CELLS, repetitions=8)
    n_attempts: list[int] = []
    killer = threading.Thread(target=_kill_one, args=(cluster, tmp_path, n_attempts))
    killer.start()
    writer = start_capture(plan_run(request), tmp_path / "run")
    run_distributed(cluster.scheduler_address, request, writer)
    writer.finish()
    killer.join()
    assert n_attempts == [len(CELLS) + 1], "one cell was begun again"
    there, here = Capture.open(tmp_path / "run"), make_capture(tmp_path / "here", request)
    for name in TABLES:
        assert there.table(name).equals(here.table(name)), name


def test_a_cell_that_fails_leaves_nothing_behind(cluster: Any, tmp_path: Path) -> None:
    request = small_request("sim", cells=CELLS[:2], repetitions=1)
    writer = start_capture(plan_run(request), tmp_path / "run")
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        client.run(_fail_at, CELLS[1].n_ubatch)
        try:
            with pytest.raises(HprofError, match=r"-ub 32 .*\(ValueError: half way\)"):
                run_distributed(cluster.scheduler_address, request, writer)
        finally:
            client.run(_fail_at, None)
    assert set(Capture.open(tmp_path / "run").passes["n_ubatch"]) == {CELLS[0].n_ubatch}, "what was laid in is kept"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def _fail_at(n_ubatch: int | None) -> None:
    """Of the worker that calls it: end cells of this ubatch with an error once they are written; null: no longer."""

    def run_and_fail(plan: Any, writer: Any) -> None:
        run_capture(plan, writer)
        if plan.request.cells[0].n_ubatch == n_ubatch:
            raise ValueError("half way")

    vars(profiler.cluster)["run_capture"] = run_and_fail


def _kill_one(cluster: Any, folder: Path, n_attempts: list[int]) -> None:
    """Kill a worker that has finished passes of its first cell, and count the attempts at cells until the end."""
    with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
        pids = list(client.run(os.getpid).values())
    _await(lambda: len(list(folder.glob("run.cells-*/*/passes/*.parquet"))) >= 4)
    os.kill(pids[0], signal.SIGKILL)
    seen: set[Path] = set()

    def is_over() -> bool:
        with suppress(FileNotFoundError):  # removed in the end
            seen.update(folder.glob("run.cells-*/*"))
        return Capture.open(folder / "run").manifest.state != "running"

    _await(is_over)
    n_attempts.append(len(seen))


def _await(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_many_captures_are_judged_alike(cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        makers.dense_off_on(tmp_path / name, n_pairs=6)
    assert hprof.main(["report", str(tmp_path), "--json"]) == 0
    here = orjson.loads(capsys.readouterr().out)
    assert hprof.main(["report", "--dask", cluster.scheduler_address, str(tmp_path), "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out) == here
    assert [Path(report["capture"]).name for report in here["reports"]] == ["a", "b", "c"]


def test_a_capture_that_cannot_be_read_costs_only_itself(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    makers.dense_off_on(tmp_path / "good", n_pairs=1)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text("{")
    for option in ([], ["--dask", cluster.scheduler_address]):
        assert hprof.main(["report", *option, str(tmp_path)]) == 2
        captured = capsys.readouterr()
        assert "on was 1.39 x as fast as off" in captured.out
        assert f"{tmp_path}/good --all" in " ".join(captured.out.split())  # a long name breaks the line
        told = [line for line in captured.err.splitlines() if line.startswith("hprof: ")]  # Dask warns too
        assert len(told) == 1
        assert "bad/manifest.json is not valid JSON" in told[0]


def test_what_a_worker_cannot_do_is_one_sentence(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = cluster.scheduler_address
    for options, told in (
        (["--dask", address, "-ncmoe", "1"], "tiny-dense has no experts"),
        (["--dask", address, "--device", "cuda"], "no worker has the resource GPU"),
        (["--dask", address, "--boots", "2"], "--boots"),
        (["--dask", address, "--engine", "llama-bench"], "--engine llama-bench"),
        (["--dask", ""], "names no scheduler"),
        (["--dask", "nonsense://x"], "no scheduler answers there"),
    ):
        assert hprof.main(["run", *SWEEP, *options, "-o", str(tmp_path / "c")]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert told in captured.err
    assert not (tmp_path / "c").exists()


def test_any_other_fault_of_a_worker_names_the_job(cluster: Any) -> None:
    with connected(cluster.scheduler_address) as client:
        futures = [submit(client, int, "7"), submit(client, int, "seven")]
        found = results(client, futures, ["one", "two"])
        assert next(found) == 7
        with pytest.raises(HprofError, match=r"two failed on its worker \(ValueError: .*seven"):
            next(found)


@pytest.mark.parametrize("command", [["run", *SWEEP], ["report", "traces/example"]])
def test_without_dask_the_extra_is_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "profiler.cluster")
    monkeypatch.setitem(sys.modules, "distributed", None)  # importing it raises ModuleNotFoundError
    assert hprof.main([*command, "--dask", "tcp://127.0.0.1:1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "hprof: --dask needs Dask, and there is no module distributed here; pip install 'hprof[cluster]' brings it.\n"
    )
