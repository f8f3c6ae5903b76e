"""Writes a torch.profiler trace of any size, in Kineto's own layout (about 207 bytes an event)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

_HEAD = """
  {
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "numSms": 132
    }
    ],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
_TAIL = '  ],\n  "traceName": "generated.json"\n}\n'
_STEP_NS = 50_000_000
_START_NS = 5_124_626_046_218_252
_NAMES = [f"void gemm_kernel<float, {i}, 128>(const float*, const float*, float*, int, int)" for i in range(200)]


def write_kineto(path: Path, n_rows: int) -> None:
    """`n_rows` events: operators, launches, flow arrows, kernels, one copy in ten, a ProfilerStep each 50 ms."""
    with path.open("w", buffering=1 << 20) as file:
        file.write(_HEAD)
        for number, event in enumerate(_events(n_rows)):
            file.write(event if number == 0 else ",\n" + event)
        file.write("\n" + _TAIL)


def _events(n_rows: int) -> Iterator[str]:
    rng = random.Random(0)
    now, step_start, n_written, correlation = _START_NS, _START_NS, 0, 0
    while n_written < n_rows:
        correlation += 1
        length = rng.randrange(2_000, 30_000)
        group = [
            _operator(now, length, correlation),
            _launch(now + 500, correlation),
            _flow("s", now + 500, correlation),
        ]
        group += [_work(now + 3_000, length, correlation), _flow("f", now + 3_000, correlation)]
        now += length + 1_000
        if now - step_start > _STEP_NS:
            group.append(_step(step_start, now - step_start, correlation))
            step_start = now
        yield from group[: n_rows - n_written]
        n_written += len(group)


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _operator(start: int, length: int, correlation: int) -> str:
    return f"""  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::matmul", "pid": 418, "tid": 418,
    "ts": {_us(start)}, "dur": {_us(length)},
    "args": {{
      "External id": {correlation},"Record function id": 0, "Ev Idx": {correlation}
    }}
  }}"""


def _launch(start: int, correlation: int) -> str:
    return f"""  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 418, "tid": 418,
    "ts": {_us(start)}, "dur": 1.300,
    "args": {{
      "External id": {correlation},"cbid": 211, "correlation": {correlation}
    }}
  }}"""


def _flow(phase: str, start: int, correlation: int) -> str:
    return f"""  {{
    "ph": "{phase}", "id": {correlation}, "pid": 418, "tid": 418, "ts": {_us(start)},
    "cat": "ac2g", "name": "ac2g"
  }}"""


def _work(start: int, length: int, correlation: int) -> str:
    if correlation % 10 == 0:
        return f"""  {{
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 14,
    "ts": {_us(start)}, "dur": {_us(3 * length)},
    "args": {{
      "External id": {correlation}, "device": 0, "context": 1, "stream": 14, "correlation": {correlation},
      "bytes": {length * 150}, "memory bandwidth (GB/s)": 50.0
    }}
  }}"""
    return f"""  {{
    "ph": "X", "cat": "kernel", "name": "{_NAMES[correlation % len(_NAMES)]}", "pid": 0, "tid": 7,
    "ts": {_us(start)}, "dur": {_us(length)},
    "args": {{
      "External id": {correlation}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {correlation},
      "registers per thread": 32, "shared memory": 0, "blocks per SM": 3.878788, "warps per SM": 15.515152,
      "grid": [512, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 24
    }}
  }}"""


def _step(start: int, length: int, number: int) -> str:
    return f"""  {{
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", "pid": 418, "tid": 418,
    "ts": {_us(start)}, "dur": {_us(length)},
    "args": {{
      "External id": {number}
    }}
  }}"""
