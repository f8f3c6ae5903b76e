"""`hprof.ab`: callables as arms, in turn inside one process, judged as hprof's own arms are.

    with hprof.ab("traces/mine", repetitions=6) as ab:
        ab.arm("off", step_without)
        ab.arm("on", step_with)

They run when the block ends: warm-ups, then ABBA blocks, timed and not recorded; then each arm once more under
torch.profiler, not timed, for its copies and overlap.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from executor.errors import HprofError
from profiler.arithmetic.turns import MAX_WARMUPS, WARMUP_TOLERANCE, in_turn, needs_warmup
from profiler.collection import no_collection, sparing_what_is_there
from profiler.engines.boots import kept_when_ended
from profiler.engines.recorded import ENDING, tell_recorded
from profiler.facts import describe_machine, result_variables
from profiler.manifest import ManifestArm
from profiler.recording.in_process import (
    WITHOUT_CUDA,
    import_traces,
    recorded_fields,
    records_cuda,
    synchronise,
    torch_trace,
)
from profiler.recording.ranges import is_suspended
from profiler.storage.place import check_place
from profiler.storage.writer import CaptureWriter, PassKey, new_capture

SOURCE: Final = "python"
_MOST_REPETITIONS: Final = 100_000
_HOW: Final = "Each arm ran once more, recorded by torch.profiler and not timed."
_CANNOT_SAY: Final = (
    "Of a callable its wall time is measured, from its call until the devices are idle again; the timed runs are not "
    "recorded, so their copies, kernels, tokens and memory are unknown."
)
Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Arm:
    name: str
    step: Step
    before: Step | None  # runs ahead of each call, not timed


class AB:
    """An A/B of callables. `capture` and `recording` are the addresses of what was written, once it has run."""

    def __init__(
        self, path: str | os.PathLike[str], repetitions: int = 6, *, record: bool = True, force: bool = False
    ) -> None:
        """repetitions: measured calls of each arm; record: run each arm once more under torch.profiler.

        Raises HprofError where the capture could not be written.
        """
        if not isinstance(repetitions, int) or not 1 <= repetitions <= _MOST_REPETITIONS:
            raise HprofError(
                f"hprof.ab: repetitions={repetitions!r} is not a whole number between 1 and {_MOST_REPETITIONS:,}."
            )
        self._path, self._repetitions, self._record, self._force = os.fspath(path), repetitions, record, force
        self._arms: list[_Arm] = []
        self.capture: str | None = None
        self.recording: str | None = None
        check_place(self._path, force=force)
        if record:
            check_place(self._recording_path, force=force)

    @property
    def _recording_path(self) -> str:
        return self._path.rstrip("/") + ENDING

    def arm(self, name: str, step: Step, *, before: Step | None = None) -> None:
        """Add an arm; the first is the baseline. `step` is called without arguments, `before` ahead of it, untimed."""
        if self.capture is not None:
            raise HprofError(f"hprof.ab: the arms ran already, for {self.capture}; begin another hprof.ab.")
        if not isinstance(name, str) or not name.strip() or not callable(step):
            raise HprofError(f"hprof.ab: an arm is a name and a callable, not {name!r} and {step!r}.")
        if before is not None and not callable(before):
            raise HprofError(f"hprof.ab: arm {name}: before={before!r} is nothing that can be called.")
        if is_suspended(step):
            raise HprofError(
                f"hprof.ab: arm {name} is a coroutine or generator, of which a call runs nothing; give a function that "
                "runs it to its end, such as lambda: asyncio.run(step())."
            )
        if any(arm.name == name for arm in self._arms):
            raise HprofError(f"hprof.ab: there is an arm {name!r} already; give each a name of its own.")
        self._arms.append(_Arm(name, step, before))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.capture is None:
            self.run()

    def run(self) -> str:
        """Run the arms and write the capture; gives its address. A `with` block does so at its end, if not before.

        What an arm raises comes through; the capture then keeps the calls before it and is `interrupted`.
        """
        if self.capture is not None:
            raise HprofError(f"hprof.ab: the arms ran already, for {self.capture}; begin another hprof.ab.")
        if not self._arms:
            raise HprofError("hprof.ab: there is no arm to run; add two with ab.arm(name, function).")
        if len(self._arms) == 1:
            raise HprofError(
                f"hprof.ab: {self._arms[0].name} is the only arm, with nothing to compare it with; add another with "
                "ab.arm(name, function)."
            )
        writer = new_capture(self._path, force=self._force, source=SOURCE, argv=sys.argv, **self._fields())
        with kept_when_ended(writer), sparing_what_is_there():
            _TimedRuns(self._arms, self._repetitions, writer).run()
            writer.finish("complete")
        self.capture = writer.path
        if self._record:
            self.recording = self._run_recorded()
            tell_recorded(writer, self.recording, _HOW)
        return writer.path

    def _run_recorded(self) -> str:
        with tempfile.TemporaryDirectory(prefix="hprof-ab-") as folder:
            traces = []
            for number, arm in enumerate(self._arms):
                trace = Path(folder) / f"arm-{number}.json"
                if arm.before is not None:
                    arm.before()
                with torch_trace(trace):
                    arm.step()
                traces.append((arm.name, trace))
            return import_traces(
                traces, self._recording_path, recorded_fields("hprof.ab", is_timed=False), force=self._force
            )

    def _fields(self) -> dict[str, Any]:
        return {
            "arms": [ManifestArm(arm.name, options={"callable": _told(arm.step)}) for arm in self._arms],
            "machine": describe_machine(),
            "environment": result_variables(),
            "grid": {
                "repetitions": self._repetitions,
                "order": "ABBA: arms forward, then backward, repetition after repetition",
                "warmups": {"at_most": MAX_WARMUPS, "until_last_two_differ_less_than": WARMUP_TOLERANCE},
            },
            "cannot_say": [_CANNOT_SAY, *([] if records_cuda() else [WITHOUT_CUDA])],
        }


class _TimedRuns:
    """Warm-ups, then repetitions in turn; each call is a pass, written when it is done."""

    def __init__(self, arms: list[_Arm], repetitions: int, writer: CaptureWriter) -> None:
        self._arms, self._repetitions, self._writer = arms, repetitions, writer
        self._n_passes = 0
        self._zero_ns = time.perf_counter_ns()

    def run(self) -> None:
        for arm in self._arms:
            durations_ns: list[int] = []
            while needs_warmup(durations_ns):
                durations_ns.append(self._call(arm, len(durations_ns), warmup=True))
        for repetition, arm in in_turn(self._arms, self._repetitions):
            self._call(arm, repetition, warmup=False)

    def _call(self, arm: _Arm, repetition: int, *, warmup: bool) -> int:
        """One call, from idle devices to idle devices; its ns."""
        if arm.before is not None:
            arm.before()
        with no_collection():
            synchronise()
            start_ns = time.perf_counter_ns()
            given = arm.step()
            synchronise()
            end_ns = time.perf_counter_ns()
        _check_done(arm, given)
        key = PassKey(arm.name, repetition=repetition, order=self._n_passes, boot=0, warmup=warmup)
        self._writer.add_pass_row(self._n_passes, key, t_start=start_ns - self._zero_ns, t_end=end_ns - self._zero_ns)
        self._n_passes += 1
        return end_ns - start_ns


def _check_done(arm: _Arm, given: object) -> None:
    """HprofError where the call gave something that is still to run: its time would be that of nothing."""
    if inspect.isawaitable(given) or inspect.isgenerator(given) or inspect.isasyncgen(given):
        if inspect.iscoroutine(given):
            given.close()
        raise HprofError(
            f"hprof.ab: a call of arm {arm.name} gave a {type(given).__name__}, which has yet to run; give a function "
            "that runs it to its end."
        )


def _told(step: Step) -> str:
    """Where a callable is from, as far as it says."""
    return f"{getattr(step, '__module__', '?')}.{getattr(step, '__qualname__', type(step).__name__)}"[:200]
