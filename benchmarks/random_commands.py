"""Random command lines over all commands and options, with broken files and absurd values.

    python -m benchmarks.random_commands              # 2,000 of them, seed 16
    python -m benchmarks.random_commands --only predict --lines 200 --seed 3

Each runs in a forked child with its own folder as working directory. It is wrong where it prints a traceback or
something that steers a terminal, ends with another code than README's, does not end by Ctrl-C where it takes longer
than --slow, or holds more than 3 GB. Exit code 1 where one was wrong.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from benchmarks.forked_commands import TRACES, RunningCommand, load_commands, start
from benchmarks.hostile_files import EVIL, SPECIAL, broken, good_files
from hprof.command_line import COMMANDS

_CODES: Final = (0, 1, 2, 130)
_MOST_BYTES: Final = 3_000_000_000
_ANSWERS_S: Final = 20.0  # after Ctrl-C
_LEFT_OUT: Final = ("boot", "boot_path", "boot_run")  # hprof's own, between its processes

_NUMBERS: Final = (
    "0",
    "1",
    "2",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1e308",
    "9" * 30,
    "2147483647",
    "1_000",
    "\u0665",
    "",
    " 3",
)
_GRIDS: Final = ("32", "8,64", "16-64*2", "16-64+16", "1-9999999*1", "64-8*2", "1,,2", "0", "1-1000000+1", *_NUMBERS)
_SIZES: Final = ("1MiB", "24GiB", "0", "1e400GiB", "-1GiB", "1 GB", "9" * 40, "GiB")
_REGEXES: Final = ("ffn_.*=CPU", "(a+)+$=CPU", "(=CPU", "exps=CPU;attn=CPU", ".*=CUDA0", "=CPU", "(.*)*" * 50 + "=CPU")
_METRICS: Final = ("t/s=([0-9.]+)", "t/s=(a+)+b", "x=y", "t_ms=(" + "(" * 200, "ttft_ns=1", "a/s=(?=x)", "b_s=.*{9999}")
_TEXTS: Final[Mapping[str, Sequence[str]]] = {
    "quant": ("Q4_0", "Q4_K_M", "IQ2_XXS", "F16", "NVFP4", "q4_k", "Q4_K_M,Q8_0", "Q99"),
    "quants": ("Q8_0", "Q4_K,Q6_K", "Q4_K_M", "", ",", "Q99"),
    "routing": ("model", "lognormal", "zipf:s=1", "zipf:s=nan", "uniform", "lognormal:sigma=1e308", "zipf:=", "trace:"),
    "n_prompt": _GRIDS,
    "n_gen": ("0", "2", *_NUMBERS),
    "n_ubatch": _GRIDS,
    "n_depth": _GRIDS,
    "ncmoe": _GRIDS,
    "n_gpu_layers": ("all", "auto", "0-99", *_NUMBERS),
    "override_tensor": _REGEXES,
    "vram_budget": _SIZES,
    "device_memory": _SIZES,
    "max_bytes": _SIZES,
    "arms": ("off,on", "off,off", "full", "both", "both+cache,off", "hot,auto", "off,,on", "nope", "cpu+cache", "all"),
    "prefetch": ("0,1", "1", "2", "0,0", ""),
    "tensor_split": ("1", "3/1", "1/0", "0/0", "-1/2", "nan/1", "1/" * 200 + "1", "1e308/1"),
    "gpu": ("rtx4090", "h100", "RTX 4090", "rtx", "\u0130"),
    "link": ("gen4x16", "gen5x8", "nvlink", "gen"),
    "metric": _METRICS,
    "arm": ("a=true", "b=false", "c=sleep 0", "d=", "=x", "e='", "f=no-such-program", "a=X=1 true"),
    "cell": ("ub=32", "ub=32,d=0", "ub=", "x=1", "ub=nan", "p=64,n=2"),
    "fail_on": ("ttft>+5%", "decode<-3%", "ttft>5", "x>1%", "ttft>+nan%", "ttft>+1e999%"),
    "passes": ("all", "0", "0-3", "3-0", "0-999999999", "-1", "0,,1", "x"),
    "program": ("true", "false", "sleep 0", "no-such-program", "sh -c 'exit 7'", "/", "/etc/passwd"),
    "process": ("true", "(", "(a*)*", "[[:bad:]]"),
    "only_range": ("x", EVIL),
    "env": ("A=1", "A", "=1", "A=\x01"),
    "host": ("127.0.0.1", "999", "no.such.host.invalid", "::1", EVIL),
    "allow_host": ("name", "*", "a b", EVIL),
    "dask": ("nowhere", "tcp://127.0.0.1:1", "ftp://x", EVIL),
    "bin": ("true", "/", "no-such", "/etc/passwd"),
    "fa": ("on", "off", "auto", "0,1", "x"),
}
_FILES: Final = {
    "captures": "capture", "capture": "capture", "a": "capture", "b": "capture", "fit": "capture", "against": "capture",
    "folder": "capture", "traces": "capture", "files": "trace", "model": "model", "name": "model", "probe": "probe",
    "output": "output",
}  # fmt: skip
_PRESETS: Final = ("tiny-dense", "tiny-moe", "qwen3-30b-a3b", "llama-3.1-8b", "no-such-model")
_ADDRESSES: Final = ("s3://", "ftp://x/y", "zip::https://x", "http://127.0.0.1:1/x", "file:///etc", "memory://x", "az:")


@dataclass(frozen=True, slots=True)
class RandomLine:
    """A command line, and what stands in its environment."""

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


class LineDrawer:
    """Draws command lines: `rng` decides, `files` are the good ones by kind, `folder` is this line's own."""

    def __init__(self, rng: random.Random, files: Mapping[str, Sequence[Path]], folder: Path) -> None:
        self._rng, self._files, self._folder = rng, files, folder

    def line(self, name: str) -> RandomLine:
        """One of the command `name`."""
        command: click.Command = importlib.import_module(COMMANDS[name][0]).command
        options = [one for one in command.params if isinstance(one, click.Option) and one.name not in _LEFT_OUT]
        words, environment = [name], list[tuple[str, str]]()
        for option in self._rng.sample(options, min(len(options), self._rng.choice([0, 1, 2, 3, 4, 8]))):
            value = self._value(option)
            if self._rng.random() < 0.1:
                variable = f"HPROF_{name}_{option.name}".upper()
                environment.append((variable, "1" if value is None else value.replace("\0", "")))
            else:
                words += [self._rng.choice(option.opts), *([] if value is None else [value])]
        words += self._usual(name, words)
        if self._rng.random() < 0.05:
            words.insert(self._rng.randrange(1, len(words) + 1), self._rng.choice(["--nope", "-", "--", EVIL, "-h"]))
        for argument in (one for one in command.params if isinstance(one, click.Argument)):
            count = self._rng.choice([0, 1, 1, 1, 2]) if argument.nargs != 1 else self._rng.choice([0, 1, 1, 1, 1])
            given = [self._text(str(argument.name)) for _ in range(count)]
            words += ["--", *given[0].split()] if argument.name == "program" and given else given
        return RandomLine(tuple(word.replace("\0", "") for word in words), tuple(environment))

    def _usual(self, name: str, words: Sequence[str]) -> list[str]:
        """What keeps most lines short and inside their folder, where nothing else was drawn."""
        usual = {
            "run": {"--device": "sim", "-o": "out", "-p": "40", "-n": "2", "-ub": "32", "-r": "2"},
            "predict": {"-p": "40", "-n": "2", "-ub": "32"},
            "advise": {"-p": "40", "-n": "2", "--vram-budget": "24MiB"},
            "record": {"-o": "out"},
            "probe": {"--show": ""},
            "dashboard": {"--no-browser": ""},
        }.get(name, {})
        left = {option: value for option, value in usual.items() if option not in words}
        return [word for option, value in left.items() for word in ([option, value] if value else [option])]

    def _value(self, option: click.Option) -> str | None:
        if option.is_flag:
            return None
        if isinstance(option.type, click.Choice):
            return str(self._rng.choice([*option.type.choices, *option.type.choices, EVIL, ""]))
        if isinstance(option.type, click.IntRange | click.FloatRange):
            low, high = option.type.min, option.type.max
            edges = [str(one) for one in (low, high) if one is not None and one < 100_000]
            return self._rng.choice(["1", "2", "3", *edges, *_NUMBERS])
        return self._text(str(option.name))

    def _text(self, name: str) -> str:
        if self._rng.random() < 0.05:
            return self._rng.choice([EVIL, "", "\udcff", "x" * 5000, "%s%n", "\u202e", "0x10"])
        if kind := _FILES.get(name):
            return self._file(kind)
        if name == "routing" and self._rng.random() < 0.3:
            return f"trace:{self._file('routing')}"
        return self._rng.choice(_TEXTS.get(name, _NUMBERS))

    def _file(self, kind: str) -> str:
        draw = self._rng.random()
        if kind == "output":
            return self._rng.choice(["out", "out", "new/deep/out", "x" * 300, "file/below", "", ".", "..", *_ADDRESSES])
        if draw < 0.08:
            return self._rng.choice([*SPECIAL, *_ADDRESSES])
        if kind == "model" and draw < 0.5:
            return self._rng.choice(_PRESETS)
        if draw < 0.15:
            kind = self._rng.choice(sorted(self._files))
        path = self._rng.choice(self._files[kind])
        return str(path if draw < 0.6 else broken(path, self._folder, self._rng))


