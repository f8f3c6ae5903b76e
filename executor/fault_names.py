"""The faults that `--inject` plants, by name, each in a sentence. Who plants them: `executor.devices.faults`."""

from typing import Final

FAULT_MEANINGS: Final = {
    "drop-wait": "A step does not wait for the copy of its weights.",
    "drop-refill-wait": "A copy does not wait for the last reader of its slot.",
    "late-record": "A copy's event is recorded only after the step has waited for it, so the step waits for nothing.",
    "stale-generation": "One event a slot is recorded again and again, and a step waits one record too early.",
    "wrong-slot": "One copy goes to the slot of the copy before it.",
    "refill-pinned": "Copies start from one pinned buffer, which is filled again while the copy before is under way.",
    "overlapping-views": "The second slot of each kind begins in the middle of the first.",
    "free-in-flight": "A slot is freed while its copy is under way, and another stream gets its memory.",
    "prefetch-bank": "What the expert cache's bank lacks is copied on the copy stream, in no order with its readers.",
    "prefetch-uncomputed": "What the host computes is fetched before it is computed.",
    "swallow-error": "One copy fails, and nobody looks at the error.",
    "pageable-source": "Weights are not pinned, so copies are staged and hold up the thread: right bytes, less hidden.",
    "late-issue": "What goes ahead is queued only when a step stands ready for it: right bytes, and nothing hidden.",
}

WITHOUT_COPIES_AHEAD: Final = frozenset({"prefetch-bank", "prefetch-uncomputed", "pageable-source"})
"""Those that need no arm which copies ahead: all others do something wrong on the copy stream."""
OF_THE_BANK: Final = "prefetch-bank"
