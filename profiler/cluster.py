"""`--dask ADDRESS`: the workers of a Dask cluster measure the cells of a sweep, or judge many captures.

Each worker writes the capture of its cell beside the run's; finished ones are laid into the run's capture one after
the other, with the pass ids and on the clock that one process would have given them. hprof starts no cluster: errors
say what is missing there. Dask comes with the extra `hprof[cluster]`; importing this module without it raises
HprofError.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

import fsspec
import pyarrow as pa
import pyarrow.compute as pc

from executor.errors import HprofError, first_line
from executor.policies import arm_traits
from profiler.capture import Capture
from profiler.manifest import Manifest
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, RunRequest, distinct_cells
from profiler.report.build import judge
from profiler.report.report import Report
from profiler.running.progress import NoProgress, RunProgress
from profiler.running.run_manifest import initial_fields
from profiler.running.runner import CapturePosition, run_capture, told_when_interrupted
from profiler.schema import TABLES
from profiler.storage.writer import CaptureWriter, new_capture

try:
    from distributed import Client, Future, KilledWorker
except ModuleNotFoundError as error:
    raise HprofError(
        f"--dask needs Dask, and there is no module {error.name} here; pip install 'hprof[cluster]' brings it."
    ) from error

GPU: Final = "GPU"  # the resource that a worker with a GPU is started with: `dask worker --resources GPU=1`
_CONNECT_S: Final = 10
_LOOK_S: Final = 10  # how often a wait looks whether there is still a worker
_TIMES: Final = ("t_start", "t_end")
_IDS: Final = ("pass_id", "order")
_ONE_AT_A_TIME: Final = Lock()  # a worker with several threads must not measure two cells beside each other


@dataclass(frozen=True, slots=True)
class DescribedRequest:
    """What a worker says about a request before anything is run."""

    model: str
    fields: dict[str, Any]


def describe(address: str, request: RunRequest, argv: list[str]) -> DescribedRequest:
    """Have a worker check the request: the model and the device are there, and maybe not here. Raises HprofError."""
    needs_gpu = request.device.kind == "cuda"
    with connected(address, needs_gpu=needs_gpu) as client:
        future = submit(client, _describe, request, argv, needs_gpu=needs_gpu)
        [described] = results(client, [future], ["the plan"])
    found: DescribedRequest = described
    return found


def run_distributed(
    address: str, request: RunRequest, writer: CaptureWriter, progress: RunProgress | None = None
) -> None:
    """Measure each cell on a worker, into `writer`'s capture; the caller finishes it.

    A cell whose worker dies is measured again by another one. Raises HprofError and InterruptedRunError; the capture
    then keeps the cells that were laid into it.
    """
    progress = progress or NoProgress()
    try:
        with told_when_interrupted(writer):
            _run(address, request, writer, progress)
    finally:
        progress.stop()


def judge_all(address: str, captures: Sequence[str], noise: float) -> Iterator[Report | HprofError]:
    """The report of each capture, made by the workers; the error of one that cannot be read."""
    with connected(address) as client:
        futures = [submit(client, judge, absolute(capture), noise) for capture in captures]
        yield from results(client, futures, list(captures))


def _describe(request: RunRequest, argv: list[str]) -> DescribedRequest:
    plan = plan_run(request)
    return DescribedRequest(plan.model.shape.name, initial_fields(plan, argv))


def _run(address: str, request: RunRequest, writer: CaptureWriter, progress: RunProgress) -> None:
    needs_gpu = request.device.kind == "cuda"
    cells = distinct_cells(request.cells)
    folder = f"{writer.path}.cells-{uuid.uuid4().hex[:8]}"
    with connected(address, needs_gpu=needs_gpu) as client:
        futures = [submit(client, measure_cell, request, cell, folder, needs_gpu=needs_gpu) for cell in cells]
        names = [f"the cell {_spelled(cell)}" for cell in cells]
        if warning := learning_warning(request):
            writer.update_manifest(warnings=[*writer.manifest.warnings, warning])
        progress.start(len(futures))
        progress.before_pass("cells")
        position = CapturePosition()
        try:
            for path, cell in zip(results(client, futures, names), cells, strict=True):
                position = _lay(writer, _opened(path, cell), position)
                _remove(path)
                progress.after_pass(counts=True)
        except BaseException:
            _remove_empty(folder)
            raise
    _remove(folder)


def measure_cell(request: RunRequest, cell: GridPoint, folder: str) -> str:
    """Run one cell of a request into a capture of its own inside `folder`; return its address. Called on a worker."""
    with _ONE_AT_A_TIME:
        plan = plan_run(request)  # of all cells: buffers are reserved for the largest ubatch of the whole sweep
        one = replace(plan, request=replace(request, cells=(cell,)))
        # Each attempt has a folder of its own: a worker that was given up may still be writing.
        path = f"{folder}/{uuid.uuid4().hex[:8]}"
        try:
            writer = new_capture(path, source="hprof", **initial_fields(one, []))
            run_capture(one, writer)
            writer.update_manifest(state="complete")  # not gathered: it is about to be read once, pass by pass
        except BaseException:
            _remove(path)  # nobody is told of it
            _remove_empty(folder)
            raise
        return path


def learning_warning(request: RunRequest) -> str | None:
    """What differs from a run in one process, in which an arm keeps what it learned from cell to cell."""
    arms = [arm for arm in request.arms if arm_traits(arm).learns]
    if not arms or len(request.cells) < 2:
        return None
    return (
        f"{', '.join(arms)}: what an arm learns is learned in each cell anew, as cells went to workers; "
        "in one process it is carried over from cell to cell."
    )


def _opened(path: str, cell: GridPoint) -> Capture:
    try:
        return Capture.open(path)
    except HprofError as error:
        raise HprofError(
            f"the worker wrote the cell {_spelled(cell)} to {path}, which cannot be read here; "
            "choose an -o that all machines share, a folder or an fsspec URL."
        ) from error


def _lay(writer: CaptureWriter, cell: Capture, position: CapturePosition) -> CapturePosition:
    """Add a cell's passes to the capture, after those that it holds; `passes` last, as readers trust it."""
    for name in (*(name for name in TABLES if name != "passes"), "passes"):
        for table in cell.tables(name):
            if table.num_rows:
                pass_id = table["pass_id"][0].as_py() + position.next_pass
                writer.write_part(name, _moved(table, position), f"pass-{pass_id:06d}")
    writer.update_manifest(**_joined(writer.manifest, cell.manifest))
    passes = cell.table("passes", ["pass_id", "t_end"])
    return CapturePosition(
        position.next_pass + pc.max(passes["pass_id"]).as_py() + 1, position.end_ns + pc.max(passes["t_end"]).as_py()
    )


