"""The manifest survives its own JSON, older and newer files, and files that lie."""

from __future__ import annotations

import orjson
import pytest

from executor.errors import HprofError
from executor.policies import find_traits
from executor.policies.traits import ArmTraits
from profiler.manifest import MAX_MANIFEST_BYTES, Manifest, ManifestArm


def test_what_is_written_is_read_back() -> None:
    manifest = Manifest(
        source="nsys",
        state="complete",
        arms=[ManifestArm("off", "off", "off", {"flags": "-pw 0"}, ["why"]), ManifestArm("on")],
        link_h2d_gb_s=54.2,
        dropped={"negative": 3},
        extra={"tool": {"name": "x"}},
    )
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_what_is_true_of_an_arm_is_kept() -> None:
    mine = ArmTraits("every other ahead", "Prefetching every other layer", "chosen", held_against=("off", "on"))
    manifest = Manifest(arms=[ManifestArm("every-other@2", "every-other", traits=mine)])
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_arms_of_older_captures_are_known_by_what_was_asked() -> None:
    arms = [{"name": "x@2", "requested": "hot+cache"}, {"name": "full@2"}, {"name": "mine", "requested": "mine"}]
    found = Manifest.from_json(orjson.dumps({"schema": 1, "source": "hprof", "arms": arms})).arms
    assert [arm.traits for arm in found] == [find_traits("hot+cache"), find_traits("full"), None]
    assert [arm.is_resident for arm in found] == [False, True, False]


@pytest.mark.parametrize("source", ["nsys", "kineto", "llama-bench"])
def test_another_tools_arm_is_not_known_by_its_name(source: str) -> None:
    arms = [{"name": name, "requested": name} for name in ("cpu", "full", "on")]
    found = Manifest.from_json(orjson.dumps({"schema": 1, "source": source, "arms": arms})).arms
    assert not any(arm.traits or arm.is_resident or arm.computes_on_host for arm in found)


@pytest.mark.parametrize(
    "change",
    [
        {"copies": "sometimes"},
        {"copies": ["inline"]},
        {"meaning": 3},
        {"learns": 1},
        {"reads": "slots"},
        {"reads": [1]},
    ],
)
def test_traits_that_no_arm_can_have_are_unknown(change: dict[str, object]) -> None:
    stored = {"meaning": "m", "subject": "S", "copies": "inline"} | change
    raw = {"schema": 1, "source": "nsys", "arms": [{"name": "a", "traits": stored}]}
    assert Manifest.from_json(orjson.dumps(raw)).arms == [ManifestArm("a")]


def test_missing_keys_take_the_defaults() -> None:
    manifest = Manifest.from_json(b'{"schema": 1}')
    assert manifest == Manifest()
    assert manifest.link_h2d_gb_s is None


def test_unknown_keys_are_kept() -> None:
    manifest = Manifest.from_json(b'{"schema": 1, "later": [1], "extra": {"own": 2}}')
    assert manifest.extra == {"own": 2, "later": [1]}
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "upgrade hprof"),
        ({"schema": "1"}, "no trace schema version"),
        ({"schema": True}, "no trace schema version"),
        ({"state": "done"}, "'state'"),
        ({"source": 7}, "'source'"),
        ({"arms": {"off": 1}}, "'arms'"),
        ({"arms": [{"requested": "off"}]}, "without a name"),
        ({"warnings": [1]}, "'warnings'"),
        ({"machine": []}, "'machine'"),
        ({"link_h2d_gb_s": "fast"}, "'link_h2d_gb_s'"),
        ({"link_h2d_gb_s": True}, "'link_h2d_gb_s'"),
        ({"link_h2d_gb_s": 1e308}, "'link_h2d_gb_s'"),
        ({"link_h2d_gb_s": -5}, "'link_h2d_gb_s'"),
        ({"dropped": {"x": "many"}}, "'dropped'"),
        ({"dropped": {"x": -1}}, "'dropped'"),
        ({"rows": {"events": True}}, "'rows'"),
        ({"rows": {"events": 2**64 - 1}}, "'rows'"),
    ],
)
def test_wrong_values_are_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(HprofError, match=said) as caught:
        Manifest.from_json(orjson.dumps({"schema": 1} | change), "traces/a/manifest.json")
    assert str(caught.value).startswith("traces/a/manifest.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"null", b"[" * 100_000, b'{"schema": 1, "a": \xff}'])
def test_broken_json_is_one_sentence(data: bytes) -> None:
    with pytest.raises(HprofError):
        Manifest.from_json(data)


def test_of_a_key_that_is_there_twice_the_last_counts() -> None:
    assert Manifest.from_json(b'{"schema": 1, "state": "running", "state": "complete"}').state == "complete"
    with pytest.raises(HprofError, match="schema 99"):
        Manifest.from_json(b'{"schema": 1, "schema": 99}')


def test_a_huge_manifest_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(HprofError, match="larger than 16 MiB"):
        Manifest.from_json(b" " * (MAX_MANIFEST_BYTES + 1))


@pytest.mark.parametrize(
    ("effective", "layers"),
    [
        ({"host_layers": [2, 0, "1", True, -1]}, (0, 2)),
        ({"host_layers": []}, ()),
        ({"host_layers": "all"}, None),
        (3, None),
    ],
)
def test_layers_on_the_host_are_whole_numbers_in_order(effective: object, layers: tuple[int, ...] | None) -> None:
    assert ManifestArm("on", options={"effective": effective}).host_layers == layers


def test_whose_words_a_manifest_holds() -> None:
    words = ["hprof", "run", "-m", "tiny-moe"]
    assert Manifest(argv=words).is_own_run
    assert not Manifest(source="llama-bench", argv=words).is_own_run
    assert not Manifest(argv=["hprof", "import", "a.sqlite"]).is_own_run
