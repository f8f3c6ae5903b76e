"""The examples of the docs are run as they stand, so that they cannot rot."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import hprof
from executor.devices.base import Device
from executor.passes import PassResult
from executor.policies import ARMS, arm_names
from executor.policies.base import PolicyOptions
from executor.session import session as session_module
from profiler.capture import Capture
from profiler.report.build import build_report
from tests.dashboard.pages import PAGES, open_page, turn_to
from tests.executor.engine_runs import open_session, run_pass
from tests.executor.policies import test_arms_agree, test_simple, test_traits
from tests.support import ROOT
from tests.test_project import STAIRS


def write_blocks(page: str, folder: Path, heading: str = "") -> list[Path]:
    """The Python blocks of a page, or those from a heading on, each as a file of its own."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text[text.index(heading) :], re.DOTALL)
    assert blocks
    files = [folder / f"{Path(page).stem.replace('-', '_')}_{number}.py" for number in range(len(blocks))]
    for file, block in zip(files, blocks, strict=True):
        file.write_text(block, encoding="utf-8")
    return files


def run_blocks(page: str, folder: Path, heading: str = "") -> dict[str, Any]:
    """What the Python blocks of a page, or those from a heading on, define."""
    names: dict[str, Any] = {}
    for file in write_blocks(page, folder, heading):
        names |= runpy.run_path(str(file))
    return names


