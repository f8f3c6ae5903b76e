"""Runs a plan: every arm in every cell, interleaved, pass after pass, each written as soon as it is done. `--boots
N` does all of it again in fresh processes, as the first placement of memory is a matter of luck.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from executor.devices.out_of_memory import explain_oom
from executor.errors import HprofError
from executor.passes import PassJob, PassResult
from executor.session import Session
from executor.units import format_count
from profiler.arithmetic.turns import arm_order, needs_warmup
from profiler.capture import Capture
from profiler.collection import no_collection, sparing_what_is_there
from profiler.pass_kernels import CuptiRecorder
from profiler.planning.placed_arms import PlacedArms
from profiler.planning.plan import RunPlan
from profiler.planning.request import GridPoint
from profiler.running.progress import NoProgress, RunProgress
from profiler.running.run_manifest import arms_of_session
from profiler.running.termination import INTERRUPTED, TERMINATED, exit_code_of, raised_afterwards
from profiler.storage.writer import CaptureWriter, PassKey


@dataclass(slots=True)
class CapturePosition:
    """Where a run is in its capture: the next pass's id, and the end of the last pass on the capture's clock."""

    next_pass: int = 0
    end_ns: int = 0
    boot: int = 0


class InterruptedRunError(HprofError):
    """Ctrl-C or SIGTERM: the pass under way is dropped, and the capture says so."""

    def __init__(self, writer: CaptureWriter, exit_code: int = INTERRUPTED) -> None:
        word = "terminated" if exit_code == TERMINATED else "interrupted"
        super().__init__(f"{word}; {kept_passes(writer)}.", exit_code=exit_code)


@contextmanager
def told_when_interrupted(writer: CaptureWriter) -> Iterator[None]:
    """What ends in here before its time leaves a capture that says so; signals become InterruptedRunError."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        writer.finish("interrupted")
        raise InterruptedRunError(writer, exit_code_of(interrupt)) from None
    except BaseException:
        writer.finish("interrupted")
        raise


def kept_passes(writer: CaptureWriter) -> str:
    """What a run that ended early leaves, once its writer has finished."""
    if not writer.is_in_place:
        return f"no measured pass was finished, and {writer.path} is as it was before"
    is_warmup = Capture.open(writer.path).table("passes", ["warmup"])["warmup"]
    n_warmups = pc.sum(is_warmup, min_count=0).as_py()
    n_measured = len(is_warmup) - n_warmups
    kept = f"{format_count(n_measured, 'measured pass')} and {format_count(n_warmups, 'warm-up')}"
    return f"{writer.path} keeps {kept}, and `hprof report` reads it"


def run_capture(
    plan: RunPlan, writer: CaptureWriter, progress: RunProgress | None = None, position: CapturePosition | None = None
) -> CapturePosition:
    """Run every pass of `plan` into `writer`; the caller finishes the capture.

    Raises InterruptedRunError after Ctrl-C and SIGTERM, and HprofError when memory or the disk runs out; the
    capture then says so.
    """
    run = _CaptureRun(plan, writer, progress or NoProgress(), position or CapturePosition())
    with (
        told_when_interrupted(writer),
        explain_oom("passes were recorded", lambda _: "use --recorder off, or a smaller -p and -n"),
    ):
        run.run()
    return run.position


