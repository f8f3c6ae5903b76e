"""A good capture is never lost for one that is not yet: replaced at the first measured pass, imported whole or left."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import hprof
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.importers import import_files
from profiler.manifest import MANIFEST_NAME
from profiler.running.runner import kept_passes
from profiler.storage.store import Store
from profiler.storage.writer import CaptureWriter, PassKey, new_capture
from tests.profiler import makers
from tests.support import ROOT, contents

TRACE = ROOT / "tests" / "data" / "llama-bench" / "smollm2.jsonl"


def test_the_old_capture_is_there_until_the_first_pass_of_the_new_one(tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=2)
    writer = new_capture(tmp_path / "c", force=True, argv=["new"])
    writer.update_manifest(warnings=["of the new one"])
    writer.plan_pass(0, PassKey("on"))
    assert len(Capture.open(tmp_path / "c").passes) == 6
    writer.record_pass(0, makers.dense_result())
    now = Capture.open(tmp_path / "c")
    assert (now.manifest.argv, now.manifest.warnings, now.manifest.state) == (["new"], ["of the new one"], "running")
    assert now.passes["arm"].tolist() == ["on"]
    assert now.table("events").num_rows == 12
    writer.finish()
    done = Capture.open(tmp_path / "c")
    assert done.passes["arm"].tolist() == ["on"]
    assert done.table("events").num_rows == done.manifest.rows["events"] == 12
    assert sorted(contents(tmp_path / "c")) == sorted(
        ["manifest.json", *(f"{t}/all-{done.manifest.parts}000000.parquet" for t in ("events", "passes", "ubatches"))]
    )


@pytest.mark.parametrize("end", [lambda writer: writer.abandon(), lambda writer: writer.finish("interrupted")])
def test_what_never_had_a_pass_leaves_the_old_one_to_the_byte(
    tmp_path: Path, end: Callable[[CaptureWriter], None]
) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    before = contents(tmp_path / "c")
    writer = new_capture(tmp_path / "c", force=True)
    writer.write_part("events", {"pass_id": [0], "kind": ["h2d"], "t_start": [0], "t_end": [1]}, "pass-000000")
    end(writer)
    assert contents(tmp_path / "c") == before
    end(new_capture(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("end", [lambda writer: writer.abandon(), lambda writer: writer.finish("interrupted")])
def test_warm_ups_wait_for_the_first_measured_pass(tmp_path: Path, end: Callable[[CaptureWriter], None]) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    before = contents(tmp_path / "c")
    ended, writer = (new_capture(tmp_path / "c", force=True) for _ in range(2))
    for replacing in (ended, writer):
        replacing.plan_pass(0, PassKey("on", warmup=True))
        replacing.record_pass(0, makers.dense_result())
    end(ended)
    assert len(Capture.open(tmp_path / "c").passes) == 4
    writer.plan_pass(1, PassKey("on"))
    writer.record_pass(1, makers.dense_result())
    assert Capture.open(tmp_path / "c").passes["warmup"].tolist() == [True, False]
    assert not before.keys() & contents(tmp_path / "c").keys() - {MANIFEST_NAME}


def test_a_fresh_run_keeps_its_warm_ups(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c")
    writer.plan_pass(0, PassKey("on", warmup=True))
    writer.record_pass(0, makers.dense_result())
    writer.finish("interrupted")
    assert Capture.open(tmp_path / "c").passes["warmup"].tolist() == [True]
    assert kept_passes(writer) == (
        f"{tmp_path / 'c'} keeps 0 measured passes and 1 warm-up, and `hprof report` reads it"
    )


def test_an_interrupt_just_after_the_renaming_leaves_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    writer = new_capture(tmp_path / "c", force=True)
    writer.plan_pass(0, PassKey("on"))
    write = Store.write

    def interrupted(store: Store, name: str, data: object, *, is_new: bool = False) -> None:
        write(store, name, data, is_new=is_new)
        if name == MANIFEST_NAME:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.record_pass(0, makers.dense_result())
    writer.finish("interrupted")
    assert Capture.open(tmp_path / "c").passes["arm"].tolist() == ["on"]


def test_a_run_on_a_full_disk_leaves_nothing_beside_the_old_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    before = contents(tmp_path / "c")
    for whole in range(100):
        writer = new_capture(tmp_path / "c", force=True)
        writer.plan_pass(0, PassKey("on"))
        room = iter(range(whole))

        def sync(_handle: int, room: object = room) -> None:
            if next(room, None) is None:  # type: ignore[call-overload]
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", sync)
            try:
                writer.record_pass(0, makers.dense_result())
            except HprofError:
                writer.finish("interrupted")
            else:
                break
        assert contents(tmp_path / "c") == before
    assert whole >= 4, "events, ubatches, passes and the manifest"


def test_a_run_that_was_replaced_while_it_wrote_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_capture(tmp_path / "c", argv=["first"])
    first.plan_pass(0, PassKey("off"))
    check = CaptureWriter._check_ours

    def replaced_just_after(writer: CaptureWriter) -> None:
        check(writer)
        if writer is first:
            makers.dense_off_on(tmp_path / "c", 1, force=True)

    with monkeypatch.context() as patched:
        patched.setattr(CaptureWriter, "_check_ours", replaced_just_after)
        first.record_pass(0, makers.dense_result())
    assert "passes/pass-000000.parquet" in contents(tmp_path / "c")
    with pytest.raises(HprofError, match="was replaced by another run"):
        first.finish("interrupted")
    assert len(Capture.open(tmp_path / "c").passes) == 4
    assert not [name for name in contents(tmp_path / "c") if "pass-" in name]


def test_a_kill_at_any_write_leaves_one_whole_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write and removal of a replacing run is its last one in turn: the old passes are there, or a new one."""
    n_calls = 0
    while True:
        path = tmp_path / str(n_calls)
        makers.dense_off_on(path, n_pairs=1)
        with monkeypatch.context() as patched:
            for method in ("write", "remove"):
                patched.setattr(Store, method, _stops_after(n_calls, getattr(Store, method)))
            try:
                makers.dense_off_on(path, n_pairs=1, force=True)
            except KeyboardInterrupt:
                was_killed = True
            else:
                was_killed = False
        capture = Capture.open(path)
        n_passes = len(capture.passes)
        assert n_passes == 4 if capture.manifest.parts == "" else n_passes >= 1
        assert capture.table("events").num_rows == 12 * n_passes
        if not was_killed:
            break
        n_calls += 1
    assert n_calls > 10