def test_the_examples_are_typed(tmp_path: Path) -> None:
    pages = ("adding-an-arm.md", "adding-a-device.md", "adding-an-importer.md")
    files = [str(file) for page in pages for file in write_blocks(page, tmp_path)]
    # with the project's options and no others: what mypy keeps of its own run, just before in `make test`, serves
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_example_architecture_is_the_one_that_runs() -> None:
    text = (ROOT / "docs" / "adding-an-architecture.md").read_text(encoding="utf-8")
    shown = re.findall(r"`([\w/]+\.py)`:\n\n```python\n(.*?)```", text, re.DOTALL)
    assert len(shown) == 2
    for path, block in shown:
        assert block in (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example_arm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the blocks of docs/adding-an-arm.md define."""
    names = run_blocks("adding-an-arm.md", tmp_path_factory.mktemp("arm"))
    assert '`"every-other": EveryOther,`' in (ROOT / "docs" / "adding-an-arm.md").read_text(encoding="utf-8")
    return names


def test_the_example_arm(monkeypatch: pytest.MonkeyPatch, example_arm: dict[str, Any]) -> None:
    monkeypatch.setitem(ARMS, "every-other", example_arm["EveryOther"])
    assert {"every-other", "every-other+cache"} <= set(arm_names())
    tests = [value for name, value in example_arm.items() if name.startswith("test_")]
    assert len(tests) == 1
    for test in tests:
        test()


def test_the_example_arm_is_what_its_traits_say(monkeypatch: pytest.MonkeyPatch, example_arm: dict[str, Any]) -> None:
    monkeypatch.setitem(ARMS, "every-other", example_arm["EveryOther"])
    test_traits.test_an_arm_copies_when_it_says("every-other")
    test_traits.test_an_arm_that_learns_says_so("every-other")
    test_traits.test_a_cache_is_inherited_by_every_combination("every-other+cache")
    test_traits.test_arms_are_held_against_arms()
    for arm in ("every-other", "every-other+cache"):
        test_traits.test_an_arm_that_needs_experts_does_what_another_does_without(arm)
        for option in fields(PolicyOptions):
            test_traits.test_an_arm_reads_the_options_that_it_says(arm, option.name)
    test_simple.test_only_arms_that_copy_ahead_take_more_than_one_slot("every-other", 3)
    test_simple.test_small_ubatches_are_computed_on_the_host("every-other")


def test_the_example_arm_agrees_with_all_others(monkeypatch: pytest.MonkeyPatch, example_arm: dict[str, Any]) -> None:
    monkeypatch.setitem(ARMS, "every-other", example_arm["EveryOther"])
    monkeypatch.setattr(test_arms_agree, "SAME_DEVICE", ["off", "every-other", "every-other+cache"])
    test_arms_agree.test_all_arms_are_bit_identical("tiny-moe")


@pytest.fixture(scope="module")
def capture_of_the_example(tmp_path_factory: pytest.TempPathFactory, example_arm: dict[str, Any]) -> Capture:
    """A run of the example arm, whose capture is then read where nobody knows the arm."""
    path = tmp_path_factory.mktemp("captures") / "mine"
    sizes = ["--layers", "4", "-ub", "64", "-p", "128", "-n", "3", "-r", "6"]
    machine = ["--device", "sim", "--link-gb-s", "5", "--moe-cache-mib", "4"]
    arms = ["--arms", "off,every-other,every-other+cache"]
    with pytest.MonkeyPatch.context() as known:
        known.setitem(ARMS, "every-other", example_arm["EveryOther"])
        assert hprof.main(["run", "-m", "tiny-moe", *sizes, *machine, *arms, "-o", str(path)]) == 0
    assert "every-other" not in ARMS
    return hprof.open(str(path))


def test_the_example_arm_is_reported_and_judged_by_its_design(capture_of_the_example: Capture) -> None:
    report = build_report(capture_of_the_example)
    (cell,) = report.cells
    assert list(cell.arms) == ["off", "every-other", "every-other+cache"]
    assert cell.against_baseline["every-other"]["ttft_ns"] is not None
    inline = {f.evidence.split(",")[0]: f for f in report.findings if f.rule == "copies-on-compute-stream"}
    judged = next(found for arm, found in inline.items() if "every-other" in arm and "+cache" not in arm)
    assert judged.severity == "info"
    assert "`off` or `on` beside it shows whether it is right" in judged.advice


def test_the_dashboard_shows_the_example_arm_in_its_words(
    monkeypatch: pytest.MonkeyPatch, capture_of_the_example: Capture
) -> None:
    root = Path(capture_of_the_example.path).parent
    app = open_page(monkeypatch, root, "overview", capture="mine", a="off", b="every-other")
    assert app.title[0].value.startswith("Prefetching every other layer")
    labels = {label for box in app.sidebar.selectbox for label in box.options}
    assert "every-other (every other layer ahead)" in labels
    assert "every-other+cache (every other layer ahead with the expert cache)" in labels
    for page in PAGES:
        turn_to(app, page)
        assert not app.error


def test_the_example_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = run_blocks("adding-a-device.md", tmp_path)
    wanted = _run_arms()
    device: type[Device] = names["EagerDevice"]

    def make_devices(options: Any) -> list[Device]:
        return [device()]

    monkeypatch.setattr(session_module, "make_devices", make_devices)
    # it computes on this thread, `cpu` on a thread of one core: sums of as many parts have equal bits
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = _run_arms()
    finally:
        torch.set_num_threads(n_threads)
    for arm, result in found.items():
        assert result.logits_digest == wanted[arm].logits_digest
        assert result.tokens == wanted[arm].tokens
        assert (result.bytes_h2d > 0) == (arm != "full")
        assert all(0 <= event.t_start <= event.t_end for event in result.events)


def test_the_page_lists_everything_that_asks_for_a_device_s_kind() -> None:
    text = (ROOT / "docs" / "adding-a-device.md").read_text(encoding="utf-8")
    asks = re.compile(r"""kind (?:==|!=) "(?:cpu|cuda|sim)"|get\("device"\) (?:==|(?:not )?in) """)
    files = [path for folder in ("executor", "profiler", "dashboard") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if asks.search(path.read_text(encoding="utf-8"))}
    outside = {path for path in found if not path.startswith("executor/devices/")}
    assert "executor/session/arms.py" in outside
    assert {path for path in outside if f"`{path}`" not in text} == set()


def test_the_example_session(tmp_path: Path) -> None:
    result = run_blocks("architecture.md", tmp_path)["result"]
    assert len(result.tokens) == 4
    assert result.bytes_h2d > 0


def test_the_example_captures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("trace-schema.md", tmp_path, "## Writing one")
    mine = hprof.open("traces/mine")
    assert mine.warnings == []
    assert mine.passes["arm"].tolist() == ["off", "on"]
    assert (mine.passes["t_start"].to_numpy()[1:] >= mine.passes["t_end"].to_numpy()[:-1]).all()
    assert (mine.figures()["bytes_h2d"] > 0).all()
    run_blocks("metrics.md", tmp_path)  # they read traces/mine
    theirs = hprof.open("traces/theirs")
    assert theirs.warnings == []
    assert theirs.figures()["busy_copy_ns"].tolist() == [2_000_000]


def architecture_section(package: str) -> str:
    """What docs/architecture.md says of the inside of a package."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return text.partition(f"## Inside `{package}/`")[2].partition("\n## ")[0]


def part_names(folder: Path) -> set[str]:
    """The parts of a package as the page writes them: `devices/`, `units.py`."""
    parts = [part for part in folder.iterdir() if (part / "__init__.py").exists() or part.suffix == ".py"]
    return {f"{part.name}/" if part.is_dir() else part.name for part in parts} - {"__init__.py"}


@pytest.mark.parametrize("package", ["executor", "profiler", "dashboard"])
def test_the_architecture_names_every_part(package: str) -> None:
    section = architecture_section(package)
    assert {part for part in part_names(ROOT / package) if f"`{part}`" not in section} == set()


@pytest.mark.parametrize("package", STAIRS)
def test_the_architecture_has_the_steps_that_tests_hold_the_parts_to(package: str) -> None:
    steps: dict[int, set[str]] = {}
    step = 0
    for number, part in re.findall(r"^\| *(\d*) *\| `([\w.]+)/?` \|", architecture_section(package), re.MULTILINE):
        step = int(number or step)
        steps.setdefault(step, set()).add(part.removesuffix(".py"))
    assert steps == dict(enumerate(STAIRS[package], start=1))


def test_every_file_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:hprof|executor|profiler|dashboard|tests|docs)/[\w./]+)`", text))
    assert len(named) > 50
    assert {name for name in named if not (ROOT / name).exists()} == set()


def _run_arms() -> dict[str, PassResult]:
    policy = PolicyOptions(op_offload_min_batch=1, cache_bytes=2 << 20)
    arms = ["off", "on", "hot", "auto", "hot+cache", "cpu", "full"]
    with open_session("tiny-moe", arms, layers=2, policy=policy, synthetic_routing=True) as session:
        return {arm: run_pass(session, arm, 48, 2, 40)[0] for arm in arms}
