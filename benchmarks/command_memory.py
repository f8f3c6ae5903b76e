"""How much memory each command takes for a file of 10 M events; none may hold more than 3 GB.

    python -m benchmarks.command_memory                 # 10 M events: some 20 minutes of two cores, 4 GB of disk
    python -m benchmarks.command_memory --events 1e6 --only import

The files: a Kineto JSON, an nsys SQLite file and an nsys parquetdir; a capture of hprof's (passes of 28,800 events,
arms `off` and `on`) and one of two imported traces; ordering records, of which there are a tenth as many. Each command
runs in a process of its own. `dashboard` is a process that opens seven pages one after the other. Peak is what the
process held at most (ru_maxrss). Exit code 1 where one held more, or did not end well. Seen:
benchmarks/results/memory.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.import_scale import INPUTS
from benchmarks.metrics_scale import write_capture, write_import
from benchmarks.ordering_check import one_pass, repeated
from profiler.storage.writer import new_capture

_LIMIT_BYTES: Final = 3_000_000_000
_ENDINGS: Final = (0, 1)  # 1: a check found something
_PAGES: Final = ("overview", "timeline", "sweep", "selective", "layers", "memory", "advise")
_READERS: Final = (
    ("report", "{0}"),
    ("report", "{0}", "--json"),
    ("compare", "{0}", "{0}"),
    ("export", "{0}", "-o", "{out}/chrome.json", "--force"),
    ("export", "{0}", "--passes", "all", "-o", "{out}/all.json.gz", "--force"),
    ("export", "{0}", "--format", "html", "-o", "{out}/page.html", "--force"),
    ("export", "{0}", "--format", "csv", "-o", "{out}/csv", "--force"),
    ("export", "{0}", "--format", "parquet", "-o", "{out}/parquet", "--force"),
    ("list", "{root}"),
    ("dashboard", "{root}"),
)


def write_ordering(path: Path, n_operations: int) -> None:
    """A capture of ordering records, pass after pass of one that was simulated."""
    writer = new_capture(path, source="cupti", arms=[])  # no row of `passes` beside each part
    writer.write_part("ordering", repeated(one_pass("on"), n_operations), "all")
    writer.finish()


_WRITERS: Final[dict[str, Callable[[Path, int], None]]] = {
    **{name: kind.write for name, kind in INPUTS.items()},
    "hprof": write_capture,
    "two traces": write_import,
    "ordering": write_ordering,
}
_CAPTURES: Final = ("hprof", "two traces")


def written(name: str, path: Path, n_events: int) -> Path:
    """Write a file in a process of its own: what this one held at most would be told of each of its children."""
    words = ["--write", name, str(path), "--events", str(n_events)]
    subprocess.run([sys.executable, "-m", "benchmarks.command_memory", *words], check=True)
    return path


def peak_of(command: Sequence[str]) -> tuple[int, int, float]:
    """(exit code, the most bytes that it held, seconds); what it said is printed where it did not end well."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in _ENDINGS:
            said.seek(0)
            print(said.read().decode(errors="replace")[-2000:], file=sys.stderr)
    return child.returncode, used.ru_maxrss * 1024, time.monotonic() - began_s


def open_pages(root: Path) -> None:
    """What the dashboard's process reads for one session that looks at every page."""
    from streamlit.testing.v1 import AppTest

    sys.argv = ["app.py", "--traces", str(root)]
    session = AppTest.from_file(str(Path(__file__).resolve().parents[1] / "dashboard" / "app.py"), default_timeout=900)
    session.run()
    for page in _PAGES:
        session.switch_page(f"views/{page}.py").run()
        if session.exception:
            raise SystemExit(f"{page}: {session.exception[0].message}")


def commands_of(name: str, words: Sequence[str], file: Path, root: Path, out: Path) -> tuple[str, list[str]]:
    """How a command is called in the table, and what starts it."""
    filled = [word.format(file, root=root, out=out) for word in words]
    told = " ".join(word for word in words if "{" not in word and word not in ("-o", "--force"))
    if name == "dashboard":
        return "dashboard's pages", [sys.executable, "-m", "benchmarks.command_memory", "--pages", str(root)]
    return told, [sys.executable, "-m", "hprof", *filled]


def measured(n_events: int, only: str) -> Iterator[tuple[str, str, int, int, float]]:
    """(file, command, exit code, bytes, seconds) of each command and file."""
    with tempfile.TemporaryDirectory(prefix="hprof-memory-") as folder:
        out = Path(folder) / "out"
        out.mkdir()
        for name, kind in INPUTS.items() if only in "import" else ():
            source = written(name, out / kind.file_name, n_events)
            words: tuple[str, ...] = ("import", "{0}", "-o", "{out}/capture", "--force")
            told, command = commands_of("import", words, source, out, out)
            yield (name, told, *peak_of(command))
        for number, name in enumerate(_CAPTURES):
            readers = [words for words in _READERS if only in words[0]]
            root = Path(folder) / str(number)
            capture = written(name, root / "capture", n_events) if readers else root
            for words in readers:
                told, command = commands_of(words[0], words, capture, root, out)
                yield (name, told, *peak_of(command))
        if only in "check":
            ordered = written("ordering", Path(folder) / "ordered", n_events // 10)
            told, command = commands_of("check", ("check", "{0}"), ordered, ordered, out)
            yield ("ordering", told, *peak_of(command))


def main() -> int:
    """Print the table; 1 where a command held too much or did not end well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=float, default=1e7, help="events of each file [1e7]")
    parser.add_argument("--only", default="", help="commands whose name holds this")
    parser.add_argument("--pages", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        _WRITERS[options.write[0]](Path(options.write[1]), int(options.events))
        return 0
    if options.pages:
        open_pages(options.pages)
        return 0
    is_bad = False
    print("| file | command | exit code | peak GB | seconds |", "|---|---|---|---|---|", sep="\n", flush=True)
    for name, told, code, n_bytes, seconds in measured(int(options.events), options.only):
        is_bad |= code not in _ENDINGS or n_bytes > _LIMIT_BYTES
        print(f"| {name} | `{told}` | {code} | {n_bytes / 1e9:.2f} | {seconds:.0f} |", flush=True)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
