"""Writes captures for other programs: Chrome/Perfetto JSON, CSV, parquet, and a self-contained HTML report."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.export.output import holds_only_left_over, output_file
from profiler.export.tracks import chosen_passes
from profiler.storage.place import ELSEWHERE, REPLACING

Format = Literal["chrome", "csv", "parquet", "html"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
_ENDINGS: Final[dict[Format, str]] = {"chrome": ".trace.json", "csv": "-csv", "parquet": "-parquet", "html": ".html"}
_GZIP_LEVEL: Final = 4


def export(
    captures: Sequence[Capture],
    form: Format,
    out: Path | None = None,
    passes: str | None = None,
    *,
    force: bool = False,
) -> list[Path]:
    """Write `captures` (several only for chrome) as `form`; gives back the files written.

    out: a file, or for csv and parquet a folder (default: the capture's name with the format's ending, in the
    working folder; chrome packs where it ends in .gz). passes: "0,4-6" or "all"; by default the tables hold
    everything, and the timelines one typical pass of each arm. Raises HprofError where `out` is there and not `force`.
    """
    if len(captures) > 1 and form != "chrome":
        raise HprofError(f"--format {form} takes one capture; chrome lays several beside each other.")
    out = out or Path(captures[0].name + _ENDINGS[form])
    if out.name == "-":
        raise HprofError('-o "-" names no file, and reports are not written to the terminal; give a path.')
    if out.exists() and not force and not holds_only_left_over(out):
        raise HprofError(f"{out} is already there; choose another ({ELSEWHERE}), or replace it ({REPLACING}).")
    if out.exists() and any(_lies_in(out, capture) for capture in captures):
        raise HprofError(f"{out} is part of the capture that is exported; choose another ({ELSEWHERE}).")
    try:
        return _write(captures, form, out, passes)
    except OSError as error:
        why = error.strerror or error
        raise HprofError(f"{out} cannot be written: {why}; choose another ({ELSEWHERE}).") from error


def _lies_in(out: Path, capture: Capture) -> bool:
    folder = Path(capture.path).resolve()  # a URL gives a folder that no file lies in
    return out.resolve().is_relative_to(folder)


def _write(captures: Sequence[Capture], form: Format, out: Path, passes: str | None) -> list[Path]:
    if form in ("csv", "parquet"):
        from profiler.export.tables import write_csv, write_parquet

        wanted = None if passes is None else chosen_passes(captures[0], passes)
        return (write_csv if form == "csv" else write_parquet)(captures[0], wanted, out)
    chosen = [(capture, chosen_passes(capture, passes)) for capture in captures]
    if form == "chrome":
        from profiler.export.chrome import write_chrome

        with output_file(out) as file:
            if out.suffix == ".gz":
                with gzip.GzipFile(out.name, "wb", _GZIP_LEVEL, file) as packed:
                    write_chrome(chosen, packed)
            else:
                write_chrome(chosen, file)
    else:
        from profiler.export.html import render_html
        from profiler.export.tracks import tracks_of
        from profiler.report.build import build_report

        with output_file(out) as file:
            file.write(render_html(build_report(captures[0]), tracks_of(chosen)).encode("utf-8", "replace"))
    return [out]
