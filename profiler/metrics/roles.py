"""What a row counts as, and the codes of the labels that metrics look at."""

from __future__ import annotations

from typing import Final

ABSENT: Final = -1
PHASES: Final = ("prefill", "decode")
MEMORIES: Final = ("pinned", "pageable", "device", "managed")
DIRECTIONS: Final = ("h2d", "d2h", "d2d", "uvm_h2d", "uvm_d2h")
# What a row counts as. `cpu_compute` is the host's: it hides no copy. Host calls, memsets, graph launches, collectives
# (kernels that mostly wait for other devices) and the kernels inside hprof's own steps count as nothing.
ROLES: Final = (*DIRECTIONS, "compute", "cpu_compute", "wait")
H2D: Final = ROLES.index("h2d")  # explicit host to device copies: the direction that prefetch is about
COMPUTE, CPU_COMPUTE, WAIT = map(ROLES.index, ("compute", "cpu_compute", "wait"))
COPIES: Final = tuple(range(len(DIRECTIONS)))
