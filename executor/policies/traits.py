"""What is true of an arm by design, whatever model and machine it runs on.

Each `Policy` carries its `ArmTraits`; a capture's manifest keeps them, so that planning, report, findings and
dashboard ask an arm about itself and know none by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

CopyTime = Literal["inline", "ahead", "chosen", "none"]
"""On the compute stream when the step is reached, on the copy stream before it, either as the policy decides, never."""


@dataclass(frozen=True, slots=True)
class ArmTraits:
    """An arm's facts and words. `reads` names the fields of `PolicyOptions` that its decisions depend on."""

    meaning: str
    """In a few words, to stand behind its name: `prefetch`."""
    subject: str
    """As the subject of a sentence: `Prefetch`."""
    copies: CopyTime
    """When host weights are copied, the bank's misses aside."""
    reads: tuple[str, ...] = ("op_offload_min_batch",)
    learns: bool = False
    """Whether earlier passes change later ones: then it warms up, and starts anew in each process."""
    computes_on_host: bool = False
    """Whether it computes FFN or expert weights on the host at any size of ubatch; its logits round differently."""
    divides: bool = False
    """Whether it may leave some experts of a layer to the host while the device computes the others."""
    is_resident: bool = False
    """Whether it keeps everything on the device whatever the placement: the limit, and not what one chooses among."""
    takes_cache: bool = True
    """Whether `ARM+cache` exists: it does where experts are used on the device."""
    same_without_experts: str | None = None
    """The arm that does the same on a model without experts; None: itself."""
    held_against: tuple[str, ...] = ()
    """Arms that show, measured beside it, what another way of copying is worth."""

    @property
    def has_cache(self) -> bool:
        """Whether small batches are served from an expert cache."""
        return "cache_bytes" in self.reads

    def with_cache(self, base: str) -> ArmTraits:
        """Those of `base+cache`, where these are the arm `base`'s."""
        return replace(
            self,
            meaning=f"{self.meaning} with the expert cache",
            subject=f"{self.subject} with the expert cache",
            reads=(*self.reads, "cache_bytes", "cache_policy"),
            learns=True,  # the bank's content is carried from pass to pass
            same_without_experts=self.same_without_experts or base,
        )