def wrong(line: RandomLine, folder: Path, slow_s: float, ends: Counter[str]) -> str | None:
    """Run it in `folder` and count how it ended; what was wrong, or None."""
    said = folder.with_name(f"{folder.name}.out")
    errors = said.with_suffix(".err")
    child = start(line.words, errors, functools.partial(_enter, folder, line.environment), str(said))
    code, most_bytes, is_slow = _ended(child, slow_s)
    out, err = (file.read_text(errors="replace") for file in (said, errors))
    said.unlink()
    errors.unlink()
    ends["slow"] += is_slow
    ends[f"exit code {code}"] += 1
    problem = fault_of(line.words[0], code, most_bytes, out, err)
    return None if problem is None else f"{problem}: {err.strip()[-700:]}"


def fault_of(command: str, code: int | None, most_bytes: int, out: str, err: str) -> str | None:
    """What is wrong with how a command ended; `code` is null where it did not. `record` gives its program's code."""
    if code is None:
        return "hung"
    if (word := next((word for word in TRACES if word in err), None)) is not None:
        return f"said {word!r}"
    if command != "record":
        if code not in _CODES:
            return f"exit code {code}"
        if steering := {one for one in out + err if not one.isprintable() and one not in "\n\t\r"}:
            return f"printed {sorted(steering)!r}"
    if code == 2 and not err.strip():
        return "exit code 2 without a sentence"
    return f"{most_bytes / 2**30:.1f} GiB" if most_bytes > _MOST_BYTES else None


