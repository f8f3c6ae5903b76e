"""The manifest of a capture: who measured what, on which machine, and what the source could not say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeGuard, cast, get_args

import orjson

from executor.errors import HprofError
from executor.policies.traits import ArmTraits, CopyTime
from executor.units import format_bytes
from profiler.plain_text import readable_inside
from profiler.schema import SCHEMA_VERSION

State = Literal["running", "complete", "interrupted"]

MANIFEST_NAME: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
FAULTS: Final = "faults"  # the key of `extra` that `Manifest.faults` reads
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class ManifestArm:
    """One copy policy under test: what was asked for, and what served it in the end."""

    name: str
    requested: str | None = None
    effective: str | None = None  # null where the source only records the request
    options: dict[str, Any] = field(default_factory=dict)  # flags or settings that set this arm apart
    notes: list[str] = field(default_factory=list)  # why effective differs from requested
    traits: ArmTraits | None = None  # of hprof's own arms; null for what other tools ran, whatever its name

    @property
    def is_resident(self) -> bool:
        """Whether it keeps everything on the device by design: the limit, and not what one chooses among."""
        return self.traits is not None and self.traits.is_resident

    @property
    def computes_on_host(self) -> bool:
        """Whether it computes weights on the host by design, which rounds differently."""
        return self.traits is not None and self.traits.computes_on_host

    @property
    def requested_options(self) -> Mapping[str, Any]:
        """What `hprof run` was asked to do, by option; empty for arms of other sources."""
        return _mapping(self.options.get("requested"))

    @property
    def effective_options(self) -> Mapping[str, Any]:
        """What it did: load mode, slots, bytes and layers by place; empty for arms of other sources."""
        return _mapping(self.options.get("effective"))

    @property
    def host_layers(self) -> tuple[int, ...] | None:
        """The layers with weights in host memory, ascending; None where the manifest does not say."""
        found = self.effective_options.get("host_layers")
        return tuple(sorted(layer for layer in found if is_count(layer))) if isinstance(found, list) else None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` holds. Keys that a file lacks take the defaults; unknown ones go to `extra`."""

    source: str = "hprof"  # or the tool whose trace was imported: "nsys", "kineto", "llama-bench", ...
    state: State = "running"
    schema: int = SCHEMA_VERSION
    hprof_version: str = ""
    created_utc: str = ""  # ISO 8601
    run_id: str = ""  # random: a writer that finds another one was replaced (--force), and stops
    argv: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)  # as profiler/facts.model_fields has it, of hprof's own runs
    placement: dict[str, Any] = field(default_factory=dict)
    arms: list[ManifestArm] = field(default_factory=list)  # the first is the baseline
    grid: dict[str, Any] = field(default_factory=dict)
    seeds: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)  # variables that change results
    link_h2d_gb_s: float | None = None  # measured ceiling of host to device copies
    warnings: list[str] = field(default_factory=list)
    cannot_say: list[str] = field(default_factory=list)  # what the source could not give
    dropped: dict[str, int] = field(default_factory=dict)  # reason -> rows left out
    gathered: bool = False  # the rows are in the `all-` parts, and in no others (profiler/storage/compact.py)
    parts: str = ""  # the mark of its parts' names; those with another mark are not its own (profiler/storage/parts.py)
    rows: dict[str, int] = field(default_factory=dict)  # table -> rows; a reader that finds fewer says so
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def has_own_clocks(self) -> bool:
        """Whether each pass has a clock of its own, as in hprof's captures; rows of imports all lie on one."""
        return self.source == "hprof"

    @property
    def has_process_per_arm(self) -> bool:
        """Whether arms ran in processes of their own: a boot, and no repetition, is then what verdicts count.

        So do llama-bench and commands, and so did several traces that were imported as an arm each.
        """
        files = self.extra.get("files")
        traces = files if isinstance(files, list) and len(files) > 1 else []
        has_boots = self.source in ("llama-bench", "command")
        return has_boots or any(isinstance(trace, dict) and trace.get("arm") for trace in traces)

    @property
    def is_own_run(self) -> bool:
        """Whether `hprof run` measured it with hprof's own engine, so that its words say what ran."""
        return self.source == "hprof" and is_run(self.argv)

    @property
    def configurations(self) -> list[Mapping[str, Any]]:
        """The placements that `hprof run` measured, one after the other; empty for other sources."""
        found = self.placement.get("configurations")
        return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []

    @property
    def recorded_by(self) -> str | None:
        """What of hprof's own recorded it: `hprof record`, `hprof.record`, `hprof.ab`, `hprof run --record`."""
        said = self.extra.get("recorded_by")
        return said if isinstance(said, str) and said else None

    @property
    def faults(self) -> list[str]:
        """Those of `warnings` without which no figure of it is to be read, so that they are told first."""
        found = self.extra.get(FAULTS)
        return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []

    @property
    def is_untimed(self) -> bool:
        """Whether it is a recording beside runs that were timed: recording cost time, so its own are not judged."""
        return self.extra.get("untimed") is True

    @property
    def has_unrecorded_copies(self) -> bool:
        """Whether a source's host copied, as its calls say, and no copy is among its rows: none is not 0 there."""
        return self._says("unrecorded_copies") or self.has_unrecorded_devices

    @property
    def has_unrecorded_devices(self) -> bool:
        """Whether the source saw the host alone: what devices did is then unknown, and no figure of theirs is 0."""
        return self._says("unrecorded_devices")

    @property
    def has_device_steps(self) -> bool:
        """Whether torch.profiler's steps were cut by when each process's device worked; older imports went by the
        host, and their passes may hold other steps' work."""
        return self._says("steps_are_cut_on_device")

    def _says(self, key: str) -> bool:
        """Whether `extra` has this key, for the whole capture or for one of its files."""
        files = self.extra.get("files")
        sources = [self.extra, *(files if isinstance(files, list) else [])]
        return any(isinstance(source, dict) and bool(source.get(key)) for source in sources)

    def with_changes(self, **changes: Any) -> Manifest:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def to_json(self) -> bytes:
        """Indented UTF-8 JSON."""
        option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
        try:
            return orjson.dumps(asdict(self), option=option)
        except TypeError:  # a name that is no UTF-8, such as a file's in `argv`
            return orjson.dumps(readable_inside(asdict(self)), option=option)

    @classmethod
    def from_json(cls, data: bytes, origin: str = MANIFEST_NAME) -> Manifest:
        """Parse and check; `origin` names the file in errors. Raises HprofError for anything unusable."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise HprofError(f"{origin} is larger than {format_bytes(MAX_MANIFEST_BYTES)}; it is no hprof manifest.")
        try:
            raw = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise HprofError(f"{origin} is not valid JSON ({error}); restore it or capture again.") from error
        if not isinstance(raw, dict):
            raise HprofError(f"{origin} does not hold a JSON object; it is no hprof manifest.")
        _check_depth(raw, origin)
        _check_version(raw, origin)
        return cls(**_known_fields(raw, origin))


def is_manifest(data: bytes) -> bool:
    """Whether `data` is a manifest of hprof's, of any version; many programs call a file of theirs manifest.json."""
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(raw, dict) and {"schema", "source", "state", "argv"} <= raw.keys()


