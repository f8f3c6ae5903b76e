"""The threads of products on the host: those that slept take part, whatever phase a job is in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from executor.compiling import find_compiler
from executor.host import stored

# A first phase of one chunk lasts while helpers wake up, as the reading of many rows does; then there is work for all.
PROGRAM = r"""
#include <cstdio>
#include <set>
#include "team.hpp"
struct Slow : hprof::Job {
    std::mutex lock;
    std::set<std::thread::id> seen;
    int n_phases() const override { return 2; }
    int n_chunks(int phase) const override { return phase == 0 ? 1 : 200; }
    void foresee(int, int) const override {}
    void work(int phase, int) override {
        std::this_thread::sleep_for(std::chrono::milliseconds(phase == 0 ? 20 : 2));
        std::lock_guard<std::mutex> held(lock);
        if (phase == 1) seen.insert(std::this_thread::get_id());
    }
};
int main() {
    hprof::Team team;
    for (int n_helpers : {3, 5, 2, 5}) {
        Slow job;
        team.begin(job, n_helpers);
        team.end();
        std::printf("%zu ", job.seen.size());
        std::this_thread::sleep_for(std::chrono::milliseconds(40));  // all of them sleep
    }
}
"""


def test_threads_that_slept_wake_up_for_a_job_whose_first_phase_has_one_chunk(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None or not stored.is_available():
        pytest.skip("needs a C++ compiler and AVX-512: products of stored bytes are not used without")
    source, program = tmp_path / "team.cpp", tmp_path / "team"
    source.write_text(PROGRAM)
    native = Path(stored.__file__).parent / "native"
    subprocess.run([compiler, "-std=c++17", "-O1", "-pthread", f"-I{native}", source, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["4", "6", "3", "6"], "each helper and the owner"
