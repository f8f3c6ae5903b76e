"""Promises of the project as a whole: light start, clear boundaries, documented commands."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import click
import pytest

import executor.version
import hprof
from executor.errors import HprofError
from hprof.command_line import COMMANDS, cli
from tests.support import ROOT


def python(*arguments: str, path: str = str(ROOT), cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True, check=False)


def test_help_loads_click_alone() -> None:
    """That keeps `hprof --help` under 0.3 s: nothing is timed here, as other programs share the machine."""
    code = "import hprof, sys; hprof.main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = python("-c", code)
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    loaded = set(done.stderr.split()) - set(python("-c", "import sys; print(*sys.modules)").stdout.split())
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {
        "hprof",
        "click",
        "executor",
        "profiler",
    }
    own = {name for name in loaded if name.startswith(("executor.", "profiler."))}
    assert own == {"executor.errors"}


@pytest.mark.parametrize(
    ("package", "command"), [("executor", "list"), ("profiler", "list"), ("dashboard", "dashboard")]
)
def test_another_projects_package_is_noticed(package: str, command: str, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    code = f"import hprof, sys; sys.exit(hprof.main(['{command}']))"
    done = python("-c", code, path=f"{tmp_path}:{ROOT}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"hprof: the package '{package}' at {tmp_path}")
    assert done.stderr.count("\n") == 1
    if package != "dashboard":
        done = python("-c", "import hprof; hprof.open('traces/example')", path=f"{tmp_path}:{ROOT}", cwd=tmp_path)
        assert f"ImportError: the package '{package}' at {tmp_path}" in done.stderr


def test_the_public_face() -> None:
    assert hprof.HprofError is HprofError
    assert hprof.__version__ == executor.version.__version__
    with pytest.raises(AttributeError, match="module 'hprof' has no attribute 'close'"):
        hprof.close  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(hprof.HprofError, match="nowhere"):
        hprof.open("nowhere")


def test_version_and_module_entry() -> None:
    assert python("-m", "hprof", "--version").stdout == f"hprof, version {hprof.__version__}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_output_that_cannot_be_written_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hprof", "--help"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("hprof: cannot print: No space left on device")


def test_a_terminal_without_the_characters_gets_question_marks() -> None:
    code = "import hprof, sys; hprof.command_line.print_any_text(); print('5 \u2013 6')"
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "5 ? 6\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_is_in_the_readme(name: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    assert f"hprof {name}" in (command.help or ""), "its help has an example"
    assert all(option.help for option in command.params if isinstance(option, click.Option) and not option.hidden)
    assert f"`hprof {name}" in (ROOT / "README.md").read_text()


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["frobnicate"]) == 2
    assert "No such command 'frobnicate'" in capsys.readouterr().err


def test_signals_that_a_shell_ignores_are_heard_by_tests() -> None:
    """As under nohup and in the background of a script; children would inherit it, and never end on Ctrl-C."""
    code = (
        "import signal as s; s.signal(s.SIGINT, s.SIG_IGN); s.signal(s.SIGTERM, s.SIG_IGN); "
        "from tests.conftest import pytest_configure; pytest_configure(); "
        "print(s.SIG_IGN in (s.getsignal(s.SIGINT), s.getsignal(s.SIGTERM)))"
    )
    assert python("-c", code).stdout == "False\n"


def imported(path: Path) -> set[str]:
    """The top-level names of everything that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("executor", {"profiler", "dashboard", "hprof"}),
        ("profiler", {"dashboard", "streamlit", "hprof"}),
        ("dashboard", {"hprof"}),
    ],
)
def test_packages_keep_their_boundaries(package: str, forbidden: set[str]) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    assert {path: imported(path) & forbidden for path in files if imported(path) & forbidden} == {}


# What a package is built of, from the ground up: each part imports only what stands on lower steps.
STAIRS = {
    "executor": (
        {"arrays"},
        {
            "errors",
            "fault_names",
            "model",
            "passes",
            "peak_memory",
            "stamps",
            "stamp_kernels",
            "triton_support",
            "version",
        },
        {"units", "output_rows"},
        {"files"},
        {"compiling", "devices", "quants"},
        {"layers", "routing"},
        {"gguf", "placement", "tracing", "reference", "token_report"},
        {"models", "weights"},
        {"host", "policies"},
        {"placed_model", "streaming"},
        {"engine"},
        {"session"},
        {"memory"},
    ),
    "profiler": (
        {"schema", "arithmetic", "collection", "facts", "plain_text"},
        {"manifest"},
        {"storage"},
        {"capture", "importers"},
        {"metrics", "ordering", "pass_kernels", "recording", "cutting"},
        {"findings", "planning", "engines", "watching", "doctor"},
        {"report", "running", "predicting"},
        {"compare", "export", "cluster", "probing"},
        {"cli"},
    ),
}


def inner_imports(package: str, path: Path) -> set[str]:
    """The modules of a package that a file of it imports, wherever in it: `devices.base`, `errors`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name for name in inside if is_module(name)} or {node.module}
    return {name.removeprefix(f"{package}.") for name in names if name.startswith(f"{package}.")}


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules_of(package: str) -> dict[str, Path]:
    """Each module of a package by its name there; a package inside is its `__init__.py`."""
    root = ROOT / package
    files = [path for path in root.rglob("*.py") if path.parent != root or path.stem[0] != "_"]
    return {".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p for p in files}


@pytest.mark.parametrize("package", STAIRS)
def test_parts_import_downstairs_only(package: str) -> None:
    step = {name: number for number, names in enumerate(STAIRS[package]) for name in names}
    assert {name.split(".")[0] for name in modules_of(package)} == set(step)
    upstairs = {
        (module, name)
        for module, path in modules_of(package).items()
        for name in inner_imports(package, path)
        if (here := module.split(".")[0]) != (there := name.split(".")[0]) and step[there] >= step[here]
    }
    assert upstairs == set()


@pytest.mark.parametrize("package", ["executor", "profiler", "dashboard"])
def test_modules_import_in_no_circle(package: str) -> None:
    graph = {module: inner_imports(package, path) for module, path in modules_of(package).items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_no_file_is_longer_than_400_lines() -> None:
    packages = ("executor", "profiler", "dashboard")
    lengths = {p: len(p.read_text().splitlines()) for name in packages for p in (ROOT / name).rglob("*.py")}
    assert {path: n for path, n in lengths.items() if n > 400} == {}


def test_no_two_classes_share_a_name() -> None:
    found: dict[str, list[str]] = {}
    packages = ("hprof", "executor", "profiler", "dashboard", "benchmarks")
    for path in (path for package in packages for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(found) > 100
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