def _moved(table: pa.Table, position: CapturePosition) -> pa.Table:
    by = dict.fromkeys(_TIMES, pa.scalar(position.end_ns, pa.int64()))
    by |= dict.fromkeys(_IDS, pa.scalar(position.next_pass, pa.int32()))
    for index, field in enumerate(table.schema):
        if field.name in by:
            table = table.set_column(index, field, pc.add_checked(table[field.name], by[field.name]))
    return table


def _joined(run: Manifest, cell: Manifest) -> dict[str, Any]:
    machines = [*run.extra.get("machines", []), cell.machine]
    warnings = [*run.warnings, *cell.warnings]
    if any(_kind(machine) != _kind(machines[0]) for machine in machines):
        warnings.append("The cells ran on different machines: compare arms inside a cell, not one cell with another.")
    return {
        "machine": machines[0],
        "arms": list(({arm.name: arm for arm in run.arms} | {arm.name: arm for arm in cell.arms}).values()),
        "warnings": list(dict.fromkeys(warnings)),
        "dropped": dict(Counter(run.dropped) + Counter(cell.dropped)),
        "link_h2d_gb_s": cell.link_h2d_gb_s if run.link_h2d_gb_s is None else run.link_h2d_gb_s,
        "extra": {**run.extra, "machines": machines},
    }


