"""Which pages have nothing to show for a capture, and why: the navigation dims them, and each page says the same."""

from __future__ import annotations

from dashboard import load
from dashboard.choice import Choice

NO_LAYERS = "No event of this capture says which layer it belongs to."
NO_ROUTER = "No router's choices were recorded: a dense model has none, and other tools do not write them."
NO_UBATCHES = "This capture has no passes; the selective copy is seen ubatch by ubatch."
NO_MEMORY = "This source does not say what the device held."
NO_RUN = "This capture was not made by hprof run, so what it ran is not known well enough to predict by it."
_NO_PASSES = "This capture has no passes"


def why_empty(choice: Choice) -> dict[str, str]:
    """By a page's address, why there is nothing on it; pages that have something are left out."""
    manifest, sizes = choice.capture.manifest, choice.sizes
    reasons = {
        "timeline": None if load.n_events(choice.found) else "No events were recorded.",
        "sweep": None if sizes is not None else f"{_NO_PASSES}, so there is nothing to sweep over.",
        "selective": NO_UBATCHES if sizes is None else None if choice.capture.n_rows("experts") else NO_ROUTER,
        "layers": None if sizes is not None and load.has_layers(choice.found) else NO_LAYERS,
        "memory": None if _tells_memory(choice) else NO_MEMORY,
    }
    if sizes is None or not manifest.is_own_run:
        reasons |= dict.fromkeys(("what-if", "advise"), NO_RUN)
    return {page: reason for page, reason in reasons.items() if reason is not None}


def _tells_memory(choice: Choice) -> bool:
    passes = choice.capture.passes
    return choice.sizes is not None and bool(passes[["vram_peak", "vram_slots"]].notna().any(axis=None))
