"""The cpu device: streams are in order, events order them, copies move exactly their bytes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from executor.devices.base import STREAMS, CopyRange, StreamName, Work
from executor.devices.cpu import CpuDevice
from executor.errors import HprofError
from tests.support import ROOT

FREE = Work()


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(link_gb_s=1000.0, link_latency_us=0.0, n_threads=1, memory_bytes=10_000)
    yield device
    device.close()


def wait_for(gate: threading.Event) -> None:
    gate.wait()


def test_a_stream_runs_what_it_is_given_in_order(device: CpuDevice) -> None:
    seen: list[int] = []
    for i in range(200):
        device.launch("compute", lambda i=i: seen.append(i), FREE)  # type: ignore[misc]
    device.drain()
    assert seen == list(range(200))


def test_streams_run_beside_each_other(device: CpuDevice) -> None:
    gate = threading.Event()
    device.launch("compute", partial(wait_for, gate), FREE)
    device.launch("copy", gate.set, FREE)  # would never run behind the first on one stream
    device.drain()
    assert gate.is_set()


def test_the_host_does_not_block_on_a_wait(device: CpuDevice) -> None:
    gate, seen = threading.Event(), []
    device.launch("copy", partial(wait_for, gate), FREE)
    ready = device.event()
    device.record("copy", ready)
    device.wait("compute", ready)
    device.launch("compute", lambda: seen.append("reader"), FREE)
    assert seen == []
    gate.set()
    device.synchronize(ready)
    device.drain()
    assert seen == ["reader"]


def test_events_tell_their_times_in_stream_order(device: CpuDevice) -> None:
    device.begin_pass()
    events = [device.event() for _ in range(20)]
    for event in events:
        device.record("compute", event)
    device.drain()
    times = [device.time_ns(event) for event in events]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= device.now_ns()


def test_an_event_that_was_never_recorded_holds_nobody_up(device: CpuDevice) -> None:
    event = device.event()
    device.wait("compute", event)
    device.synchronize(event)
    device.drain()


def test_recycled_events_are_used_again_and_blank(device: CpuDevice) -> None:
    event = device.event()
    device.record("compute", event)
    device.drain()
    device.recycle()
    assert device.event() is event
    gate, seen = threading.Event(), []
    device.launch("compute", partial(wait_for, gate), FREE)
    device.record("compute", event)
    device.wait("copy", event)
    device.launch("copy", lambda: seen.append(gate.is_set()), FREE)
    gate.set()
    device.drain()
    assert seen == [True]


@pytest.mark.parametrize("stream", ["compute", "copy"])
def test_copies_move_exactly_their_ranges(device: CpuDevice, stream: str) -> None:
    source = torch.arange(256, dtype=torch.uint8)
    target = torch.zeros(256, dtype=torch.uint8)
    device.copy_in(stream, [CopyRange(source, 10, target, 100, 20), CopyRange(source, 0, target, 0, 5)])  # type: ignore[arg-type]
    device.drain()
    want = torch.zeros(256, dtype=torch.uint8)
    want[100:120], want[0:5] = source[10:30], source[0:5]
    assert torch.equal(target, want)


def test_a_long_copy_arrives_whole() -> None:
    device = CpuDevice(link_gb_s=50.0, link_latency_us=0.0, n_threads=1)
    source = torch.randint(256, (5_000_011,), dtype=torch.uint8)
    target = torch.zeros_like(source)
    device.copy_in("copy", [CopyRange(source, 0, target, 0, source.numel())])
    device.drain()
    device.close()
    assert torch.equal(source, target)


def test_copy_out_moves_any_dtype(device: CpuDevice) -> None:
    source, target = torch.tensor([[1.5, -2.0]]), torch.zeros(1, 2)
    device.copy_out("compute", source, target)
    device.drain()
    assert torch.equal(source, target)


def test_a_failure_surfaces_once_and_streams_go_on(device: CpuDevice) -> None:
    seen: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError("inside a stream")

    device.launch("compute", fail, FREE)
    device.launch("compute", lambda: seen.append("after"), FREE)
    with pytest.raises(ZeroDivisionError, match="inside a stream"):
        device.drain()
    device.drain()
    assert seen == ["after"]


def test_of_several_failures_the_first_surfaces_and_none_is_left(device: CpuDevice) -> None:
    """A step that reads what another failed to write may fail as well, in a stream that is asked first."""

    def fail(what: str) -> None:
        raise ZeroDivisionError(what)

    orders: list[tuple[StreamName, StreamName]] = [("host", "compute"), ("compute", "host")]
    for first, second in orders:
        failed = device.event()
        device.launch(first, partial(fail, "cause"), FREE)
        device.record(first, failed)
        device.wait(second, failed)
        device.launch(second, partial(fail, "consequence"), FREE)
        with pytest.raises(ZeroDivisionError, match="cause"):
            device.drain()
        device.drain()


def test_memory_is_counted_and_limited(device: CpuDevice) -> None:
    first = device.allocate(6_000, "weights")
    assert device.reserved_bytes == 6_000
    with pytest.raises(HprofError, match=r"device 0 has 4,000 bytes free and slot 1 needs 5,000"):
        device.allocate(5_000, "slot 1")
    device.release(first)
    assert device.reserved_bytes == 0
    device.allocate(10_000, "slot 1")


def test_close_drops_what_is_queued() -> None:
    device = CpuDevice(n_threads=1)
    gate, seen = threading.Event(), []
    device.launch("compute", partial(wait_for, gate), FREE)
    device.launch("compute", lambda: seen.append("queued"), FREE)
    ready = device.event()
    device.record("compute", ready)
    device.wait("copy", ready)  # its record is dropped: closing must not wait for it
    threading.Timer(0.05, gate.set).start()
    device.close()
    assert seen == []


def test_close_ends_every_stream() -> None:
    device = CpuDevice(index=7, n_threads=1)
    names = {f"hprof-7-{stream}" for stream in STREAMS}
    assert names <= {thread.name for thread in threading.enumerate()}
    device.close()
    assert not names & {thread.name for thread in threading.enumerate()}


def test_each_stream_has_the_threads_it_was_given() -> None:
    """PyTorch gives a thread, at its first question, what any thread asked for last."""
    before = torch.get_num_threads()
    device = CpuDevice(n_threads=3)
    found: dict[str, int] = {}
    try:
        torch.set_num_threads(2)
        for name in STREAMS:
            device.launch(name, partial(note_threads, found, name), FREE)
        device.drain()
    finally:
        device.close()
        torch.set_num_threads(before)
    assert found == {"compute": 3, "copy": 1, "host": 3}


def note_threads(found: dict[str, int], name: str) -> None:
    found[name] = torch.get_num_threads()


def test_interrupted_at_any_instant_it_closes() -> None:
    """SIGTERM that came while the host held the lock of a stream or an event left the stream waiting for ever."""
    command = [sys.executable, "-m", "tests.executor.devices.interrupted_cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 50


def test_a_copy_under_way_does_not_hold_up_the_end() -> None:
    device = CpuDevice(link_gb_s=1e-6, n_threads=1)
    source = torch.ones(20_000_000, dtype=torch.uint8)
    target = device.allocate(source.numel(), "target").zero_()
    device.copy_in("copy", [CopyRange(source, 0, target, 0, source.numel())])
    while not target[0]:
        time.sleep(0.001)
    device.close()  # the copy takes five hours