def _kind(machine: dict[str, Any]) -> tuple[Any, Any]:
    gpus = machine.get("gpus") or []
    return machine.get("cpu"), [gpu.get("name") for gpu in gpus]


def _spelled(cell: GridPoint) -> str:
    return f"-p {cell.n_prompt} -n {cell.n_gen} -ub {cell.n_ubatch} -d {cell.n_depth}"


def _remove(folder: str) -> None:
    """Remove captures of cells that are in the run's now, or failed; what cannot be removed does no harm."""
    files, path = fsspec.core.url_to_fs(folder)
    with suppress(OSError):
        files.rm(path, recursive=True)


def _remove_empty(folder: str) -> None:
    """Remove the folder unless cells are in it that are being measured, or were and are not in the run's."""
    files, path = fsspec.core.url_to_fs(folder)
    with suppress(OSError):
        files.rmdir(path)  # an OSError where it is not empty


@contextmanager
def connected(address: str, *, needs_gpu: bool = False) -> Iterator[Client]:
    """A client of the scheduler at `address`. Raises HprofError where nobody answers or no worker fits."""
    client = _connect(address)
    try:
        _check_workers(client, address, needs_gpu=needs_gpu)
        yield client
    finally:
        client.close()


def submit(client: Client, function: Callable[..., Any], *arguments: Any, needs_gpu: bool = False) -> Future:
    """Have a worker call `function`, which it imports by its name. A worker that dies hands the call to another one."""
    resources = {GPU: 1} if needs_gpu else None
    return client.submit(function, *arguments, resources=resources, pure=False)


def results(client: Client, futures: Sequence[Future], jobs: Sequence[str]) -> Iterator[Any]:
    """Yield what the calls returned, in their order; `jobs` names them in errors.

    The first error cancels what has not begun. Raises HprofError, a call's own or one that says what became of it.
    """
    try:
        for future, job in zip(futures, jobs, strict=True):
            yield _result(client, future, job)
    finally:
        client.cancel([future for future in futures if not future.done()])


def absolute(path: str) -> str:
    """A local path as all machines that share the folder see it; URLs stay as they are."""
    return path if "://" in path else str(Path(path).absolute())


def _connect(address: str) -> Client:
    if not address.strip():
        raise HprofError("--dask names no scheduler: give its address, for example --dask tcp://host:8786.")
    try:
        return Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise HprofError(
            f"--dask {address[:200]}: no scheduler answers there ({_told(error)}); "
            "start one with `dask scheduler`, and workers with `dask worker ADDRESS`."
        ) from error


def _check_workers(client: Client, address: str, *, needs_gpu: bool) -> None:
    found: list[dict[str, float]] = client.run_on_scheduler(_resources)
    if not found:
        raise HprofError(f"--dask {address}: the scheduler has no worker; start some with `dask worker {address}`.")
    if needs_gpu and not any(resources.get(GPU, 0) >= 1 for resources in found):
        raise HprofError(
            f"--dask {address}: no worker has the resource {GPU}; "
            f'start those with a GPU as `dask worker {address} --nthreads 1 --resources "{GPU}=1"`.'
        )


def _resources(dask_scheduler: Any) -> list[dict[str, float]]:
    """Of each worker; runs in the scheduler."""
    return [dict(worker.resources) for worker in dask_scheduler.workers.values()]


def _result(client: Client, future: Future, job: str) -> Any:
    while True:
        try:
            return future.result(timeout=_LOOK_S)
        except TimeoutError as error:
            if future.done():
                raise HprofError(f"{job} failed on its worker: {_told(error)}.") from error
            if not client.nthreads():
                raise HprofError(f"{job} waits, and the last worker has gone; start workers and repeat.") from error
        except KilledWorker as error:
            raise HprofError(
                f"{job} ended several workers, one after the other; look for memory in their logs."
            ) from error
        except HprofError:
            raise
        except Exception as error:
            # Whatever went wrong went wrong in another process; a ModuleNotFoundError is the usual one.
            advice = "workers need this version of hprof, and a view of the same files"
            raise HprofError(f"{job} failed on its worker ({_told(error)}); {advice}.") from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
