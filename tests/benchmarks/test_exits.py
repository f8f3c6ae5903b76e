"""The benchmark of exits names how runs ended."""

from __future__ import annotations

import signal
from collections import Counter

from benchmarks import exits


def test_ends_are_named() -> None:
    assert exits.told("import, cold", Counter({0: 1000})) == "import, cold: 1,000 runs, all ended with 0"
    ended = Counter({0: 7, -signal.SIGABRT: 2, 134: 1})
    assert exits.told("report", ended) == "report: 10 runs, 2 by SIGABRT, 1 by exit code 134"


def test_a_cold_run_gives_its_exit_code() -> None:
    assert exits.cold(["--version"]) == 0
    assert exits.cold(["no-such-command"]) == 2
