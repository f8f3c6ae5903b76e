"""`hprof probe`: measures this machine once and keeps what it found, for `hprof predict` and `hprof advise`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from executor.errors import HprofError
from profiler.cli.options import json_option, threads_option
from profiler.cli.printing import console, say

if TYPE_CHECKING:
    from profiler.predicting.probe import Measure, Probe
    from profiler.report.blocks import Block


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda where there is one]")
@threads_option
@click.option("--quants", metavar="TYPE,…", default="Q4_K,Q8_0", help="Measure weights stored in these quant types.")
@click.option("-o", "--output", metavar="FILE", help="Keep it here.  [default: hprof's folder in the user's cache]")
@click.option("--show", is_flag=True, help="Show the probe that is there, and measure nothing.")
@json_option
def command(
    device: str | None, threads: int | None, quants: str, output: str | None, show: bool, as_json: bool
) -> None:
    """Measure this machine once: what each kind of step takes, by its work, and what copies take.

    \b
    hprof probe
    hprof probe --device cpu --quants Q4_K,Q6_K -o laptop.json
    hprof probe --show

    It runs passes of small synthetic models, fits what their steps took, and says how far off that is for models that
    it did not fit. `hprof predict` and `hprof advise` answer by it, until the GPU, its driver or power limit, the CPU,
    its threads, torch or hprof have changed.
    """
    from executor.devices.factory import default_kind
    from profiler.predicting.probe import probe_path, read_probe

    kind = device or default_kind()
    path = probe_path(kind) if output is None else Path(output)
    found = read_probe(path) if show else _measure(kind, threads, quants, path)
    if as_json:
        from profiler.plain_text import json_text

        say(json_text(found.to_json()))
        return
    from profiler.report.terminal import drawn_block

    out = console()
    for block in _blocks(found, path, with_rates=show):
        for part in drawn_block(block):
            out.print(part)


def _measure(kind: str, threads: int | None, quants: str, path: Path) -> Probe:
    from executor.devices.factory import DeviceOptions, check_present
    from executor.quants import quant_type
    from profiler.running.progress import make_progress
    from profiler.running.termination import TERMINATED, exit_code_of, terminable

    options = DeviceOptions("cuda" if kind == "cuda" else "cpu", n_threads=threads)
    check_present(options)
    names = tuple(dict.fromkeys(quant_type(name.strip()).name for name in quants.split(",")))
    if path.is_dir():
        raise HprofError(f"{path} is a folder: give -o the name of a file.")
    from profiler.predicting.probe import write_probe
    from profiler.probing import probe
    from profiler.running.runner import InterruptedRunError

    try:
        with terminable():
            found = probe(options, names, make_progress())
    except (
        InterruptedRunError,
        KeyboardInterrupt,
    ) as ended:  # a run says what its capture keeps: here it keeps nothing
        code = ended.exit_code if isinstance(ended, InterruptedRunError) else exit_code_of(ended)
        word = "terminated" if code == TERMINATED else "interrupted"
        raise HprofError(f"{word} before all was measured, so that nothing was written.", exit_code=code) from None
    write_probe(found, path)
    return found


def _blocks(probe: Probe, path: Path, *, with_rates: bool) -> Iterator[Block]:
    """What it rests on; with its rates, all that was measured: by itself, and for each kind of step."""
    from executor.units import UNKNOWN, format_gb_s, format_ns, format_rate, format_share
    from profiler.predicting.probe import changes, this_machine
    from profiler.predicting.probed import ANY_QUANT
    from profiler.report.blocks import Lines, Table

    machine, costs = probe.machine, probe.costs
    lines = [
        f"probed {probe.created} in {probe.seconds:.0f} s: {machine.get('cpu')}, device {machine.get('device')}, "
        f"{probe.dtype}; kept in {path}",
        _off_by(probe),
        "link: "
        + ", ".join(f"{format_gb_s(1 / ns)} {way}" for way, ns in costs.ns_per_byte.items() if ns > 0)
        + f", {format_ns(costs.per_copy_ns)} a copy besides",
    ]
    if with_rates and probe.stages:
        lines.append("time went to " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in probe.stages.items()))
    lines += [probe.crowding()] if probe.is_crowded else []
    threads = machine.get("threads")
    changed = changes(probe, this_machine(str(machine.get("device")), threads if isinstance(threads, int) else None))
    lines += [f"This machine is not what was probed: {'; '.join(changed)}."] if changed else []
    lines += [] if with_rates else ["hprof probe --show tells each rate."]
    yield Lines("fact", lines)
    if not with_rates:
        return
    if probe.measured:
        measured = [[one.what, one.at, *_figures(one)] for one in probe.measured]
        columns = ["what", "at", "median", "lowest", "highest"]
        yield Table("rates and costs by themselves", columns, measured)
    rows = []
    for group, fit in costs.groups.items():
        once, _, byte, flop, _ = fit.coefficients
        if group.quant != ANY_QUANT:
            rates = (format_rate(1 / rate) if rate > 0 else UNKNOWN for rate in (byte, flop))
            named = [f"{group.name} on {group.where}", group.quant, group.phase, group.setting]
            rows.append([*named, format_ns(once), *rates, f"± {format_share(fit.misses)}", str(fit.n)])
    columns = ["step", "quant", "phase", "beside", "once", "GB/s", "Gflop/s", "off by", "n"]
    yield Table("what steps take: so much once, and at these rates", columns, rows)


def _off_by(probe: Probe) -> str:
    """How far off it is, and by what that is known."""
    from executor.units import format_share

    found = [f"{name} ± {format_share(value)}" for name, value in probe.spread.items() if value is not None]
    if probe.checked_on:
        return f"off by, in models that were not fitted: {', '.join(found) or 'not told, as nothing of them was timed'}"
    why = f"after {probe.seconds:.0f} s no time was left to run one more"
    again = "`hprof probe` is faster once its kernels are compiled, and on a quiet machine"
    if not found:
        return f"nothing says how far off it is: {why}; {again}."
    return f"off by, in each model told by the others alone: {', '.join(found)} ({why}; {again})"


def _figures(one: Measure) -> tuple[str, str, str]:
    from executor.units import format_rate

    return f"{format_rate(one.median)} {one.unit}", format_rate(one.low), format_rate(one.high)
