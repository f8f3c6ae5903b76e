"""Whether arms computed the same: whose tokens and logits are held against whose."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from executor.policies import find_traits
from hprof import main
from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.report.build import build_report
from profiler.report.sameness import ToldByPasses, WorkDone, same_work, sameness
from profiler.storage.writer import conform


def passes(tokens: list[int] | None, digest: str | None, boot: int = 0) -> ToldByPasses:
    """Two repetitions of one boot that gave these tokens and logits."""
    return ToldByPasses.of([(boot, 0), (boot, 1)], [tokens] * 2, [digest] * 2)


def test_two_arms_are_compared_and_one_alone_is_not() -> None:
    first = passes([1, 2], "a")
    assert sameness({"off": first}, set(), {}).same_tokens is None
    alike = sameness({"off": first, "on": passes([1, 2], "a")}, set(), {})
    assert (alike.same_tokens, alike.bit_identical, alike.apart) == (True, True, [])
    unlike = sameness({"off": first, "on": passes([1, 3], "b"), "x": passes([1, 2], "a")}, set(), {})
    assert (unlike.same_tokens, unlike.bit_identical) == (False, False)
    assert (unlike.other_tokens, unlike.other_logits) == (["on"], ["on"])


def test_what_was_not_recorded_or_has_no_partner_is_unknown() -> None:
    found = sameness({"off": passes(None, None), "on": passes([], None)}, set(), {})
    assert (found.same_tokens, found.bit_identical) == (None, None)
    other_boot = passes([3], "b", boot=1)
    assert sameness({"off": passes([1], "a"), "on": other_boot}, set(), {}).same_tokens is None


def test_logits_are_held_against_those_of_arms_that_compute_in_the_same_places() -> None:
    digests = {"off": "a", "on": "a", "cpu": "c", "half": "h", "half too": "h", "other half": "o"}
    arms = {name: passes([1], digest) for name, digest in digests.items()}
    in_part = {"half": (1, 2), "half too": (1, 2), "other half": (3,)}
    found = sameness(arms, {"cpu"}, in_part)
    assert found.bit_identical
    assert found.apart == [["half", "half too"], ["other half"], ["off", "on"], ["cpu"]]
    wrong = sameness(arms | {"half too": passes([1], "x"), "cpu": passes([1], "y")}, {"cpu"}, in_part)
    assert (wrong.bit_identical, wrong.other_logits) == (False, ["half too"])


UNKNOWN = float("nan")


@pytest.mark.parametrize(
    ("bytes_h2d", "saved", "host_compute_ns", "is_same"),
    [
        (0.0, UNKNOWN, 5.0, True),
        (1000.0, UNKNOWN, 5.0, True),  # no copy names a tensor: activations, which follow the work
        (1000.0, 0.0, 5.0, False),
        (0.0, UNKNOWN, 0.0, False),
        (UNKNOWN, UNKNOWN, 5.0, False),
    ],
)
def test_two_policies_that_left_the_weights_to_the_host_did_the_same_work(
    bytes_h2d: float, saved: float, host_compute_ns: float, is_same: bool
) -> None:
    options = {"effective": {"host_layers": [0]}}
    arms = [ManifestArm(name, name, options=options) for name in ("off", "on")]
    rows = {"pass_id": [0, 1], "phase": ["decode"] * 2, "ubatch": [0] * 2, "policy": ["off", "on"]}
    figures = {"bytes_h2d": bytes_h2d, "selective_saving_bytes": saved, "host_compute_ns": host_compute_ns}
    frame = pd.DataFrame(figures, index=[0, 1])
    done = WorkDone(conform("ubatches", rows), {"prefill": frame, "decode": frame}, arms)
    off, on = (done.of(name, [number]) for number, name in enumerate(("off", "on")))
    found = same_work("decode_tokens_per_s", off, on)
    assert found == ("decode computed the weights in host memory on the host in the two arms" if is_same else None)
    assert same_work("ttft_ns", off, on) is None, "no ubatch of a prompt is known"


@pytest.mark.parametrize(
    ("bytes_h2d", "is_same"),
    [((2000.0, 2000.0), True), ((2000.0, 1000.0), False), ((0.0, 0.0), True), ((2000.0, UNKNOWN), True)],
)
def test_one_policy_that_copies_fewer_bytes_did_not_do_the_same_work(
    bytes_h2d: tuple[float, float], is_same: bool
) -> None:
    """The batches of `cache` that are too large for it run as `off`, and still read what its bank holds."""
    arms = [ManifestArm(name, name, options={"effective": {"host_layers": [0]}}) for name in ("off", "cache")]
    rows = {"pass_id": [0, 1], "phase": ["prefill"] * 2, "ubatch": [0] * 2, "policy": ["off", "off"]}
    figures = {"bytes_h2d": list(bytes_h2d), "selective_saving_bytes": 0.0, "host_compute_ns": 0.0}
    frame = pd.DataFrame(figures, index=[0, 1])
    done = WorkDone(conform("ubatches", rows), {"prefill": frame, "decode": frame}, arms)
    off, cache = (done.of(name, [number]) for number, name in enumerate(("off", "cache")))
    assert same_work("ttft_ns", off, cache) == ("prefill ran as off in the two arms" if is_same else None)


@pytest.mark.parametrize(
    ("first", "second", "policy", "is_same"),
    [
        ("off", "cpu", "cpu", True),
        ("off", "both", "both", False),  # waits for the router's choice before the host may begin
        ("both", "cpu", "cpu", False),
        ("off", "both", "off", True),  # of a model without experts in host memory
        ("both", "both+cache", "both+cache", True),
    ],
)
def test_an_arm_that_divides_its_experts_did_other_work_even_where_the_host_had_them_all(
    first: str, second: str, policy: str, *, is_same: bool
) -> None:
    options = {"effective": {"host_layers": [0]}}
    arms = [ManifestArm(name, name, name, options, traits=find_traits(name)) for name in (first, second)]
    rows = {"pass_id": [0, 1], "phase": ["decode"] * 2, "ubatch": [0] * 2, "policy": [first, policy]}
    figures = {"bytes_h2d": 1000.0, "selective_saving_bytes": UNKNOWN, "host_compute_ns": 5.0}
    frame = pd.DataFrame(figures, index=[0, 1])
    done = WorkDone(conform("ubatches", rows), {"prefill": frame, "decode": frame}, arms)
    found = same_work("decode_tokens_per_s", *(done.of(arm.name, [at]) for at, arm in enumerate(arms)))
    assert (found is not None) is is_same


def test_of_two_arms_that_left_all_to_the_host_the_one_that_asked_the_router_first_is_judged(tmp_path: Path) -> None:
    """In all figures alike: `both` is slower in decode, in the prompt and so in wall time."""
    grid = ["--arms", "off,both,cpu", "-p", "8", "-n", "3", "-ub", "8", "-r", "2", "-o", str(tmp_path / "c")]
    assert main(["run", "-m", "tiny-moe", "--device", "sim", *grid]) == 0
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    assert all(arm.median("host_compute_ns") for arm in cell.arms.values())
    assert {arm.figures["pass"]["selective_saving_bytes"] for arm in cell.arms.values()} == {None}, (
        "no weight is copied"
    )
    told = {name: {found.verdict for found in of.values() if found} for name, of in cell.against_baseline.items()}
    assert told == {"both": {"slower"}, "cpu": {"inconclusive"}}
    assert all(found.is_same_work for found in cell.against_baseline["cpu"].values() if found)
