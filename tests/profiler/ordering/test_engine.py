"""What the engine issues is in order, whatever the arm; and no wait of a prefetching pass can be left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.passes import THREAD
from tests.profiler.ordering.records import check, record_engine, without


@pytest.mark.parametrize("kind", ["cpu", "sim"])
@pytest.mark.parametrize("n_devices", [1, 2])
@pytest.mark.parametrize(
    ("spec", "arm"),
    [
        *(("tiny-dense", arm) for arm in ("off", "on", "cpu", "full")),
        *(("tiny-moe", arm) for arm in ("off", "on", "hot", "cache", "hot+cache", "cpu", "full")),
    ],
)
def test_every_arm_is_in_order(spec: str, arm: str, n_devices: int, kind: str) -> None:
    found = check(*record_engine(spec, arm, kind, n_devices=n_devices))
    assert found.is_clean, found.violations
    assert found.n_pairs > 100
    assert (found.n_expectations > 0) == (arm not in ("cpu", "full"))


def test_cpu_and_sim_issue_the_same() -> None:
    for arm in ("off", "on", "cache"):
        cpu, sim = (record_engine("tiny-moe", arm, kind)[0] for kind in ("cpu", "sim"))
        told = [
            [(one.op, one.stream, one.layer, one.ubatch) for one in records if one.stream != THREAD]
            for records in (cpu, sim)
        ]
        assert told[0] == told[1]


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
def test_no_wait_of_a_prefetching_prompt_can_be_left_out(spec: str) -> None:
    records = record_engine(spec, "on", "sim", n_gen=0, all_logits=True)[0]
    waits = [record for record in records if record.op == "wait"]
    assert {wait.stream for wait in waits} == {"compute", "copy"}
    for wait in waits:
        found = check(without(records, wait.sequence))
        assert found.n_races
        assert not found.n_wrong
        first = found.violations[0]
        kind = "read before its write" if wait.stream == "compute" else "write before its reader"
        assert (first.kind, first.second.stream, first.second.layer) == (kind, wait.stream, wait.layer)
        before = f"{first.second.op} {first.second.sequence}"
        assert first.fix.endswith(f"and let stream {wait.stream} wait for it before {before}")


def test_bytes_of_another_tensor_are_found_though_all_is_in_order() -> None:
    records = record_engine("tiny-dense", "on", "sim", n_gen=0)[0]
    copies = [record for record in records if record.op == "copy" and record.stream == "copy"]
    wrong = copies[3]
    changed = [
        replace(one, writes=[(*span[:3], copies[2].writes[0][3]) for span in one.writes]) if one is wrong else one
        for one in records
    ]
    found = check(changed)
    assert (found.n_races, found.n_wrong) == (0, 1)
    [violation] = found.violations
    assert (violation.kind, violation.second.layer) == ("wrong bytes", wrong.layer)
    assert violation.expected == wrong.writes[0][3]
    assert violation.found == copies[2].writes[0][3]


def test_a_copy_that_is_left_out_is_found() -> None:
    records = record_engine("tiny-dense", "on", "sim", n_gen=0)[0]
    copy = next(record for record in records if record.op == "copy" and record.stream == "copy")
    found = check(without(records, copy.sequence))
    assert (found.n_races, found.n_wrong) == (0, 1)
    assert found.violations[0].first is None
    assert "finds what nothing has written" in str(found.violations[0])
