"""Decode with weights on the host, through the whole engine in bf16."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.host import int4, stored
from tests.executor.engine_runs import open_session, run_pass

# Residual streams in bf16 are rounded in each step: what two ways to compute the same differ by on these models.
BOUND = 0.05


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("prepared", [True, False])
def test_arms_agree_and_are_near_the_device(spec: str, prepared: bool) -> None:
    options: dict[str, Any] = {"layers_on_host": range(3) if prepared else (), "synthetic_routing": spec == "tiny-moe"}
    with open_session(spec, ["off", "on", "full", "cpu"], layers=3, dtype=torch.bfloat16, **options) as session:
        runs = {arm: run_pass(session, arm, 50, 4, 32) for arm in ("off", "on", "full", "cpu")}
    assert runs["off"][0].tokens == runs["on"][0].tokens
    assert runs["off"][0].logits_digest == runs["on"][0].logits_digest
    for arm in ("off", "cpu"):
        first, resident = runs[arm][1], runs["full"][1]
        assert first is not None
        assert resident is not None
        assert float((first[0] - resident[0]).norm() / resident[0].norm()) < BOUND
    on_host = [e for e in runs["off"][0].events if e.kind == "cpu_compute"]
    assert {e.phase for e in on_host} == {"prefill", "decode"}, "the last ubatch of 18 tokens too"


@pytest.mark.parametrize("product", ["stored", "int4", "bf16"])
def test_the_session_says_which_product_serves(monkeypatch: pytest.MonkeyPatch, product: str) -> None:
    if product == "int4" and not int4.has_int4():
        pytest.skip("this PyTorch has no packed int4 product on the CPU")
    if product == "stored" and not stored.is_available():
        pytest.skip("needs AVX-512 and a C++ compiler")
    if product != "stored":
        monkeypatch.setattr(stored, "is_available", lambda: False)
    monkeypatch.setattr(int4, "has_int4", lambda: product == "int4")
    options: dict[str, Any] = {"dtype": torch.bfloat16, "layers_on_host": range(2), "synthetic_routing": True}
    with open_session("tiny-moe", ["off", "full"], layers=2, **options) as session:
        off, full = (arm["effective"]["host_products"] for arm in session.describe_arms())
        run_pass(session, "off", 40, 3)
    assert off == {"Q4_0": product}
    assert full is None


@pytest.mark.parametrize("layers_on_host", [(0, 1), ()])
def test_full_says_that_the_host_may_decode_faster_on_the_cpu_device(layers_on_host: tuple[int, ...]) -> None:
    """The device dequantises in each step, the host once: `full` decoded at a third of `cpu`'s speed."""
    with open_session("tiny-dense", ["off", "full"], layers=2, layers_on_host=layers_on_host) as session:
        off, full = (arm["notes"] for arm in session.describe_arms())
    assert off == []
    assert ["decode on the host may be faster" in note for note in full] == [True] * bool(layers_on_host)


def test_nothing_is_prepared_or_said_where_nothing_is_computed_on_the_host() -> None:
    with open_session("tiny-dense", ["off"], layers=2) as session:
        assert session.describe_arms()[0]["effective"]["host_products"] is None
    with open_session("tiny-dense", ["off"], layers=2, kind="sim", layers_on_host=(0, 1)) as session:
        assert session.describe_arms()[0]["effective"]["host_products"] is None
