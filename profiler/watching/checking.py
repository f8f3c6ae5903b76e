"""`with hprof.check():` around PyTorch code: what was issued inside is proved to be in order, or it raises."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

import torch

from executor.errors import HprofError
from profiler.ordering.check import CheckResult
from profiler.watching.dispatch import DispatchWatch, HostReadWatch, Piece, Watched, caller
from profiler.watching.issued import Issued
from profiler.watching.memory import NamedBytes
from profiler.watching.runtime import Runtime


class Check:
    """Watches what the thread issues between enter and exit. `result` is there afterwards.

    At exit it raises HprofError with the first finding, unless `raises` is False or the code inside raised.
    """

    def __init__(self, *, raises: bool = True, runtime: Runtime | None = None) -> None:
        self._raises = raises
        self._runtime = runtime or _cuda_runtime()
        self._issued = Issued()
        self._watched = Watched(self._runtime, self._issued)
        self._entered = ExitStack()
        self._result: CheckResult | None = None

    @property
    def result(self) -> CheckResult:
        """What was found. Raises HprofError before the end of the `with`."""
        if self._result is None:
            raise HprofError("hprof.check() has no result before its `with` block has ended: look at it afterwards")
        return self._result

    def name(self, tensor: torch.Tensor, name: str) -> None:
        """Say what a contiguous tensor holds from now on; copies carry the name to where they put the bytes."""
        block, [(start, end)] = self._contiguous(tensor)
        block.rename(start, end, NamedBytes(start, end, name, start))

    def expects(self, tensor: torch.Tensor, name: str) -> None:
        """What is issued next relies on a contiguous tensor holding the first bytes of what was named so."""
        piece = self._contiguous(tensor)
        [(start, _)] = piece.runs
        stream = self._watched.stream_of(tensor)
        tag = NamedBytes(start, start, name, start).tag
        self._issued.operation(stream, "launch", f"expects '{name}'{caller()}", reads=piece.tagged(tag))

    def touches(self, name: str, reads: Sequence[torch.Tensor] = (), writes: Sequence[torch.Tensor] = ()) -> None:
        """A kernel that PyTorch does not dispatch (Triton, CuPy) was launched on the current stream."""
        streams = [self._watched.stream_of(one) for one in (*reads, *writes)]
        self._watched.note(next(filter(None, streams), None), "launch", name, reads, writes)

    def __enter__(self) -> Check:
        if self._result is not None:
            raise HprofError("hprof.check() was used up by its first `with` block: make another one")
        self._entered.enter_context(self._runtime.listening(self._issued))
        self._entered.enter_context(HostReadWatch(self._watched))
        self._entered.enter_context(DispatchWatch(self._watched))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watched.memory.close()
        self._entered.close()
        self._result = self._issued.result()
        if self._raises and kind is None and not self._result.is_clean:
            raise HprofError("\n".join(self._result.lines()))

    def _contiguous(self, tensor: torch.Tensor) -> Piece:
        piece = self._watched.piece(tensor)
        if len(piece.runs) != 1:
            raise HprofError("hprof.check() names tensors whose bytes lie side by side: pass a contiguous one")
        return piece


def _cuda_runtime() -> Runtime:
    if not torch.cuda.is_available():
        raise HprofError(
            f"hprof.check() watches CUDA streams and torch {torch.__version__} sees no GPU: "
            "run it where there is one, or check a run of hprof's own, made by `hprof run --record-ordering`, with "
            "`hprof check`."
        )
    from profiler.watching.cuda import CudaRuntime

    return CudaRuntime()
