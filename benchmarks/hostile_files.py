"""What strangers might hand to hprof: one good file or folder of every kind it reads, and each of them broken."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson

from executor.devices.factory import DeviceOptions
from profiler.importers import FORMATS
from profiler.importers.base import trace_format
from profiler.predicting.probe import write_probe
from profiler.probing.passes import probe
from profiler.probing.shapes import TINY
from tests.dashboard.test_hostile import hostile
from tests.executor.models.hf_configs import LLAMA, QWEN3_MOE
from tests.gguf_models import model_path
from tests.profiler import makers
from tests.profiler.importers.test_hostile import changed_cells

EVIL: Final = "=1+1|\x1b[31m\x1b]0;owned\x07[red]x[/red]\u202e<b>$(touch owned);'\""
_RUN: Final = "run --device sim -m tiny-moe --arms off,on -p 64 -n 2 -ub 32 -r 2"
_MOST_CELLS: Final = 4096  # bytes of a text whose cells are changed
SPECIAL: Final = (
    "",
    "/dev/null",
    "/dev/zero",
    "/proc/self/mem",
    "/proc/self/environ",
    "x" * 400,
    "a\nb",
    "-",
    "~",
    "*",
)


def good_files(folder: Path) -> dict[str, list[Path]]:
    """Write them into `folder`, by kind: captures, traces, models, probes and routing traces."""
    folder.mkdir()
    captures: dict[str, Callable[[Path], object]] = {
        "hostile": lambda path: hostile(path, EVIL),
        "dense": lambda path: makers.dense_off_on(path, 2),
        "moe": lambda path: makers.moe_off_on(path, 2),
        "interrupted": makers.interrupted,
        "imported": makers.imported_without_passes,
        "no-events": makers.passes_without_events,
        "empty": makers.empty,
        "ordered": lambda path: _hprof(*_RUN.split(), "--record-ordering", "-o", str(path)),
        "predicted": lambda path: _hprof("predict", "-m", "tiny-moe", "-ub", "32,64", "-p", "64", "-o", str(path)),
        "command": lambda path: _hprof(
            "run", "--engine", "command", "--arm", "a=true", "--arm", "b=true", "-o", str(path)
        ),
    }
    for name, make in captures.items():
        make(folder / name)
    traces = [folder / f"{kind}.trace" for kind in FORMATS]
    for path, kind in zip(traces, FORMATS, strict=True):
        path.write_bytes(trace_format(kind).sample())
    configs = [folder / "llama.json", folder / "moe.json"]
    for path, config in zip(configs, (LLAMA, QWEN3_MOE), strict=True):
        path.write_bytes(orjson.dumps(config))
    write_probe(probe(DeviceOptions("sim"), ("Q8_0",), models=TINY), folder / "probe.json")
    (folder / "routing.jsonl").write_text('{"layer": 0, "experts": [[0, 1], [2, 3]]}\n')
    return {
        "capture": [folder / name for name in captures],
        "trace": traces,
        "model": [*configs, Path(shutil.copy(model_path("qwen3moe-e8k2-Q4_K"), folder / "moe.gguf"))],
        "probe": [folder / "probe.json"],
        "routing": [folder / "routing.jsonl"],
    }


def _hprof(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "hprof", *words], check=True, capture_output=True)


def broken(path: Path, folder: Path, rng: random.Random) -> Path:
    """A copy in `folder` of what lies at `path`, with one of its files broken in one way."""
    copy = folder / f"{rng.randrange(1000)}-{path.name}"
    if path.is_dir():
        shutil.copytree(path, copy)
        files = sorted(file for file in copy.rglob("*") if file.is_file())
        victim = rng.choice(files) if rng.random() < 0.6 else copy / "manifest.json"
    else:
        victim = Path(shutil.copy(path, copy))
    rng.choice(_BREAKS)(victim, rng)
    return copy


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 8) if content else 0):
        content[rng.randrange(len(content))] ^= rng.randint(1, 255)
    path.write_bytes(content)


def _cut(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(1 + path.stat().st_size)])


def _change_cell(path: Path, rng: random.Random) -> None:
    """One number or word of a text becomes another; of a binary file, bytes."""
    content = path.read_bytes()
    changed = list(changed_cells(content)) if len(content) < _MOST_CELLS else []
    if changed:
        path.write_bytes(rng.choice(changed))
    else:
        _change_word(path, content, rng)


def _change_word(path: Path, content: bytes, rng: random.Random) -> None:
    at = rng.randrange(1 + len(content))
    word = rng.choice([b"\xff" * 8, b"\0" * 8, b"1e999", b"-1", b'"', b"{" * 50, EVIL.encode(), b"\n" * 100])
    path.write_bytes(content[:at] + word + content[at + len(word) * rng.randint(0, 1) :])


def _become_other(path: Path, rng: random.Random) -> None:
    path.unlink()
    other = rng.choice(["pipe", "folder", "loop", "away", "nothing", "zeros"])
    if other == "pipe":
        os.mkfifo(path)
    elif other == "folder":
        path.mkdir()
    elif other in ("loop", "away"):
        path.symlink_to(path if other == "loop" else "/etc/passwd")
    elif other == "zeros":
        with path.open("wb") as file:
            file.truncate(1 << rng.randrange(10, 40))


def _twice(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() * 2)


_BREAKS: Final[tuple[Callable[[Path, random.Random], None], ...]] = (
    _flip,
    _cut,
    _change_cell,
    _change_cell,
    _become_other,
    _twice,
)
