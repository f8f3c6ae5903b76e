"""When a process records: by times, by ranges, by hprof's word, by its command line; and what stops it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest

from executor.errors import HprofError
from profiler.importers import Imported
from profiler.recording.session import Recording, RecordingSettings, check_pattern
from tests.profiler.recording.conftest import Stage

Begin = Callable[..., Stage]
KERNEL = 10  # CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
MEMORY = 49


def names(found: Imported) -> list[str]:
    rows = found.tables["events"].to_pylist()
    return sorted(row["name"] for row in rows if row["kind"] == "compute")


def test_pausing_and_resuming(stage: Begin) -> None:
    here = stage()
    here.recording.pause()
    program = here.start(
        "kernel('unseen', 1, 2); print('ready', flush=True); input()",
        f"wait_for(lambda: is_enabled({KERNEL})); kernel('seen', 3, 4); print('done', flush=True); input()",
        f"wait_for(lambda: not is_enabled({KERNEL})); kernel('too late', 5, 6)",
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    here.recording.resume()
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "done\n"
    here.recording.pause()
    assert program.communicate("\n", timeout=60)[1] == ""
    assert names(here.read()) == ["seen"]


def reached(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"


def test_beginning_later(stage: Begin) -> None:
    here = stage(after_s=3600)
    late = f"wait_for(lambda: is_enabled({KERNEL})); kernel('late', 3, 4)"
    program = here.start("kernel('early', 1, 2); print('ready', flush=True)", late)
    reached(program)
    here.recording.control.record_between(time.monotonic_ns() + 50_000_000, 0)  # the hour is over soon
    assert program.communicate(timeout=60)[1] == ""
    assert names(here.read()) == ["late"]


def test_recording_for_some_time(stage: Begin) -> None:
    here = stage(for_s=3600)
    late = f"wait_for(lambda: not is_enabled({KERNEL})); kernel('late', 3, 4)"
    program = here.start("kernel('early', 1, 2); print('ready', flush=True)", late)
    reached(program)
    here.recording.control.record_between(0, time.monotonic_ns() + 50_000_000)
    assert program.communicate(timeout=60)[1] == ""
    found = here.read()
    assert names(found) == ["early"]
    assert found.manifest_fields["extra"]["processes"][0]["ended"]


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        ("nvtx.push_range('here')", "nvtx.pop_range()"),
        ("held = nvtx.start_range('here')", "nvtx.end_range(held)"),
        ("d = nvtx.get_domain('mine'); d.push_range(d.get_event_attributes('here'))", "d.pop_range()"),
    ],
)
def test_inside_a_range_alone(stage: Begin, opens: str, closes: str) -> None:
    here = stage(only_range="here")
    here.run(
        "import nvtx; kernel('before', 1, 2); nvtx.push_range('other'); kernel('other', 3, 4); nvtx.pop_range()",
        f"{opens}; nvtx.push_range('deeper'); kernel('a', 5, 6); nvtx.pop_range(); kernel('b', 7, 8); {closes}",
        f"kernel('between', 9, 10); {opens}; kernel('c', 11, 12); {closes}; kernel('after', 13, 14)",
    )
    found = here.read()
    assert names(found) == ["a", "b", "c"]
    calls = [row["correlation_id"] for row in found.tables["events"].to_pylist() if row["kind"] == "api"]
    work = [row["correlation_id"] for row in found.tables["events"].to_pylist() if row["kind"] == "compute"]
    assert sorted(calls) == sorted(work), "calls are asked for all the time, and those outside are dropped"


def test_times_that_never_come(stage: Begin) -> None:
    here = stage(after_s=1e300, for_s=1e300)
    here.run("kernel('early', 1, 2)")
    assert names(here.read()) == []


def test_until_a_range_begins(stage: Begin) -> None:
    here = stage(until_range="second epoch")
    here.run(
        "import nvtx; nvtx.push_range('first epoch'); kernel('a', 1, 2); nvtx.pop_range()",
        "nvtx.push_range('second epoch'); kernel('b', 3, 4); nvtx.pop_range(); kernel('c', 5, 6)",
    )
    assert names(here.read()) == ["a"]


def test_only_some_processes(stage: Begin) -> None:
    here = stage(process="chosen (one|two)$")
    here.run("kernel('a', 1, 2) # chosen one")
    here.run("kernel('b', 1, 2) # another")
    here.run("kernel('c', 1, 2) # chosen two")
    assert names(here.read()) == ["a", "c"]
    assert len(here.recording.spools()) == 2


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(HprofError, match=r"--process '\(' is no extended regular expression"):
        Recording.begin(RecordingSettings(process="("))
    check_pattern("bytes that are no text \udcff")


def test_the_limit_holds_and_the_program_runs_on(stage: Begin) -> None:
    limit = 2_000_000
    here = stage(max_bytes=limit)
    out = here.run(
        f"kernels('k', 200_000); wait_for(lambda: not is_enabled({KERNEL})); kernels('k', 50_000); print('ran on')"
    )
    assert out == "ran on\n"
    written = sum(path.stat().st_size for path in here.recording.spools())
    assert limit - 100_000 < written < limit + 4096, "the last words are little"
    assert here.recording.control.full == "limit reached"
    found = here.read()
    n_kernels = len(names(found))
    lost, stopped = [text for text in found.warnings if "limit reached" in text]
    assert "records lost: limit reached." in lost
    assert stopped == ("Recording stopped before the end of the program (limit reached): what came then is missing.")
    assert 28_000 < n_kernels < 32_000


def test_two_processes_share_the_limit(stage: Begin) -> None:
    here = stage(max_bytes=1_000_000)
    here.run("kernels('k', 10_000)")
    here.run("kernels('k', 10_000)")
    written = sum(path.stat().st_size for path in here.recording.spools())
    assert written < 1_000_000 + 8192


def test_buffers_are_bounded_and_what_finds_none_is_counted(stage: Begin) -> None:
    """Kernels that never end keep every buffer: CUPTI gets no more than 128 MiB, and says what it dropped."""
    here = stage()
    out = here.run(
        "kernels('k', 800_000, running=True); print(held_buffers())",
    )
    assert int(out) == 512
    found = here.read()
    assert any("records lost: dropped by CUPTI" in text for text in found.warnings)
    assert found.dropped["kernel: no times"] > 0


def test_names_are_bounded_and_what_has_none_is_counted(stage: Begin) -> None:
    """Long names that all differ: the table holds 64 MiB, the records behind it have no name, and that is said."""
    here = stage()
    here.run("for n in range(4500): kernel(f'{n:08d}' + 'x' * 8000, n, n + 1)")
    found = here.read()
    kernels = [row["name"] for row in found.tables["events"].to_pylist() if row["kind"] == "compute"]
    assert len(kernels) == 4500
    assert 4000 < len({name for name in kernels if name}) < 4300
    (said,) = [text for text in found.warnings if "rows without a name" in text]
    assert said.startswith(f"{kernels.count(None)} rows")


def test_settings_that_a_benchmark_tries_reach_cupti(stage: Begin) -> None:
    """HPROF_SPOOL_TRIAL, of benchmarks/gpu/record_candidates.py: what is left out is, and what is refused is told."""
    here = stage()
    out = here.run(
        "kernel('k', 1, 2); copy(1, 2, 3, 100, 3, 4); print([Cuda.calls.standin_attribute(n) for n in (0, 5, 6, 9)])",
        variables={"HPROF_SPOOL_TRIAL": "no_kernels=1,device_bytes=8000000,zeroed=1,per_thread=0,buffer_kib=64,hes=1"},
    )
    assert out == "[8000000, 1, 0, 0]\n"
    found = here.read()
    assert names(found) == []
    assert [row["bytes"] for row in found.tables["events"].to_pylist() if row["kind"] == "h2d"] == [100]
    (problem,) = here.recording.new_problems()
    assert "CUPTI refuses hes: CUPTI_ERROR_STANDIN" in problem


def test_turns_of_a_benchmark_leave_out_one_kind_after_the_other(stage: Begin) -> None:
    """benchmarks/gpu/record_kinds.py: all, all but waits, all, all but copies, ...; a mark says what came when."""
    here = stage()
    here.run(
        "seen = lambda: tuple(is_enabled(kind) for kind in (38, 1, 10, 51))",  # waits, copies, kernels, graphs
        "wait_for(lambda: seen() == (False, True, True, True)); wait_for(lambda: seen() == (True, True, True, True))",
        "wait_for(lambda: seen() == (True, False, True, True)); wait_for(lambda: seen() == (True, True, False, True))",
        "wait_for(lambda: seen() == (True, True, False, False)); wait_for(lambda: seen() == (False,) * 4)",
        "wait_for(lambda: seen() == (True, True, True, True)); kernel('k', 1, 2)",
        variables={"HPROF_SPOOL_TRIAL": "turn_ms=60"},
    )
    found = here.read()
    assert found.manifest_fields["extra"]["nvtx_marks"] >= 12
    assert here.recording.new_problems() == []


def test_a_full_disk_stops_the_recording_alone(stage: Begin) -> None:
    """A limit on the size of files stands for a full disk: writing fails in the middle of a chunk."""
    here = stage()
    out = here.run(
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); kernels('k', 100_000)",
        f"wait_for(lambda: not is_enabled({KERNEL})); print('ran on')",
    )
    assert out == "ran on\n"
    assert here.recording.control.full == "disk full"
    found = here.read()
    assert 3_000 < len(names(found)) < 300_000 / 64
    assert not [text for text in found.warnings if "no whole chunk" in text], "half a chunk is cut off again"
