"""Nsight Systems' numbers. They are the same in every schema from 2.9.1 on, which has no enum tables at all."""

from __future__ import annotations

from typing import Final

# ENUM_CUDA_MEMCPY_OPER -> (kind, name, detail); 0 (unknown) and 9 (host to host) are no device copies
COPY_KINDS: Final[dict[int, tuple[str, str, str | None]]] = {
    1: ("h2d", "memcpy HtoD", None),
    2: ("d2h", "memcpy DtoH", None),
    3: ("h2d", "memcpy HtoA", None),
    4: ("d2h", "memcpy AtoH", None),
    5: ("d2d", "memcpy AtoA", None),
    6: ("d2d", "memcpy AtoD", None),
    7: ("d2d", "memcpy DtoA", None),
    8: ("d2d", "memcpy DtoD", None),
    10: ("d2d", "memcpy PtoP", "peer"),
    11: ("h2d", "UVM HtoD", "uvm"),
    12: ("d2h", "UVM DtoH", "uvm"),
    13: ("d2d", "UVM DtoD", "uvm"),
}
HOST_TO_HOST: Final = 9

# ENUM_CUDA_MEM_KIND: one less than CUPTI's own CUpti_ActivityMemoryKind; 7 is unknown
MEMORY_KINDS: Final[dict[int, str]] = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "device",
    4: "managed",
    5: "device",
    6: "managed",
}

# ENUM_CUPTI_SYNC_TYPE
SYNC_KINDS: Final[dict[int, str]] = {
    1: "event synchronize",
    2: "stream wait event",
    3: "stream synchronize",
    4: "context synchronize",
}
NO_STREAM: Final = 0xFFFFFFFF

# ENUM_NSYS_EVENT_TYPE, the part that NVTX uses
PUSH_POP_RANGE: Final = 59
START_END_RANGE: Final = 60
DOMAIN_CREATE: Final = 75

# DIAGNOSTIC_EVENT.severity
DIAGNOSTIC_WARNING: Final = 2
DIAGNOSTIC_ERROR: Final = 3

# globalTid = <hw:8><vm:8><pid:24><tid:24>
TID_BITS: Final = 24
ID_MASK: Final = (1 << 24) - 1
