"""What is measured: the five tables, each a few `hprof run` commands.

The discussion is ggml's "allow prefetching tensor overrides"; its commands are llama-bench's, and these are the same
flags. What a table leaves out or cuts is said in its notes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Run:
    """One capture: what to type after `hprof run`."""

    name: str
    flags: str

    def argv(self, output: str, changes: Sequence[str] = ()) -> list[str]:
        """The whole command; `changes` come last, so that a smaller model or another device can be named."""
        return ["hprof", "run", *shlex.split(self.flags), *changes, "-o", output, "--force"]


@dataclass(frozen=True, slots=True)
class ThreadTable:
    """One table of the discussion."""

    title: str
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()


_DEPTHS: Final = "0,10000,20000,30000,40000,50000"
_LAGUNA: Final = "-m laguna-s-2.1 --quant Q4_0"
_QWEN: Final = "-m qwen3.6-35b-a3b -ncmoe 999 --op-offload-min-batch 0"
_TWO_EXPERTS: Final = "-m qwen3-30b-a3b -ncmoe 999 --op-offload-min-batch 0 -p 2048 -n 4 -ub 512 --arms off,on,hot"
_TWO_DENSE: Final = (
    '-m qwen3.5-27b -ot "ffn_(gate|up|down).*=CPU" --op-offload-min-batch 0 -p 2048 -n 4 -ub 512 --arms off,on'
)

TABLES: Final[Mapping[str, ThreadTable]] = {
    "a": ThreadTable(
        "Dense: Qwen3.5-27B, FFN in host memory",
        (
            Run(
                "a-dense",
                '-m qwen3.5-27b -ot "ffn_(gate|up|down).*=CPU" -p 2048 -n 0 -ub 512,1024,2048 '
                f"-d {_DEPTHS} --arms off,on,full",
            ),
        ),
    ),
    "b": ThreadTable(
        "Mixture of experts: gpt-oss-20b, all experts in host memory",
        (
            Run(
                "b-experts",
                f"-m gpt-oss-20b -ncmoe 999 -p 2048 -n 0 -ub 512,1024,2048 -d {_DEPTHS} --arms off,on,full",
            ),
        ),
    ),
    "c": ThreadTable(
        "Laguna-S-2.1, 28 layers' experts in host memory",
        (
            Run("c-short", f"{_LAGUNA} -ncmoe 29 -p 34 -n 0 -ub 2048 --arms off,off-whole,on,gated"),
            Run("c-long", f"{_LAGUNA} -ncmoe 29 -p 10240 -n 0 -ub 2048 --arms off,on,gated"),
            Run("c-deep", f"{_LAGUNA} -ncmoe 29 -p 2048 -n 0 -ub 2048 -d 88064 --arms off,on"),
            Run("c-sweep", f"{_LAGUNA} -ncmoe 29 -p 64-2048*2 -n 0 -ub 2048 --arms off,on"),
            Run("c-budget", f"{_LAGUNA} --vram-budget 31GiB -p 34 -n 16 -ub 2048 --arms off,on,gated"),
            Run("c-host", f"{_LAGUNA} --layers 30 -ncmoe 5,17,29 -p 34 -n 32 -ub 2048 --arms off"),
        ),
        (
            "-ncmoe counts the first layer, which is dense: 29 layers are 28 with experts.",
            "Q4_0 in place of IQ4_NL, as many bits a weight: PyTorch multiplies it as it is on the CPU.",
            "The 90,000 tokens are a depth of 88,064 and the last ubatch of 2,048, not a prefill of 90,000.",
        ),
    ),
    "d": ThreadTable(
        "Decode of Qwen3.6-35B-A3B, all experts in host memory",
        (
            Run("d-cache", f"{_QWEN} -p 128 -n 64 -ub 512 --arms off,cache --moe-cache-mib 2765 -r 10"),
            Run("d-pageable", f"{_QWEN} -p 128 -n 16 -ub 512 --arms off -lm mmap"),
            Run("d-batch1", f"{_QWEN} -p 1 -n 8 -ub 512 --arms off,hot,on"),
        ),
        (
            "2765 MiB are the 2.9 GB (2.7 GiB) of the discussion.",
            "All weights are streamed at every batch size (--op-offload-min-batch 0).",
        ),
    ),
    "e": ThreadTable("Host memory: mapped, pinned, registered", ()),
    "f": ThreadTable(
        "Two GPUs: Qwen3-30B-A3B and Qwen3.5-27B, layers split over them",
        (
            Run("f-experts-1", f"{_TWO_EXPERTS} --n-devices 1"),
            Run("f-experts-2", f"{_TWO_EXPERTS} --n-devices 2 -sm layer -ts 1/1"),
            Run("f-dense-1", f"{_TWO_DENSE} --n-devices 1"),
            Run("f-dense-2", f"{_TWO_DENSE} --n-devices 2 -sm layer -ts 1/1"),
        ),
    ),
}
