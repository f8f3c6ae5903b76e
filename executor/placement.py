"""Which weight lives where: llama.cpp's `-ot`, `-ncmoe` and `-ngl`, turned into a set of host tensors.

Only matrices move: norms, biases, routers and the token embedding stay resident, as every ubatch reads them
and their bytes do not matter (the embedding is read a row a token).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from executor.errors import HprofError
from executor.model import TensorInfo
from executor.patience import time_limit

DEFAULT_OVERRIDE = "ffn_(gate|up|down).*=CPU"
_HOST_BUFFERS = ("CPU", "HOST")
_MAX_PATTERN: Final = 4096  # characters; a pattern that lists every layer has some hundreds
_PATTERN_S: Final = 2.0  # for all names together: nested repetitions could take years


@dataclass(frozen=True, slots=True)
class Placement:
    """The names of the tensors in host memory; everything else is resident."""

    host: frozenset[str]
    spelled: str  # the options that gave it, for the manifest

    def is_host(self, name: str) -> bool:
        return name in self.host

    def host_layers(self) -> list[int]:
        """Layers with at least one host tensor."""
        return sorted({int(name.split(".")[1]) for name in self.host if name.startswith("blk.")})


@dataclass(frozen=True, slots=True)
class Override:
    """One `REGEX=BUFFER` of `-ot`; the first that matches a tensor's name decides."""

    pattern: re.Pattern[str]
    host: bool

    def matches(self, names: Iterable[str]) -> list[str]:
        """The names that the pattern is found in. Raises HprofError where that takes too long."""
        try:
            with time_limit(_PATTERN_S):
                return [name for name in names if self.pattern.search(name)]
        except TimeoutError:
            raise HprofError(
                f"-ot '{_short(self.pattern.pattern)}' takes longer than {_PATTERN_S:g} s to match the model's "
                "names: write it without a repetition inside a repetition, as (a+)+"
            ) from None


def split_configurations(text: str) -> list[str]:
    """Cut llama-bench's `-ot` value: `,` separates configurations, `;` the overrides inside one."""
    return [part.strip() for part in text.split(",")]


def parse_overrides(text: str) -> list[Override]:
    """Parse `REGEX=BUFFER;REGEX=BUFFER`; an empty text means no override."""
    return [_parse_override(part.strip()) for part in text.split(";") if part.strip()]


def _parse_override(text: str) -> Override:
    pattern, equals, buffer = text.rpartition("=")
    if not equals or not pattern:
        raise HprofError(
            f"-ot '{text}' has no '=': write REGEX=CPU, for example '{DEFAULT_OVERRIDE}' "
            "(',' separates configurations and cannot be part of one)"
        )
    if not re.fullmatch(r"CPU|HOST|GPU\d*|CUDA\d+", buffer.upper()):
        raise HprofError(f"-ot '{text}' names the buffer '{buffer}': use CPU for host memory, or GPU")
    if len(pattern) > _MAX_PATTERN:
        raise HprofError(f"-ot '{_short(pattern)}' has {len(pattern):,} characters: give {_MAX_PATTERN:,} at most")
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise HprofError(f"-ot '{_short(pattern)}' is not a regular expression ({error}): check its brackets") from None
    return Override(compiled, buffer.upper() in _HOST_BUFFERS)


def is_movable(tensor: TensorInfo) -> bool:
    """Whether a tensor obeys placement: a matrix or expert stack of a block, and not its router."""
    matrix = len(tensor.shape) >= 2 and tensor.name.endswith(".weight")
    return matrix and tensor.layer is not None and "ffn_gate_inp" not in tensor.name and "conv1d" not in tensor.name


def place(
    tensors: Mapping[str, TensorInfo],
    *,
    overrides: str | None = None,
    n_cpu_moe: int = 0,
    n_gpu_layers: int | None = None,
) -> Placement:
    """Decide which tensors live in host memory.

    `overrides` is one `-ot` configuration; None with neither of the others given means `DEFAULT_OVERRIDE`.
    `n_cpu_moe` keeps the experts of the first N layers in host memory; `n_gpu_layers` keeps only the last N
    layers resident. Raises HprofError when a pattern matches no movable tensor.
    """
    if overrides is None and not n_cpu_moe and n_gpu_layers is None:
        overrides = DEFAULT_OVERRIDE
    movable = [t for t in tensors.values() if is_movable(t)]
    host = _overridden(tensors, movable, parse_overrides(overrides or ""))
    host |= {t.name for t in movable if "_exps" in t.name and (t.layer or 0) < n_cpu_moe}
    if n_gpu_layers is not None and n_gpu_layers >= 0:
        first_resident = 1 + max((t.layer or 0 for t in movable), default=-1) - n_gpu_layers
        host |= {t.name for t in movable if (t.layer or 0) < first_resident}
    return Placement(frozenset(host), _spell(overrides, n_cpu_moe, n_gpu_layers))


def _overridden(tensors: Iterable[str], movable: list[TensorInfo], overrides: list[Override]) -> set[str]:
    """The first override that matches a name decides."""
    names = [t.name for t in movable]
    is_host: dict[str, bool] = {}
    for override in overrides:
        matched = override.matches(names)
        if not matched:
            raise _no_match(override, tensors, names)
        for name in matched:
            is_host.setdefault(name, override.host)
    return {name for name, host in is_host.items() if host}


def _no_match(override: Override, tensors: Iterable[str], movable: list[str]) -> HprofError:
    spelled = _short(override.pattern.pattern)
    fixed = override.matches(tensors)
    if fixed:
        return HprofError(
            f"-ot '{spelled}' matches {fixed[0]} and no weight that can move: norms, biases, routers, the "
            "embedding and the output stay resident"
        )
    near = ", ".join(_near(spelled, movable))
    return HprofError(f"-ot '{spelled}' matches no weight of the model; near ones are {near}")


def _short(pattern: str) -> str:
    return pattern if len(pattern) <= 200 else f"{pattern[:200]}…"


def _near(pattern: str, names: Iterable[str]) -> list[str]:
    kinds = sorted({name.split(".", 2)[2] for name in names})
    literal = re.sub(r"[^a-z_]+", "_", pattern.lower()).strip("_")
    return difflib.get_close_matches(literal, kinds, n=3, cutoff=0.0)


def _spell(overrides: str | None, n_cpu_moe: int, n_gpu_layers: int | None) -> str:
    spelled = []
    if overrides:
        spelled.append(f"-ot {overrides}")
    if n_cpu_moe:
        spelled.append(f"-ncmoe {n_cpu_moe}")
    if n_gpu_layers is not None:
        spelled.append(f"-ngl {n_gpu_layers}")
    return " ".join(spelled) or "all resident"


def layers_to_devices(n_layers: int, shares: Sequence[float]) -> list[int]:
    """Each layer's device, when device i takes `shares[i]` of the layers (llama.cpp's `-sm layer -ts 3/1`).

    Raises HprofError when a device would get no layer.
    """
    edges = [sum(shares[: i + 1]) / sum(shares) for i in range(len(shares))]
    devices = [
        next(i for i, edge in enumerate(edges) if (layer + 0.5) / n_layers <= edge + 1e-9) for layer in range(n_layers)
    ]
    if set(devices) != set(range(len(shares))):
        raise HprofError(
            f"-ts {'/'.join(f'{share:g}' for share in shares)} leaves a device without any of the {n_layers} layers: "
            "give more even shares or fewer devices"
        )
    return devices


EVERYTHING_RESIDENT = Placement(frozenset(), "all resident")