class _CaptureRun:
    def __init__(self, plan: RunPlan, writer: CaptureWriter, progress: RunProgress, position: CapturePosition) -> None:
        self.position = position
        self._plan, self._writer, self._progress = plan, writer, progress
        self._request = plan.request
        self._started_ns = time.perf_counter_ns() - position.end_ns
        self._cupti = CuptiRecorder() if self._request.recorder == "cupti" else None

    def run(self) -> None:
        n_arms = sum(len(setup.runs) for setup in self._plan.setups)
        self._progress.start(n_arms * len(self._request.cells) * self._request.repetitions)
        try:
            for setup in self._plan.setups:
                self._run_setup(setup)
        finally:
            self._progress.stop()
            self._tell_losses()

    def _run_setup(self, setup: PlacedArms) -> None:
        self._progress.before_pass(f"loading {self._plan.model.shape.name}")
        begun_ns = time.perf_counter_ns()
        session = Session(self._plan.model, setup.session_placement, setup.arms, self._plan.session)
        try:
            self._describe(setup, session, load_ns=time.perf_counter_ns() - begun_ns)
            session.agree_on_products(self._writer.manifest.extra.get("device_products"))  # as the boots before
            with sparing_what_is_there():
                for cell in self._request.cells:
                    self._run_cell(setup, session, cell)
            self._tell_products(session)
            self._writer.update_manifest(warnings=self._warnings(session))  # some come while passes run
        finally:
            session.close()

    def _run_cell(self, setup: PlacedArms, session: Session, cell: GridPoint) -> None:
        self._warm_up(setup, session, cell)
        for repetition in range(self._request.repetitions):
            for label in arm_order(list(setup.labels), repetition):
                self._pass(session, cell, label, setup.labels[label], repetition, warmup=False)

    def _describe(self, setup: PlacedArms, session: Session, load_ns: int) -> None:
        known = {arm.name: arm for arm in self._writer.manifest.arms}
        known |= {arm.name: arm for arm in arms_of_session(setup, session)}
        self._writer.update_manifest(
            arms=list(known.values()),
            warnings=self._warnings(session),
            link_h2d_gb_s=session.devices[0].link_gb_s,
            extra=_with_load_time(self._writer.manifest.extra, setup, load_ns),
        )

    def _warnings(self, session: Session) -> list[str]:
        return list(dict.fromkeys([*self._writer.manifest.warnings, *session.warnings]))

    def _tell_products(self, session: Session) -> None:
        """`device_products`: which way a GPU computed products of few rows, by their shapes."""
        if products := session.device_products():
            extra = self._writer.manifest.extra
            self._writer.update_manifest(
                extra={**extra, "device_products": extra.get("device_products", {}) | products}
            )

    def _warm_up(self, setup: PlacedArms, session: Session, cell: GridPoint) -> None:
        """Discarded passes, on tokens that no measured repetition uses; `repetition` counts them."""
        durations_ns: dict[str, list[int]] = {arm: [] for arm in setup.arms}
        waiting = list(setup.arms)
        while waiting:
            for arm in waiting:
                result = self._pass(session, cell, setup.label(arm), arm, len(durations_ns[arm]), warmup=True)
                durations_ns[arm].append(result.t_end - result.t_start)
            waiting = [arm for arm in waiting if needs_warmup(durations_ns[arm], session.policies[arm].min_warmups)]

    def _pass(
        self, session: Session, cell: GridPoint, label: str, arm: str, repetition: int, *, warmup: bool
    ) -> PassResult:
        pass_id = self.position.next_pass
        size = {"n_prompt": cell.n_prompt, "n_gen": cell.n_gen, "n_ubatch": cell.n_ubatch, "n_depth": cell.n_depth}
        logits = self._request.all_logits
        job = PassJob(pass_id, arm, **size, repetition=repetition, warmup=warmup, all_logits=logits)
        self._progress.before_pass(f"{label} -ub {cell.n_ubatch}{' (warm-up)' if warmup else ''}")
        zero_ns = self._zero_ns(session)
        with no_collection():
            result, kernels = self._recorded(session, job)
        key = PassKey(label, **size, repetition=repetition, order=pass_id, boot=self.position.boot, warmup=warmup)
        self._writer.plan_pass(pass_id, key, zero_ns=zero_ns)
        self._writer.record_pass(pass_id, result, kernels)
        self._progress.after_pass(counts=not warmup)
        self.position = replace(self.position, next_pass=pass_id + 1, end_ns=zero_ns + result.t_end)
        return result

    def _recorded(self, session: Session, job: PassJob) -> tuple[PassResult, pa.Table | None]:
        if self._cupti is not None:
            return self._cupti.run_pass(session, job)
        return session.run_pass(job, record=self._request.recorder != "off"), None

    def _tell_losses(self) -> None:
        """Write down what CUPTI did not give."""
        if self._cupti is not None and (self._cupti.warnings or self._cupti.dropped.total()):
            manifest = self._writer.manifest
            self._writer.update_manifest(
                warnings=[*manifest.warnings, *self._cupti.warnings],
                dropped=dict(Counter(manifest.dropped) + self._cupti.dropped),
            )

    def _zero_ns(self, session: Session) -> int:
        """Where the next pass's zero lies on the capture's clock; virtual passes lie end to end."""
        if session.devices[0].kind == "sim":
            return self.position.end_ns
        return max(self.position.end_ns, time.perf_counter_ns() - self._started_ns)


def _with_load_time(extra: dict[str, Any], setup: PlacedArms, load_ns: int) -> dict[str, Any]:
    """`load_ns`: by placement suffix, how long reading, pinning and uploading the weights took (of the last boot)."""
    return {**extra, "load_ns": {**extra.get("load_ns", {}), setup.suffix: load_ns}}


def run_boots(writer: CaptureWriter, arguments: Sequence[str], n_boots: int) -> None:
    """Run `hprof run ARGUMENTS` `n_boots` times into the writer's capture, one process after the other.

    Raises what ended a process early; the capture then keeps the passes that were finished.
    """
    code = boot = 0
    while boot < n_boots and code == 0:
        code = _run_boot(writer, [*arguments, "--boot", str(boot)])
        boot += 1
    ended = CaptureWriter.attach(writer.path, prefix="", run_id=writer.manifest.run_id)
    if code == 0:
        ended.finish()
        return
    if ended.has_passes:
        ended.finish("interrupted")
    else:
        writer.abandon()
        ended = writer
    if code in (INTERRUPTED, TERMINATED):
        raise InterruptedRunError(ended, code)
    raise HprofError(f"process {boot} of --boots ended with exit code {code}; {kept_passes(ended)}.")


def _run_boot(writer: CaptureWriter, arguments: Sequence[str]) -> int:
    """The exit code of one process. A signal that ends this one is passed on to it."""
    own = ["--boot-path", writer.path, "--boot-run", writer.manifest.run_id]
    # -P keeps the current folder off the path, where a package of another project may be called `profiler`.
    command = [sys.executable, "-P", "-m", "hprof", "run", *arguments, *own]
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
    process = None
    try:
        with raised_afterwards():  # an interrupt inside Popen would leave a process that nobody ends
            process = subprocess.Popen(command, env=environment)
        return process.wait()
    except KeyboardInterrupt as interrupt:
        code = exit_code_of(interrupt)
        if process is None:
            return code
        process.send_signal(signal.SIGTERM if code == TERMINATED else signal.SIGINT)
        process.wait()
        return code
    finally:
        if process is not None and process.poll() is None:  # asked twice to end: what it wrote is whole
            process.kill()
            process.wait()


def attach_boot(path: str, boot: int, run_id: str) -> tuple[CaptureWriter, CapturePosition]:
    """The writer and the position with which process number `boot` goes on."""
    writer = CaptureWriter.attach(path, prefix=f"boot-{boot:03d}-", run_id=run_id)
    if not writer.is_in_place:
        return writer, CapturePosition(boot=boot)
    passes = Capture.open(path).table("passes", ["pass_id", "t_end"])
    if not passes.num_rows:
        return writer, CapturePosition(boot=boot)
    return writer, CapturePosition(pc.max(passes["pass_id"]).as_py() + 1, pc.max(passes["t_end"]).as_py(), boot)
