"""The names of the NVTX ranges that the executor pushes, and their parsing: one definition for both sides.

Ranges of domain `hprof` nest as pass > ubatch > step. A name is `key=value` pairs separated by spaces:
    pass=3 arm=on n_ubatch=512 n_depth=0 n_prompt=2048 n_gen=16 repetition=1 warmup=0
    ubatch=0 phase=prefill n_tokens=512
    layer=7 tensor=ffn_up|ffn_gate|ffn_down what=whole   (category copy, payload: bytes)
    layer=7 what=activations                             (category copy: no weights; also flags, token, stand-ins)
    layer=7 what=ffn                                     (category compute)
A copy moves a transfer unit, and `tensor` names all tensors of it. Values are percent-encoded where they hold a space,
`=` or `%`. Pure strings: no NVTX library is needed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast
from urllib.parse import quote, unquote

from executor.passes import Phase
from executor.units import LARGEST_COUNT

DOMAIN: Final = "hprof"
Category = Literal["copy", "compute"]
CATEGORIES: Final[tuple[Category, ...]] = ("copy", "compute")

_SAFE: Final = "!\"#$&'()*+,/:;<>?@[\\]^`{|}"
_MAX_CHARS: Final = 4096


@dataclass(frozen=True, slots=True)
class PassName:
    """One pass: what it was asked to do."""

    pass_id: int
    arm: str
    n_ubatch: int
    n_depth: int
    n_prompt: int
    n_gen: int
    repetition: int
    warmup: bool


@dataclass(frozen=True, slots=True)
class UbatchName:
    """One ubatch inside a pass."""

    ubatch: int
    phase: Phase
    n_tokens: int


@dataclass(frozen=True, slots=True)
class StepName:
    """A copy of one transfer unit (`what`: whole, selective, hot, missing, missed), a copy of what is no weight
    (activations, flags, token, stand-ins), or a computed part (attn, ...).
    """

    layer: int | None  # None: outside the layers, such as the output projection
    what: str
    tensor: str | None = None  # the label of the unit that is copied


Name = PassName | UbatchName | StepName


def format_pass(name: PassName) -> str:
    """The range name of a pass."""
    return (
        f"pass={name.pass_id} arm={_quote(name.arm)} n_ubatch={name.n_ubatch} n_depth={name.n_depth} "
        f"n_prompt={name.n_prompt} n_gen={name.n_gen} repetition={name.repetition} warmup={int(name.warmup)}"
    )


def format_ubatch(name: UbatchName) -> str:
    """The range name of a ubatch."""
    return f"ubatch={name.ubatch} phase={name.phase} n_tokens={name.n_tokens}"


def format_step(name: StepName) -> str:
    """The range name of a copy or of a computed part."""
    parts = [] if name.layer is None else [f"layer={name.layer}"]
    if name.tensor is not None:
        parts.append(f"tensor={_quote(name.tensor)}")
    return " ".join([*parts, f"what={_quote(name.what)}"])


def parse(text: str) -> Name | None:
    """The name that `text` was formatted from; None for any other text."""
    fields = _fields(text)
    try:
        if "pass" in fields:
            return _pass(fields)
        if "ubatch" in fields:
            return _ubatch(fields)
        if "what" in fields:
            return _step(fields)
    except (KeyError, ValueError):
        return None
    return None


def _fields(text: str) -> dict[str, str]:
    if len(text) > _MAX_CHARS:
        return {}
    pairs = (word.partition("=") for word in text.split())
    return {key: unquote(value) for key, equals, value in pairs if equals}


def _pass(fields: dict[str, str]) -> PassName:
    return PassName(
        pass_id=_int(fields["pass"]),
        arm=fields["arm"],
        n_ubatch=_int(fields["n_ubatch"]),
        n_depth=_int(fields["n_depth"]),
        n_prompt=_int(fields["n_prompt"]),
        n_gen=_int(fields["n_gen"]),
        repetition=_int(fields["repetition"]),
        warmup=_int(fields["warmup"]) != 0,
    )


def _ubatch(fields: dict[str, str]) -> UbatchName:
    phase = fields["phase"]
    if phase not in ("prefill", "decode"):
        raise ValueError(phase)
    return UbatchName(_int(fields["ubatch"]), cast(Phase, phase), _int(fields["n_tokens"]))


def _step(fields: dict[str, str]) -> StepName:
    layer = _int(fields["layer"]) if "layer" in fields else None
    return StepName(layer, fields["what"], fields.get("tensor"))


def _quote(value: str) -> str:
    return quote(value, safe=_SAFE)


def _int(value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > 10 or int(value) > LARGEST_COUNT:
        raise ValueError(value)
    return int(value)
