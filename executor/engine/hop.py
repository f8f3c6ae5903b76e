"""Activations on their way from one device to the next, through host memory."""

from __future__ import annotations

from executor.devices.base import Work, whole_copy
from executor.job import Ubatch
from executor.placed.lane import Lane
from executor.tracing.pass_trace import PassTrace

_NAME = "copy activations"


def hop(ubatch: Ubatch, source: Lane, target: Lane, begin: int, trace: PassTrace) -> None:
    """Carry a ubatch's residual stream to the next lane; the ubatch begins at token `begin` of the pass."""
    on_source, on_host = (a.rows(ubatch.n_tokens).x for a in (source.on_device, source.on_host))
    start = trace.mark(source.device, "compute")
    source.device.copy_out("compute", on_source, on_host)
    sent = source.device.event()
    source.device.record("compute", sent)
    n_bytes = on_source.numel() * on_source.element_size()
    trace.add(source.device, "compute", "d2h", _NAME, ubatch, start, sent, bytes=n_bytes)
    target.device.wait("compute", sent)
    start = trace.mark(target.device, "compute")
    target.device.copy_in("compute", [whole_copy(on_host, target.on_device.rows(ubatch.n_tokens).x)])
    end = trace.mark(target.device, "compute")
    target.device.launch("compute", lambda: target.set_begin(begin, ubatch.n_past), Work())
    received = target.device.event()
    target.device.record("compute", received)
    source.device.wait("compute", received)  # its next ubatch overwrites the rows in host memory
    trace.count_h2d(n_bytes)
    trace.add(target.device, "compute", "h2d", _NAME, ubatch, start, end, bytes=n_bytes)
