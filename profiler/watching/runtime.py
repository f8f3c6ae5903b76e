"""The seam of watching: what says where tensors live, which stream gets work, and what streams and events are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from profiler.watching.issued import Issued, StreamKey


class Runtime(Protocol):
    """torch.cuda (`profiler.watching.cuda`), or what stands in for it where there is no GPU."""

    def is_on_device(self, device: torch.device) -> bool:
        """Whether work on tensors there goes to a stream."""

    def current_stream(self, device: torch.device) -> StreamKey:
        """The stream that work goes to now."""

    def key_of(self, stream: Any) -> StreamKey:
        """A stream as PyTorch passes it."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether copies read and write a host tensor by themselves, without staging it."""

    def address(self, tensor: torch.Tensor) -> int:
        """Where the tensor's storage begins; 0: nowhere."""

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do what was asked."""

    def listening(self, issued: Issued) -> AbstractContextManager[None]:
        """While entered, `issued` is told of records, waits and syncs."""
