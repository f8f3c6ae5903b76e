"""The threads of products on the host: those that slept take part, whatever phase a job is in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from executor.compiling import find_compiler
from executor.host import stored

# A first phase of one chunk lasts while helpers wake up, as the reading of many rows does. The next is over only when
# all have come, or have not in a time that no waking takes.
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <set>
#include "team.hpp"
struct Meeting : hprof::Job {
    explicit Meeting(size_t n_wanted) : n_wanted(n_wanted) {}
    const size_t n_wanted;
    std::mutex lock;
    std::condition_variable came;
    std::set<std::thread::id> seen;
    int n_phases() const override { return 2; }
    int n_chunks(int phase) const override { return phase == 0 ? 1 : 200; }
    void foresee(int, int) const override {}
    void work(int phase, int) override {
        if (phase == 0) return std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::unique_lock<std::mutex> held(lock);
        seen.insert(std::this_thread::get_id());
        came.notify_all();
        if (!came.wait_for(held, std::chrono::seconds(30), [&] { return seen.size() == n_wanted; })) std::exit(1);
    }
};
int main() {
    hprof::Team team;
    for (int n_helpers : {3, 5, 2, 5}) {
        Meeting job(n_helpers + 1);
        team.begin(job, n_helpers);
        team.end();
        std::printf("%zu ", job.seen.size());
        std::fflush(stdout);
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
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["4", "6", "3", "6"], "each helper and the owner"