def _check_depth(raw: Mapping[str, object], origin: str) -> None:
    """Copying, printing and comparing values call themselves at each level, and Python's stack ends at a thousand."""
    level: list[Any] = [raw]
    for _ in range(_MAX_DEPTH):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise HprofError(f"{origin} is nested more than {_MAX_DEPTH} levels deep; it is no hprof manifest.")


def _check_version(raw: Mapping[str, object], origin: str) -> None:
    version = raw.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise HprofError(f"{origin} names no trace schema version; it is no hprof manifest.")
    if version > SCHEMA_VERSION:
        raise HprofError(
            f"{origin} has trace schema {version} and this hprof reads up to {SCHEMA_VERSION}; upgrade hprof."
        )


def _known_fields(raw: Mapping[str, object], origin: str) -> dict[str, Any]:
    defaults = Manifest()
    known = {f.name for f in fields(Manifest)}
    values = {name: _checked(name, raw[name], getattr(defaults, name), origin) for name in known & raw.keys()}
    arms = [_arm(item, origin) for item in values.get("arms", [])]
    is_own = values.get("source", defaults.source) == "hprof"
    values["arms"] = [_with_known_traits(arm) if is_own and arm.traits is None else arm for arm in arms]
    unknown = {name: value for name, value in raw.items() if name not in known}
    return values | {"extra": values.get("extra", {}) | unknown}


