"""Issues the copies of items on one device's streams, and marks each of them in the trace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from executor.devices.base import Device, Event, Range, StreamName, Work
from executor.policies.base import Flags
from executor.streaming.bank import Bank, Serving
from executor.streaming.flight import Flight
from executor.tracing.nvtx_ranges import copy_range
from executor.tracing.pass_trace import PassTrace


class Copies:
    """The copies of one pass on one device. What a flight carries is noted in it."""

    def __init__(self, device: Device, trace: PassTrace) -> None:
        self._device, self._trace = device, trace

    def whole(self, flight: Flight, stream: StreamName) -> None:
        """All bytes of a flight's split, into its slot."""
        split = flight.item.split
        self._over_the_bus(flight, stream, split.whole(flight.slot.buffer), "whole", n_experts=split.n_experts or None)
        flight.n_copied = split.n_experts

    def experts(self, flight: Flight, stream: StreamName, what: str, experts: Flags) -> None:
        """Some experts of a flight's split, into its slot, neighbours merged."""
        ranges = flight.item.split.runs(flight.slot.buffer, experts)
        n_experts = int(experts.sum())
        self._over_the_bus(flight, stream, ranges, what, n_experts=n_experts)
        flight.n_copied += n_experts
        flight.present = experts if flight.present is None else flight.present | experts

    def missed(self, flight: Flight, serving: Serving) -> None:
        """What a bank lacks, on the compute stream, which alone reads and writes it."""
        self._over_the_bus(
            flight, "compute", serving.uploads, "missed", n_bytes=serving.n_bytes, n_experts=serving.n_misses
        )

    def cached(self, flight: Flight, bank: Bank, cached: Mapping[int, int]) -> None:
        """Experts that a bank has (expert -> place), into the flight's slot: inside the device."""
        split = flight.item.split
        start = self._trace.mark(self._device, "compute")
        n_bytes = len(cached) * bank.expert_bytes
        fn = partial(bank.copy_cached, split, cached, flight.slot.buffer)
        self._device.launch("compute", fn, Work(n_bytes=2.0 * n_bytes))
        end = self._trace.mark(self._device, "compute")
        fields = {"layer": split.layer, "tensor": split.label, "bytes": n_bytes, "n_experts": len(cached)}
        self._trace.add(self._device, "compute", "d2d", "copy cached", flight.item.ubatch, start, end, **fields)

    def _over_the_bus(
        self,
        flight: Flight,
        stream: StreamName,
        ranges: list[Range],
        what: str,
        *,
        n_experts: int | None,
        n_bytes: int | None = None,
    ) -> None:
        device, split = self._device, flight.item.split
        if stream == "copy" and flight.slot.free is not None and flight.copy_id is None:
            device.wait("copy", flight.slot.free)
        n_bytes = sum(piece.n_bytes for piece in ranges) if n_bytes is None else n_bytes
        start = self._trace.mark(device, stream)
        with copy_range(split.layer, split.label, what, n_bytes):
            device.copy_in(stream, ranges)
        end = self._trace.mark(device, stream)
        if stream == "copy":
            flight.ready = end or self._ordering_event(stream)
        flight.copy_id = self._trace.new_copy_id()
        self._trace.count_h2d(n_bytes)
        self._trace.add(
            device,
            stream,
            "h2d",
            f"copy {what}",
            flight.item.ubatch,
            start,
            end,
            layer=split.layer,
            tensor=split.label,
            bytes=n_bytes,
            whole_bytes=split.n_bytes,
            n_experts=n_experts,
            slot=None if what == "missed" else flight.slot.index,
            correlation_id=flight.copy_id,
            source_memory=split.memory,
        )

    def _ordering_event(self, stream: StreamName) -> Event:
        event = self._device.event()
        self._device.record(stream, event)
        return event
