"""A `.nsys-rep` is NVIDIA's own format: nsys itself exports it to SQLite before anything is read."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from executor.errors import HprofError

_TIMEOUT_S: Final = 3600


@contextmanager
def exported(report: Path) -> Iterator[Path]:
    """A SQLite export of `report` for as long as the context lasts.

    Raises HprofError with the command to type where nsys is not on PATH, and with nsys's own words if it fails.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        target = report.with_suffix(".sqlite")
        raise HprofError(
            f"{report} needs Nsight Systems to be read and nsys is not on PATH; where it is installed, run "
            f"`nsys export --type sqlite --output {target.name} {report.name}` and import {target.name}."
        )
    with tempfile.TemporaryDirectory(prefix="hprof-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        _export(nsys, report.absolute(), target)
        yield target


def _export(nsys: str, report: Path, target: Path) -> None:
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target), str(report)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HprofError(f"{report}: `nsys export` did not finish ({error}); run it by hand.") from error
    if done.returncode != 0 or not target.exists():
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise HprofError(f"{report}: `nsys export` failed ({said[:300]}); use the nsys that wrote the report.")
