"""What cannot be recorded is said in a sentence, at once, and the program runs on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from executor.errors import HprofError
from profiler.recording import build, session
from profiler.recording.build import built_library
from profiler.recording.cupti_files import CuptiHeaders, find_headers, find_libraries
from profiler.recording.session import Recording, RecordingSettings
from tests.profiler.recording.conftest import Stage

Begin = Callable[..., Stage]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"STANDIN_TAKEN": "1"}, r"another profiler holds CUPTI in this process already .*, and CUPTI admits one"),
        ({"STANDIN_VERSION": "0"}, r"it does not tell its version: there is no driver, or one that is too old"),
        ({"STANDIN_VERSION": "17"}, r"CUPTI 11 \(API version 17\), and hprof found no headers of it"),
        ({"STANDIN_VERSION": "140000"}, r"CUPTI 14 \(API version 140000\), and hprof found no headers of it"),
        ({"STANDIN_REFUSES": "10"}, r"CUPTI does not record activity kind 10: CUPTI_ERROR_STANDIN \(35\)"),
        ({"HPROF_SPOOL_LIBCUPTI": "/no/such/libcupti.so.13"}, r"CUPTI could not be started \(/no/such/libcupti"),
        ({"HPROF_SPOOL_LIBCUPTI": ""}, r"CUPTI could not be started \(no libcupti of CUDA 12 or 13 was found\)"),
    ],
)
def test_the_program_runs_on(stage: Begin, variables: dict[str, str], said: str) -> None:
    here = stage()
    program = here.start("kernel('k', 1, 2); print('ran')", variables=variables)
    assert program.communicate(timeout=60) == ("ran\n", "")
    (problem,) = here.recording.new_problems()
    assert re.match(f"process {program.pid}: .*{said}", problem)
    assert here.recording.new_problems() == [], "each is said once"
    assert any(re.search(said, text) for text in here.read().warnings), "and stands in the capture"


def test_a_libcupti_that_fails_gives_way_to_the_next(stage: Begin, tmp_path: Path) -> None:
    here = stage()
    broken = tmp_path / "libcupti.so.13"
    broken.write_bytes(b"no library")
    here.run("kernel('k', 1, 2)", variables={"HPROF_SPOOL_LIBCUPTI": f"{broken}:{here.standin}"})
    assert here.recording.new_problems() == []
    assert any(row["kind"] == "compute" for row in here.read().tables["events"].to_pylist())


@pytest.mark.parametrize("name", ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"])
def test_another_profiler_is_told_from_the_environment(stage: Begin, name: str) -> None:
    with pytest.raises(HprofError, match=f"another profiler is set up already: {name} is '/opt/nsys.so'"):
        stage().recording.environment({name: "/opt/nsys.so"})


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(HprofError, match=r"found no C\+\+ compiler .* install one"):
        Recording.begin(RecordingSettings())


def test_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: "g++")
    monkeypatch.setattr(build, "find_headers", list)
    with pytest.raises(HprofError, match=r"found no headers of CUPTI .*pip install 'hprof\[record\]'"):
        Recording.begin(RecordingSettings())


def test_no_libcupti(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "built_library", lambda: tmp_path / "library.so")
    monkeypatch.setenv("HPROF_LIBCUPTI", str(tmp_path / "none"))
    with pytest.raises(HprofError, match=r"needs libcupti .*pip install 'hprof\[record\]'"):
        Recording.begin(RecordingSettings())


def test_headers_that_do_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, standins: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cupti_version.h").write_text("#define CUPTI_API_VERSION 130000\n")
    layouts = ("Kernel9", "Memcpy5", "MemcpyPtoP4", "Memset4", "GraphTrace", "Synchronization", "Memory3", "Device4")
    text = "".join(f"typedef struct {{ int kind; }} CUpti_Activity{name};\n" for name in (*layouts, "Context"))
    (tmp_path / "cupti_activity.h").write_text(text)
    headers = CuptiHeaders(130000, tmp_path, tmp_path)
    monkeypatch.setattr(build, "find_headers", lambda: [headers])
    with pytest.raises(HprofError, match=r"the recorder's library does not compile with .*error"):
        built_library()
    assert list((tmp_path / "cache" / "hprof").iterdir()) == [], "nothing half built stays"


def test_the_newest_layout_is_taken(tmp_path: Path) -> None:
    text = "} CUpti_ActivityKernel;\n} CUpti_ActivityKernel9;\n} CUpti_ActivityKernel10;\n} CUpti_ActivityKernelX3;\n"
    (tmp_path / "cupti_activity.h").write_text(text + "} CUpti_ActivityStream;\n")
    headers = CuptiHeaders(130000, tmp_path, tmp_path)
    assert headers.newest_layout("Kernel") == "CUpti_ActivityKernel10"
    assert headers.newest_layout("Stream") == "CUpti_ActivityStream"
    with pytest.raises(HprofError, match="has no record CUpti_ActivityMemory"):
        headers.newest_layout("Memory")


def test_a_toolkit_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    include, library = tmp_path / "extras" / "CUPTI" / "include", tmp_path / "extras" / "CUPTI" / "lib64"
    for folder in (include, library, tmp_path / "include"):
        folder.mkdir(parents=True)
    (include / "cupti_activity.h").touch()
    (tmp_path / "include" / "cuda.h").touch()
    (include / "cupti_version.h").write_text("#define CUPTI_API_VERSION 990000\n")
    (library / "libcupti.so.99").touch()
    (library / "libcupti.so.11").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("HPROF_LIBCUPTI", raising=False)
    newest = find_headers()[0]
    assert (newest.api_version, newest.cuda_major, newest.cupti) == (990000, 99, include)
    assert find_libraries()[0] == library / "libcupti.so.99"
    assert library / "libcupti.so.11" not in find_libraries()
