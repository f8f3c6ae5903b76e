"""The rotary embedding that a file's keys describe."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from executor.errors import HprofError
from executor.model import RopeShape
from executor.models.architectures.base import ModelFile

SECTIONS: Final = "rope.dimension_sections"


def read_rope(file: ModelFile, default_dims: int) -> RopeShape:
    """The rotation that all layers share; `default_dims` are rotated where the file does not say how many."""
    fields = file.fields
    plain = RopeShape(
        theta=fields.number("rope.freq_base", 10000.0, above=1.0),
        dims=fields.integer("rope.dimension_count", fields.integer("attention.key_length", default_dims)),
        interleaved=file.architecture.interleaved_rope,
        attention_factor=fields.number("rope.scaling.attn_factor", 1.0),
        factors=file.rope_factors.plain,
    )
    _check_sections(file, plain.dims)
    older = fields.number("rope.scale_linear", 1.0, or_zero=True)
    factor = fields.number("rope.scaling.factor", older, or_zero=True) or 1.0  # 0 means that there is none
    rule = fields.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    scaled = _scaled(file, plain, rule, factor)
    return _by_length(file, scaled) if file.architecture.long_rope or rule == "longrope" else scaled


def _check_sections(file: ModelFile, dims: int) -> None:
    """Refuse sections that leave a rotated pair to none of time, height and width: to a fourth number, in text 0.

    Sections say how many pairs each of the three has, all of which in text are the token's position: one after the
    other, or in turn (ggml's `GGML_ROPE_TYPE_MROPE` and `GGML_ROPE_TYPE_IMROPE`). Pairs beyond their sum begin again.
    """
    if file.architecture.sections is None:
        return
    sections = file.fields.integers(SECTIONS, 4, low=0, of="sections")
    n_pairs = min(max(1, sum(sections)), dims // 2)
    if file.architecture.sections == "in turn":
        has_rest = any(3 * n + i < n_pairs for i, n in enumerate(sections[:3]))  # the first that is one too many
    else:
        has_rest = sum(sections[:3]) < n_pairs
    if has_rest:
        raise HprofError(
            f"{file.fields.origin}: its key {file.fields.prefix}{SECTIONS} is {list(sections)}, which leaves some of "
            f"{dims // 2} rotated pairs where they are, and hprof does not compute that; "
            "use --engine llama-bench for this file."
        )


def _scaled(file: ModelFile, plain: RopeShape, rule: str, factor: float) -> RopeShape:
    match rule:
        case "none":
            return plain
        case "linear" | "longrope":
            return replace(plain, scaling="linear", factor=factor)
        case "yarn":
            return _yarn(file, plain, factor)
        case other:
            raise HprofError(
                f"{file.fields.origin}: its rope scaling {other[:40]!r} is not known; known are none, linear, longrope "
                "and yarn."
            )


def _by_length(file: ModelFile, rope: RopeShape) -> RopeShape:
    """The same with the file's factors for short and for long contexts."""
    short, long = file.rope_factors.short, file.rope_factors.long
    if bool(short) != bool(long):
        raise HprofError(
            f"{file.fields.origin}: it has rotation factors for {'short' if short else 'long'} contexts alone, and "
            "needs both; fetch or convert it again."
        )
    if not short:
        return rope
    return replace(rope, factors=short, long_factors=long, original_context=original_context(file))


def original_context(file: ModelFile) -> int:
    """The context that the model was trained for, before its rotation was scaled."""
    fields = file.fields
    return fields.integer("rope.scaling.original_context_length", fields.integer("context_length", 131072))


def _yarn(file: ModelFile, plain: RopeShape, factor: float) -> RopeShape:
    yarn = replace(
        plain,
        scaling="yarn",
        factor=factor,
        original_context=original_context(file),
        attention_factor=plain.attention_factor * yarn_magnitude(factor),
    )
    if not file.architecture.yarn_keys:
        return yarn
    fields, key = file.fields, "rope.scaling.yarn_"
    on_logits = yarn_magnitude(factor, fields.number(f"{key}log_multiplier", 0.0, or_zero=True))
    return replace(
        yarn,
        attention_factor=yarn.attention_factor / on_logits,
        beta_fast=fields.number(f"{key}beta_fast", yarn.beta_fast),
        beta_slow=fields.number(f"{key}beta_slow", yarn.beta_slow),
    )


def yarn_magnitude(factor: float, multiplier: float = 1.0) -> float:
    """YaRN's length of rotated pairs for a context `factor` times as long (arXiv 2309.00071, 3.4)."""
    return 1.0 + 0.1 * multiplier * math.log(max(factor, 1.0))