_SOURCE: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
_TEXT_LISTS: Final = ("argv", "warnings", "cannot_say")
_COUNTS: Final = ("dropped", "rows")
_FASTEST_GB_S: Final = 1e6  # no link comes near; beyond it what is worked out from it leaves 64 bits
_MOST_ROWS: Final = 2**53  # JSON's whole numbers
_MARK: Final = re.compile(r"(new-[0-9a-f]{8}-)?")


def _checked(name: str, value: Any, default: Any, origin: str) -> Any:
    expected = (int, float, type(None)) if name == "link_h2d_gb_s" else type(default)
    fits = isinstance(value, expected) and isinstance(value, bool) == isinstance(default, bool)
    if name == "state":
        fits = value in get_args(State)
    elif name == "source":
        fits = fits and _SOURCE.fullmatch(value) is not None
    elif name in _TEXT_LISTS:
        fits = fits and all(isinstance(item, str) for item in value)
    elif name in _COUNTS:
        fits = fits and all(
            is_number(count) and isinstance(count, int) and count <= _MOST_ROWS for count in value.values()
        )
    elif name == "link_h2d_gb_s":
        fits = value is None or (is_number(value) and value <= _FASTEST_GB_S)
    elif name == "parts":
        fits = fits and _MARK.fullmatch(value) is not None
    if not fits:
        raise HprofError(f"{origin}: the key '{name}' holds {str(value)[:60]!r}, which hprof cannot use there.")
    return value


def is_run(argv: Sequence[str]) -> bool:
    """Whether these are the words of a `hprof run`."""
    return list(argv[:2]) == ["hprof", "run"]


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that is not negative; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number that is not negative; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _arm(item: object, origin: str) -> ManifestArm:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise HprofError(f"{origin}: the key 'arms' holds an entry without a name.")
    texts = {key: item[key] if isinstance(item.get(key), str) else None for key in ("requested", "effective")}
    options = item.get("options")
    notes = item.get("notes")
    return ManifestArm(
        name=item["name"],
        options=cast("dict[str, Any]", options) if isinstance(options, dict) else {},
        notes=[str(note) for note in notes] if isinstance(notes, list) else [],
        traits=_traits(item.get("traits")),
        **texts,
    )


def _traits(stored: object) -> ArmTraits | None:
    """What a manifest says of an arm; None where it says nothing, or what no `ArmTraits` holds."""
    if not isinstance(stored, dict) or stored.get("copies") not in get_args(CopyTime):
        return None
    found = {one.name: stored.get(one.name, one.default) for one in fields(ArmTraits)}
    values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in found.items()}
    return ArmTraits(**values) if all(_is_trait(name, value) for name, value in values.items()) else None


def _is_trait(name: str, value: object) -> bool:
    if name in ("reads", "held_against"):
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if name in ("meaning", "subject", "copies"):
        return isinstance(value, str)
    return value is None or isinstance(value, str) if name == "same_without_experts" else isinstance(value, bool)


def _with_known_traits(arm: ManifestArm) -> ManifestArm:
    """For captures from before manifests said it: what this hprof knows of the policy that was asked for."""
    from executor.policies import find_traits

    return replace(arm, traits=find_traits(arm.requested or arm.name.partition("@")[0]))
