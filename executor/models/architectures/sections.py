"""Rotation by time, height and width: in text, which is all that runs here, the three are the token's position."""

from __future__ import annotations

from typing import Final

from executor.errors import HprofError
from executor.models.architectures.base import ModelFile

_KEY: Final = "rope.dimension_sections"


def check_sections(file: ModelFile, dims: int) -> None:
    """Refuse sections that leave a rotated pair to none of the three: to a fourth number, which in text is 0.

    Sections say how many pairs each of the three has: one after the other, or in turn (ggml's `GGML_ROPE_TYPE_MROPE`
    and `GGML_ROPE_TYPE_IMROPE`). Pairs beyond their sum begin again.
    """
    if file.architecture.sections is None:
        return
    sections = file.fields.integers(_KEY, 4, low=0, of="sections")
    n_pairs = min(max(1, sum(sections)), dims // 2)
    if file.architecture.sections == "in turn":
        has_rest = any(3 * n + i < n_pairs for i, n in enumerate(sections[:3]))  # the first that is one too many
    else:
        has_rest = sum(sections[:3]) < n_pairs
    if has_rest:
        raise HprofError(
            f"{file.fields.origin}: its key {file.fields.prefix}{_KEY} is {list(sections)}, which leaves some of "
            f"{dims // 2} rotated pairs where they are, and hprof does not compute that; "
            "use --engine llama-bench for this file."
        )
