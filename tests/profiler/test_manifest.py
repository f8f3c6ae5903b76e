"""The manifest survives its own JSON, older and newer files, and files that lie."""

from __future__ import annotations

import orjson
import pytest

from executor.errors import HprofError
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
        ({"dropped": {"x": "many"}}, "'dropped'"),
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


def test_a_huge_manifest_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(HprofError, match="larger than 16 MiB"):
        Manifest.from_json(b" " * (MAX_MANIFEST_BYTES + 1))
