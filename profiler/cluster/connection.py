"""A Dask cluster that somebody else started: connecting to it, sending it work, and saying plainly what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from distributed import Client, Future, KilledWorker

from executor.errors import HprofError

GPU: Final = "GPU"  # the resource that a worker with a GPU is started with: `dask worker --resources GPU=1`
_CONNECT_S: Final = 10
_LOOK_S: Final = 10  # how often a wait looks whether there is still a worker


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
    """What the calls gave, in their order; `jobs` names them in errors.

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
            f"--dask {address[:200]}: no scheduler answers there ({_first_line(error)}); "
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
                raise HprofError(f"{job} failed on its worker: {_first_line(error)}.") from error
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
            raise HprofError(f"{job} failed on its worker ({_first_line(error)}); {advice}.") from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0][:200].rstrip('.')}"