def _enter(folder: Path, environment: Sequence[tuple[str, str]]) -> None:
    os.chdir(folder)
    os.setpgid(0, 0)
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)


def _ended(child: RunningCommand, slow_s: float) -> tuple[int | None, int, bool]:
    """The exit code (None: it did not end by Ctrl-C), the most bytes it held, and whether it had to be interrupted."""
    is_slow = False
    while True:
        pid, status, used = os.wait4(child.pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return (code if code >= 0 else 128 - code), used.ru_maxrss * 1024, is_slow
        taken_s = time.monotonic() - child.began_s
        if not is_slow and taken_s > slow_s:
            is_slow = True
            os.kill(child.pid, signal.SIGINT)
        if taken_s > slow_s + _ANSWERS_S:
            os.kill(child.pid, signal.SIGUSR1)
            time.sleep(1)
            os.killpg(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            return None, 0, True
        time.sleep(0.002)


def main() -> int:
    """Run them and print what was wrong; 1 where something was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2000, help="command lines [2000]")
    parser.add_argument("--seed", type=int, default=16, help="[16]")
    parser.add_argument("--only", default="", help="commands whose name holds this")
    parser.add_argument("--slow", type=float, default=30.0, help="seconds until Ctrl-C [30]")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="hprof-lines-"))  # no context manager: a child would leave it too
    os.environ["XDG_CACHE_HOME"] = str(root / "cache")
    files = good_files(root / "files")
    names = [name for name in COMMANDS if options.only in name]
    load_commands()
    ends, n_wrong = Counter[str](), 0
    for number in range(options.lines):
        rng, folder = random.Random(f"{options.seed}-{number}"), root / str(number)
        folder.mkdir()
        line = LineDrawer(rng, files, folder).line(rng.choice(names))
        if (problem := wrong(line, folder, options.slow, ends)) is not None:
            n_wrong += 1
            print(f"WRONG {number}: {dict(line.environment)} hprof {list(line.words)!r}\n   {problem}", flush=True)
        else:
            shutil.rmtree(folder)
        if number % 100 == 99:
            print(f"{number + 1} lines, {n_wrong} wrong", file=sys.stderr, flush=True)
    told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    print(f"seed {options.seed}: {options.lines} lines, {n_wrong} wrong; {told}; kept in {root}")
    return int(bool(n_wrong))


if __name__ == "__main__":
    sys.exit(main())
