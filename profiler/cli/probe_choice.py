"""Which probe `hprof predict` and `hprof advise` answer by: the one that is named, or this machine's where it holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from executor.errors import HprofError
from profiler.cli.asked import AskedOptions
from profiler.cli.machine_options import MACHINE_FLAGS, knows_device

if TYPE_CHECKING:
    from profiler.predicting.probe import Probe
    from profiler.predicting.probed import ProbedCosts


@dataclass(frozen=True, slots=True)
class ProbeChoice:
    """`notes` must be said first, whether there is a probe or not."""

    probe: Probe | None
    notes: tuple[str, ...] = ()

    def in_its_dtype(self, asked: AskedOptions) -> AskedOptions:
        """The options, with activations as they were when it was probed. Raises HprofError for another --dtype."""
        if self.probe is None:
            return asked
        if "dtype" in asked.typed and asked.dtype not in ("auto", self.probe.dtype):
            raise HprofError(f"the probe was made in {self.probe.dtype}: leave out --dtype {asked.dtype}.")
        return asked.but(dtype=self.probe.dtype)


def costs_of(probe: Probe, link_gb_s: float | None) -> ProbedCosts:
    """What the probe says steps and copies cost, over another link where one is given."""
    return probe.costs if link_gb_s is None else probe.costs.with_link(link_gb_s)


def choose_probe(kind: str | None, asked: AskedOptions) -> ProbeChoice:
    """The probe for a device of `kind` (None: nobody said which). One that is named is used wherever it was made.

    Raises HprofError for a file that holds no probe, for one of another device, and beside rates of the device.
    """
    from executor.devices.factory import default_kind
    from profiler.predicting.probe import changes, probe_path, read_probe, this_machine

    rates = (MACHINE_FLAGS.keys() - {"device_memory"}) & asked.typed
    if asked.probe is not None:
        if rates:
            raise HprofError("--gpu and rates are not for --probe, which says how fast steps are: leave out either.")
        probe = read_probe(Path(asked.probe))
        measured = str(probe.machine.get("device"))
        if kind not in (None, "sim", measured):
            raise HprofError(f"{asked.probe} probed a {measured} device and --device is {kind}: probe that one.")
        changed = changes(probe, this_machine(measured, asked.threads))
        told = [f"This machine is not what {asked.probe} probed: {'; '.join(changed)}."] if changed else []
        return ProbeChoice(probe, (*told, *_said(probe)))
    if kind == "sim" or knows_device(kind or "sim", asked) or rates:
        return ProbeChoice(None)
    device = kind or default_kind()
    path = probe_path(device)
    if not path.exists():
        return ProbeChoice(None)
    probe = read_probe(path)
    changed = changes(probe, this_machine(device, asked.threads))
    if changed:
        again = f"run `hprof probe --device {device}` again, or name it with --probe"
        return ProbeChoice(None, (f"The probe {path} is not used, since {'; '.join(changed)}: {again}.",))
    is_guessed = kind is None and device == "cpu"
    meant = ["That is this machine's CPU: --gpu and --link ask about a card that is not here."] if is_guessed else []
    return ProbeChoice(probe, (*_said(probe), *meant))


def _said(probe: Probe) -> list[str]:
    machine = probe.machine
    cpu, device = (str(machine.get(name))[:80] for name in ("cpu", "device"))
    told = [f"By the probe of {probe.created[:40]}: {cpu}, device {device}, {probe.dtype}."]
    return [*told, *([probe.crowding()] if probe.is_crowded else [])]
