"""Whether launches return while their stream is held, without a GPU."""

from __future__ import annotations

import threading

from executor.devices.cuda_hold import returns_while_held


def test_a_launch_that_waits_for_its_kernel_is_found_and_let_go() -> None:
    """As under CUDA_LAUNCH_BLOCKING: it would wait for ever for what only this thread says."""
    gone = threading.Event()
    assert not returns_while_held(gone.wait, gone.set, patience_s=0.05)
    assert gone.is_set()


def test_a_launch_that_returns_is_let_go_at_once() -> None:
    gone = threading.Event()
    assert returns_while_held(lambda: None, gone.set, patience_s=60)
    assert gone.is_set()
