"""What a device does behind the host's part of a layer, queued before the host is done where the device can be held.

What Python does between the end of the host's part and the device's next work is time in which both stand still.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from executor.devices.base import Device, Event
from executor.passes import Ubatch


class OnHost(Protocol):
    """A part of the host's that has begun, or is about to."""

    def end(self) -> Event:
        """Wait for it, or queue that; gives the event that it is done."""

    def note(self, ubatch: Ubatch) -> None:
        """Keep when it ran."""


@dataclass(frozen=True, slots=True)
class Following:
    """`queue` queues it on the compute stream. `may_be_held`: it does not run for the first time (`Device.hold`)."""

    queue: Callable[[], None]
    may_be_held: bool = False

    def behind(self, device: Device, on_host: OnHost, ubatch: Ubatch, begin: Callable[[], None] | None = None) -> None:
        """Let it follow on the host's part, which `begin` begins where it has not."""
        if not (self.may_be_held and device.holds):
            if begin is not None:
                begin()
            device.wait("compute", on_host.end())
            on_host.note(ubatch)
            self.queue()
            return
        let_go = device.hold("compute")
        try:
            self.queue()
            if begin is not None:
                begin()
            device.synchronize(on_host.end())
        finally:
            let_go()
        on_host.note(ubatch)
