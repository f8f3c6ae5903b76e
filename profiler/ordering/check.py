"""Both checks of a capture, and their result: for the command, the report and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from executor.errors import HprofError
from executor.units import format_count, listed
from profiler.ordering.clocks import happens_before
from profiler.ordering.operations import Operations, load_operations
from profiler.ordering.pairs import Pairs, check_pairs
from profiler.ordering.violation import OrderingViolation, race_at, wrong_at

if TYPE_CHECKING:
    from profiler.capture import Capture

MAX_NAMED: Final = 20
CHECK_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was checked, how often it failed, and the first failures in the order of issue."""

    n_operations: int
    n_pairs: int
    """Pairs of accesses to the same bytes, of which at least one writes."""
    n_expectations: int
    """Reads that rely on the content of what they read."""
    n_races: int
    n_wrong: int
    violations: tuple[OrderingViolation, ...]
    """At most MAX_NAMED of each check."""
    faulty_passes: tuple[int, ...] = ()
    """In which something was found, named here or not."""
    arms: tuple[str, ...] = ()
    """Whose passes these are, where that is known."""

    @property
    def is_clean(self) -> bool:
        """Whether neither check found anything."""
        return not self.n_races and not self.n_wrong

    def line(self) -> str:
        """One line for a report."""
        held = f"{format_count(self.n_operations, 'operation')}, {format_count(self.n_pairs, 'pair')} on the same bytes"
        if self.is_clean:
            return f"hprof check: all in order, all bytes as expected ({held})"
        found = f"{format_count(self.n_races, 'race')} and {format_count(self.n_wrong, 'read')} of wrong bytes"
        if self.arms:
            found += f" in passes of {listed(self.arms)}"
        return f"hprof check: {found} ({held}); the first: {self.violations[0]}"

    def lines(self) -> Iterator[str]:
        """All of it, a line each."""
        yield self.line() if self.is_clean else self.line().partition("; the first")[0]
        for violation in self.violations:
            yield str(violation)
            yield f"  fix: {violation.fix}"
        n_more = self.n_races + self.n_wrong - len(self.violations)
        if n_more:
            yield f"and {n_more:,} more."

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "schema": CHECK_SCHEMA,
            "state": "clean" if self.is_clean else "faults",
            "operations": self.n_operations,
            "pairs": self.n_pairs,
            "expectations": self.n_expectations,
            "races": self.n_races,
            "wrong_reads": self.n_wrong,
            "arms": list(self.arms),
            "violations": [violation.to_json() for violation in self.violations],
        }


def check_capture(capture: Capture, name_in: int | None = None) -> CheckResult:
    """Check a capture. Raises HprofError where it holds no ordering records, or some that no run has.

    name_in: the pass whose failures are named; None: the first of all.
    """
    if not capture.n_rows("ordering"):
        of_own_code = ", or put `hprof.check()` around code of your own (on CUDA)"
        raise HprofError(
            f"{capture.path} holds no ordering records, so nothing can be checked; run again with `hprof run "
            f"--record-ordering`{'' if capture.manifest.source == 'hprof' else of_own_code}."
        )
    ops = load_operations(capture)
    try:
        found = find_violations(ops, name_in)
    except HprofError as error:
        raise HprofError(f"{capture.path}: its ordering records cannot be checked: {error}") from error
    return _with_arms(found, capture)


def _with_arms(found: CheckResult, capture: Capture) -> CheckResult:
    passes = capture.passes.dropna(subset=["pass_id", "arm"])
    arm_of = {int(pass_id): str(arm) for pass_id, arm in zip(passes["pass_id"], passes["arm"], strict=True)}
    named = (replace(one, arm=None if one.pass_id is None else arm_of.get(one.pass_id)) for one in found.violations)
    faulty = dict.fromkeys(arm_of[one] for one in found.faulty_passes if one in arm_of)
    return replace(found, violations=tuple(named), arms=tuple(faulty))


def find_violations(ops: Operations, name_in: int | None = None) -> CheckResult:
    """Check operations; `name_in` as in `check_capture`. Raises HprofError for what no run has."""
    order = happens_before(ops)
    found = check_pairs(order)

    def named(pairs: Pairs) -> Iterator[int]:
        is_named = np.ones(len(pairs.second), np.bool_) if name_in is None else ops.pass_id[pairs.second] == name_in
        yield from np.flatnonzero(is_named)[:MAX_NAMED].tolist()

    races = [race_at(order, found.races, i) for i in named(found.races)]
    wrong = [wrong_at(order, found.wrong, i) for i in named(found.wrong)]
    faulty = np.unique(ops.pass_id[np.concatenate([found.races.second, found.wrong.second])])
    return CheckResult(
        len(ops),
        found.n_pairs,
        found.n_expectations,
        len(found.races.first),
        len(found.wrong.first),
        (*races, *wrong),
        tuple(faulty.tolist()),
    )
