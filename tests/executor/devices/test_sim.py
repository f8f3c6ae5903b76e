"""The sim device: exact virtual times from its cost model."""

from __future__ import annotations

import pytest
import torch

from executor.devices.base import CopyRange, Work
from executor.devices.factory import DeviceOptions, make_devices
from executor.devices.sim import SimDevice, SimLink, SimMachine
from executor.errors import HprofError

MACHINE = SimMachine(
    gemm_tflop_s=1.0,  # 1000 flops a ns
    memory_gb_s=10.0,  # 10 bytes a ns
    link_gb_s=2.0,
    link_latency_us=5.0,
    launch_us=1.0,
    host_call_us=0.0,
    host_gflop_s=100.0,
    host_memory_gb_s=1.0,
)


def fresh(machine: SimMachine = MACHINE) -> SimDevice:
    device = SimDevice(0, machine)
    device.begin_pass()
    return device


def at(device: SimDevice, stream: str) -> int:
    event = device.event()
    device.record(stream, event)  # type: ignore[arg-type]
    return device.time_ns(event)


def piece(device: SimDevice, n_bytes: int) -> CopyRange:
    slab = device.host_slab(n_bytes, pinned=True)
    return CopyRange(slab, 0, slab, 0, n_bytes)


@pytest.mark.parametrize(
    ("work", "expected_ns"),
    [(Work(5e6, 0), 5_000 + 1_000), (Work(0, 40_000), 4_000 + 1_000), (Work(5e6, 80_000), 8_000 + 1_000)],
)
def test_a_launch_takes_the_longer_of_arithmetic_and_memory(work: Work, expected_ns: int) -> None:
    device = fresh()
    device.launch("compute", lambda: pytest.fail("sim computes nothing"), work)
    assert at(device, "compute") == expected_ns


def test_host_work_has_its_own_rates() -> None:
    device = fresh()
    device.launch("host", lambda: None, Work(1e6, 3_000))
    assert at(device, "host") == 10_000


def test_a_copy_takes_latency_and_bytes_for_each_range() -> None:
    device = fresh()
    device.copy_in("copy", [piece(device, 2_000), piece(device, 4_000)])
    assert at(device, "copy") == (5_000 + 1_000) + (5_000 + 2_000)


def test_two_streams_share_one_link_and_directions_do_not() -> None:
    device = fresh()
    device.copy_in("copy", [piece(device, 2_000)])
    device.copy_in("compute", [piece(device, 2_000)])
    device.copy_out("host", torch.empty(2_000, dtype=torch.uint8, device="meta"), torch.empty(0, device="meta"))
    assert [at(device, stream) for stream in ("copy", "compute", "host")] == [6_000, 12_000, 6_000]


def test_a_copy_that_waits_for_its_stream_leaves_the_link_to_others() -> None:
    """Activations that wait for another device must not hold up weights that were issued after them."""
    device = fresh()
    device.launch("compute", lambda: None, Work(9e6))
    device.copy_in("compute", [piece(device, 2_000)])  # from 10,000 to 16,000
    device.copy_in("copy", [piece(device, 2_000)])  # fits before it
    device.copy_in("copy", [piece(device, 2_000)])  # does not
    assert [at(device, "compute"), at(device, "copy")] == [16_000, 22_000]
    device.copy_in("host", [piece(device, 0)])  # 6,000 to 10,000 is too short for a latency of 5,000 after this one
    assert at(device, "host") == 27_000


def test_a_link_fills_its_gaps_in_order() -> None:
    link = SimLink()
    ends = [link.take(ready, 10.0, 0.0) for ready in (0.0, 50.0, 20.0, 25.0, 0.0)]
    assert ends == [10.0, 60.0, 30.0, 40.0, 20.0]
    assert link.take(5.0, 11.0, 0.0) == 71.0
    assert link.take(65.0, 5.0, now_ns=65.0) == 76.0


def test_compute_overlaps_copies_and_waits_where_told() -> None:
    device = fresh()
    device.copy_in("copy", [piece(device, 2_000)])
    ready = device.event()
    device.record("copy", ready)
    device.launch("compute", lambda: None, Work(1e6))
    assert at(device, "compute") == 2_000
    device.wait("compute", ready)
    device.launch("compute", lambda: None, Work(1e6))
    assert at(device, "compute") == 6_000 + 2_000


def test_the_host_waits_in_virtual_time() -> None:
    device = fresh()
    device.launch("compute", lambda: None, Work(9e6))
    done = device.event()
    device.record("compute", done)
    assert device.now_ns() < device.time_ns(done)
    device.synchronize(done)
    assert device.now_ns() == 10_000


def test_issuing_costs_host_time() -> None:
    device = fresh(SimMachine(launch_us=0.0, host_call_us=3.0))
    device.launch("compute", lambda: None, Work())
    device.launch("compute", lambda: None, Work())
    assert device.now_ns() == 6_000
    assert at(device, "compute") == 9_000  # the record is a call too


def test_a_pass_begins_at_zero() -> None:
    device = fresh()
    device.launch("compute", lambda: None, Work(9e6))
    device.drain()
    assert device.now_ns() == 10_000
    device.begin_pass()
    assert device.now_ns() == 0
    assert at(device, "compute") == 0


def test_memory_is_limited() -> None:
    device = fresh(SimMachine(memory_bytes=100))
    kept = device.allocate(60, "weights")
    assert kept.device.type == "meta"
    with pytest.raises(HprofError, match="40 bytes free and slot 0 needs 50"):
        device.allocate(50, "slot 0")
    device.release(kept)
    assert device.allocate(100, "slot 0").numel() == 100


def test_the_factory_sets_the_link() -> None:
    [device] = make_devices(DeviceOptions("sim", link_gb_s=3.0, link_latency_us=7.0))
    assert isinstance(device, SimDevice)
    assert (device.machine.link_gb_s, device.machine.link_latency_us) == (3.0, 7.0)
    [device] = make_devices(DeviceOptions("sim"))
    assert isinstance(device, SimDevice)
    assert device.machine == SimMachine()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has an NVIDIA GPU")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(HprofError, match="--device cuda needs 2 GPU"):
        make_devices(DeviceOptions("cuda", n_devices=2))
