"""Which way a product is computed: the faster one, once, and the same for later processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from executor.quants import product_choice, products
from executor.quants.product_choice import ProductChoices, Times
from executor.quants.stored import Stored


def fast() -> str:
    return "fast"


def slow() -> str:
    return "slow"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was timed, in order."""
    calls: list[str] = []

    def milliseconds(compute: Callable[[], object]) -> float:
        calls.append(str(compute()))
        return 1.0 if compute is fast else 2.0

    monkeypatch.setattr(product_choice, "_milliseconds", milliseconds)
    return calls


def test_the_faster_way_is_measured_once(timed: list[str], tmp_path: Path) -> None:
    choices = ProductChoices(tmp_path / "cache" / "products.json")
    assert choices.run("a", fast, slow) == "fast"
    assert choices.run("b", slow, fast) == "fast"
    n_tries = len(timed)
    assert timed[:3] == ["fast", "slow", "fast"]  # in turn
    assert choices.run("a", slow, fast) == "slow"  # its first argument is the direct way, which was chosen
    assert choices.used == {"a": "direct", "b": "widened"}
    assert len(timed) == n_tries


def test_the_best_tries_decide_and_equal_means_direct() -> None:
    assert Times([9, 3, 8], [4, 4, 4]).faster == "direct"
    assert Times([4.1, 9], [4, 4]).faster == "direct"
    assert Times([4, 4], [3, 9]).faster == "widened"


def test_what_something_disturbs_is_tried_longer_and_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boots have to choose alike, on a busy GPU too."""
    assert Times([3, 3.1, 9], [4, 4, 9]).are_steady
    assert not Times([3, 3], [4, 5]).are_steady
    path, times = tmp_path / "products.json", iter(2.0**n for n in range(200))
    monkeypatch.setattr(product_choice, "_milliseconds", lambda compute: next(times))
    assert ProductChoices(path).run("a", fast, slow) == "fast"
    assert next(times) == 2.0 ** (2 * product_choice._TRIES * product_choice._ROUNDS)
    assert ProductChoices(path).run("a", fast, slow) == "fast"


def test_weights_that_have_no_room_to_be_widened_are_read_as_stored(timed: list[str], tmp_path: Path) -> None:
    """Until there is room: a later process measures."""

    def wide() -> str:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    path = tmp_path / "products.json"
    choices = ProductChoices(path)
    assert choices.run("a", slow, wide) == "slow"
    assert choices.run("a", slow, fast) == "slow"  # known, and measured no more
    assert not timed
    assert ProductChoices(path).run("a", slow, fast) == "fast"


def test_processes_agree_without_a_cache(timed: list[str]) -> None:
    """Each is told what those before it chose; what it has used already stays."""
    choices = ProductChoices(None)
    choices.run("used", fast, slow)
    timed.clear()
    choices.agree({"told": "widened", "used": "widened"})
    assert (choices.run("told", fast, slow), choices.run("used", fast, slow)) == ("slow", "fast")
    assert not timed
    assert choices.used == {"used": "direct", "told": "widened"}


@pytest.mark.parametrize("told", [None, [], "direct", {"a": 1, "b": "sideways"}])
def test_a_manifest_that_says_nothing_of_products(told: object) -> None:
    assert product_choice._ways(told) == {}


def test_what_another_process_kept_meanwhile_stays(timed: list[str], tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    one, other = ProductChoices(path), ProductChoices(path)
    one.run("a", fast, slow)
    other.run("a", slow, fast)
    assert ProductChoices(path).run("a", slow, fast) == "slow"


def test_later_processes_choose_alike(timed: list[str], tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    first, meanwhile = ProductChoices(path), ProductChoices(path)
    first.run("a", slow, fast)
    meanwhile.run("b", fast, slow)
    timed.clear()
    later = ProductChoices(path)
    assert (later.run("a", fast, slow), later.run("b", fast, slow)) == ("slow", "fast")
    assert not timed
    assert [file.name for file in tmp_path.iterdir()] == ["products.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "sideways"}'])
def test_a_file_that_says_nothing_is_measured_anew(text: str, timed: list[str], tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    path.write_text(text)
    assert ProductChoices(path).run("a", fast, slow) == "fast"
    assert timed
    timed.clear()
    assert ProductChoices(path).run("a", slow, fast) == "slow"
    assert not timed


def test_a_cache_that_cannot_be_written_is_done_without(timed: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    choices = ProductChoices(tmp_path / "file" / "products.json")
    assert choices.run("a", fast, slow) == "fast"
    assert choices.used == {"a": "direct"}


def test_a_user_without_a_home_keeps_nothing(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", refuse)
    product_choice._choices_of.cache_clear()
    pytest.importorskip("triton")
    try:
        assert product_choice._choices_of("a GPU").run("a", fast, slow) == "fast"
    finally:
        product_choice._choices_of.cache_clear()


def test_only_a_gpu_multiplies_stored_bytes() -> None:
    x, stored = torch.zeros(1, 32, dtype=torch.bfloat16), Stored(torch.zeros(4, 18, dtype=torch.uint8), "Q4_0")
    kept = (torch.ones(1, 4),)
    assert not products.serves(x)
    assert products.linear(x, [stored], lambda: kept) is kept
