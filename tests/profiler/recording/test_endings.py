"""However a process ends, its spool holds what was completed, and says how it ended."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.profiler.recording.conftest import Stage
from tests.profiler.recording.test_control import names

Begin = Callable[..., Stage]
# What is completed is in the file a second later: the program waits until the spool is no longer growing for that.
WRITTEN = (
    "import glob; spools = glob.glob(os.environ['HPROF_SPOOL_FOLDER'] + f'/{os.getpid()}-*')",
    "size = lambda: os.path.getsize(spools[0]); before = size(); kernel('kept', 1, 2)",
    "wait_for(lambda: size() > before + 200)",
)
LAST_WORDS = "ended without the recorder's last words"


def test_killed(stage: Begin) -> None:
    here = stage()
    program = here.start(*WRITTEN, "kernel('running', 3, None); print('ready', flush=True); time.sleep(60)")
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.kill()
    program.wait()
    found = here.read()
    assert names(found) == ["kept"]
    assert any(LAST_WORDS in text and str(program.pid) in text for text in found.warnings)


def test_left_by_exit_without_handlers(stage: Begin) -> None:
    here = stage()
    here.run(*WRITTEN, "os._exit(3)", code=3)
    found = here.read()
    assert names(found) == ["kept"]
    assert any(LAST_WORDS in text for text in found.warnings)


def test_left_by_an_exception(stage: Begin) -> None:
    here = stage()
    program = here.start("kernel('k', 1, 2); raise RuntimeError")
    assert "RuntimeError" in program.communicate(timeout=60)[1]
    found = here.read()
    assert names(found) == ["k"]
    assert not any(LAST_WORDS in text for text in found.warnings)


def test_ended_by_a_signal_that_ends_in_order(stage: Begin) -> None:
    here = stage()
    program = here.start(
        "import sys; signal = __import__('signal'); signal.signal(15, lambda *_: sys.exit(7))",
        "kernel('k', 1, 2); print('ready', flush=True); time.sleep(60)",
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 7
    assert names(here.read()) == ["k"]


def test_a_fork_leaves_the_parents_spool_alone(stage: Begin) -> None:
    """The child has no CUPTI, as it has no CUDA; its ranges go into a spool of its own."""
    here = stage()
    out = here.run(
        "import nvtx; kernel('before', 1, 2)",
        "child = os.fork()",
        "if child == 0: nvtx.push_range('in the child'); nvtx.pop_range(); sys.exit(0)",
        "print(child, os.waitpid(child, 0)[1]); kernel('after', 3, 4)",
    )
    child, status = map(int, out.split())
    assert status == 0
    found = here.read()
    assert names(found) == ["after", "before"]
    by_process = {row["process"]: row for row in found.manifest_fields["extra"]["processes"]}
    assert set(by_process) == {here.programs[0].pid, child}
    assert (by_process[child]["parent"], by_process[child]["cupti"]) == (here.programs[0].pid, None)
    assert found.manifest_fields["extra"]["nvtx_ranges"] == 1
    assert not any("lost" in text or LAST_WORDS in text for text in found.warnings)


def test_a_program_that_closes_all_descriptors_keeps_its_own_files(stage: Begin, tmp_path: Path) -> None:
    """The spool's number then belongs to a file of the program's, into which nothing may be written."""
    here = stage()
    here.run(
        f"kernel('before', 1, 2); os.closerange(3, 256); own = {str(tmp_path / 'own')!r}",
        "files = [open(own + str(n), 'w') for n in range(20)]",
        "kernels('k', 3000); kernel('after', 3, 4)",
    )
    assert {path.stat().st_size for path in tmp_path.glob("own*")} == {0}
    found = here.read()
    assert {"before", "k", "after"} == set(names(found))
    assert not any(LAST_WORDS in text for text in found.warnings)


def test_two_processes_at_once_are_kept_apart(stage: Begin) -> None:
    here = stage()
    lines = "print('ready', flush=True); input(); kernel('{}', 1, 2); copy(1, 2, 3, {}, 3, 4)"
    programs = [here.start(lines.format(name, size)) for name, size in (("a", 10), ("b", 20))]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.communicate("\n", timeout=60)[1] == ""
    rows = here.read().tables["events"].to_pylist()
    of_process = {row["process"]: row["name"] for row in rows if row["kind"] == "compute"}
    assert of_process == {programs[0].pid: "a", programs[1].pid: "b"}
    sizes = {row["process"]: row["bytes"] for row in rows if row["kind"] == "h2d"}
    assert sizes == {programs[0].pid: 10, programs[1].pid: 20}


def test_children_are_recorded(stage: Begin) -> None:
    here = stage()
    here.run(
        "import subprocess; words = [sys.executable, sys.argv[0], sys.argv[1], \"kernel('child', 1, 2)\"]",
        "kernel('parent', 1, 2); subprocess.run(words, check=True)",
    )
    assert names(here.read()) == ["child", "parent"]


def test_a_program_without_cuda_leaves_nothing(stage: Begin) -> None:
    here = stage()
    assert here.run("print('done')", cuda=False) == "done\n"
    assert here.recording.spools() == []
    assert here.recording.new_problems() == []


def test_a_program_without_cuda_leaves_its_ranges(stage: Begin) -> None:
    here = stage()
    here.run("import nvtx; nvtx.push_range('a'); nvtx.pop_range()", cuda=False)
    found = here.read()
    assert found.manifest_fields["extra"]["nvtx_ranges"] == 1
    assert any("no recorded process used a CUDA device" in text for text in found.warnings)