def _stops_after(n_calls: int, method: Callable[..., None]) -> Callable[..., None]:
    calls = iter(range(n_calls))

    def stopping(*arguments: object, **options: object) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        method(*arguments, **options)

    return stopping


@pytest.mark.parametrize(
    "refused",
    [
        ["--device", "sim", "-ts", "100/1"],
        ["--device", "cpu", "-d", "2147483647", "-p", "32", "-n", "1", "-ub", "32"],
        ["--device", "sim", "-m", "no-such-model"],
    ],
)
def test_a_refused_run_leaves_what_was_there(tmp_path: Path, refused: list[str]) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    before = contents(tmp_path / "c")
    assert hprof.main(["run", "-o", str(tmp_path / "c"), "--force", *refused]) == 2
    assert contents(tmp_path / "c") == before


def test_an_import_on_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_files([TRACE], tmp_path / "c")
    before = contents(tmp_path / "c")
    whole = 0
    while True:
        room = iter(range(whole))

        def sync(_handle: int, room: object = room) -> None:
            if next(room, None) is None:  # type: ignore[call-overload]
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", sync)
            try:
                import_files([TRACE], tmp_path / "c", force=True, argv=["again"])
            except HprofError as error:
                assert "No space left on device" in str(error)  # noqa: PT017
            else:
                break
            assert contents(tmp_path / "c") == before
            with pytest.raises(HprofError, match="No space left"):
                import_files([TRACE], tmp_path / "new")
            assert not (tmp_path / "new").exists()
        whole += 1
    assert whole >= 2
    assert Capture.open(tmp_path / "c").manifest.argv == ["again"]


def test_a_killed_import_is_no_capture_and_blocks_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from profiler.importers import import_files\n"
        "from profiler.storage.writer import CaptureWriter\n"
        "CaptureWriter.finish = lambda *_: os.kill(os.getpid(), 9)\n"
        "import_files([Path(sys.argv[1])], sys.argv[2])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(TRACE), str(tmp_path / "c")], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / "c" / "passes").iterdir())
    with pytest.raises(HprofError, match="is no capture"):
        Capture.open(tmp_path / "c")
    import_files([TRACE], tmp_path / "c")
    again = Capture.open(tmp_path / "c")
    assert len(again.passes) == again.manifest.rows["passes"]
    assert len(list((tmp_path / "c" / "passes").iterdir())) == 1, "what the killed one left has gone"


def test_of_two_imports_at_once_one_is_refused_and_the_other_whole(tmp_path: Path) -> None:
    first, second = (new_capture(tmp_path / "c", source="nsys", at_once=True, argv=[name]) for name in "ab")
    for writer in (first, second):
        writer.write_part("events", {"kind": ["h2d"], "t_start": [0], "t_end": [1]}, "file-000-0000")
    second.finish()
    with pytest.raises(HprofError, match="run again into another folder"):
        first.finish()
    first.abandon()
    capture = Capture.open(tmp_path / "c")
    assert capture.manifest.argv == ["b"]
    assert capture.table("events").num_rows == 1


def test_boots_replace_a_capture_too(tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    run = ["run", "--device", "sim", "-p", "32", "-n", "1", "-ub", "32", "-r", "1", "--arms", "off"]
    assert hprof.main([*run, "--boots", "2", "-o", str(tmp_path / "c"), "--force"]) == 0
    capture = Capture.open(tmp_path / "c")
    assert capture.manifest.state == "complete"
    assert set(capture.passes["boot"]) == {0, 1}
    assert not [name for name in contents(tmp_path / "c") if name.endswith(".tmp")]


@pytest.mark.parametrize("boots", ["1", "2"])
def test_a_replacing_run_that_is_ended_before_its_first_pass(tmp_path: Path, boots: str) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    before = contents(tmp_path / "c")
    run = ["run", "--device", "cpu", "-p", "4096", "-n", "1", "-ub", "32", "-r", "1", "--boots", boots, "--link-gb-s"]
    command = [sys.executable, "-P", "-m", "hprof", *run, "0.001", "-o", str(tmp_path / "c"), "--force"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "c").glob(f".{MANIFEST_NAME}.*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    assert stderr.startswith("hprof: terminated; no measured pass was finished, and ")
    assert stderr.count("\n") == 1
    assert contents(tmp_path / "c") == before
